"""Near-identity residual networks for Keras: layers, models, exact resume, curvature and mathematics.

Modules:

    initializers   IdentityNormal, StandardNormal, ScaledGlorot
    layers         residual blocks, shortcuts, frozen projections and preprocessing
    models         networks of the two papers, as functions that return a `keras.Model`
    optimizers     Momentum (learning rate outside the velocity, as in TensorFlow 1), Muon (orthogonalized momentum)
    callbacks      exact resume of `model.fit`; monitors of norms, distances from the identity and curvature
    checkpointing  atomic, checksummed files and checkpoints; locks of folders
    distribute     `fit` on several devices and machines
    determinism    all settings for reproducible training in one call
    surgery        insertion of identity blocks into trained models, and removal of near-identity blocks
    autodiff       gradient, jvp, vjp, hvp, linearize, jacobian, hessian of functions and Keras models
    spectra        eigenpairs, densities, traces and singular values of SciPy operators, in NumPy
    curvature      Hessians and Gauss-Newton matrices of any Keras model, and their spectra
    depth          learning rates that hold at depth: scaled branches, and the best and the largest stable rate
    isometry       distances of blocks from the identity; singular values and norms of Jacobians and convolutions
    expressivity   networks that memorize any sample, in closed form
    linear         deep linear networks in NumPy: risks, factorizations, Hessians, gradient descent
    data           CIFAR-10, CIFAR-100, MNIST, ImageNet and the built-in `shapes`, in batches by (seed, step)

Also exported: ExactResume, HessianOperator, Muon, RandomProjection, ResidualConv2D, block_distances, deepen,
find_rate, memorize, rate_profile, scale_depth.

Modules and names are imported on first use: `import idmatters_tf` imports neither Keras nor NumPy. A module registers
its classes with Keras when it is imported: `import idmatters_tf.layers` before `keras.saving.load_model` loads models
that contain them. Compiled models also need `idmatters_tf.optimizers` if they use one, memorizing networks
`idmatters_tf.expressivity`.
"""

from idmatters_tf._environment import VERSION
from idmatters_tf._imports import lazy_attributes

__version__ = VERSION

__getattr__, __dir__, __all__ = lazy_attributes(__name__, __file__)
