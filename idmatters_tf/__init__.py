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
    curvature      Hessians and Gauss-Newton matrices of any Keras model, and their spectra
    depth          learning rates that hold at depth; curvature, gradients, Jacobians and learning rates by depth
    isometry       distances of blocks from the identity; singular values and norms of Jacobians and convolutions
    expressivity   networks that memorize any sample, in closed form
    linear         deep linear networks in NumPy: risks, factorizations, Hessians, gradient descent
    data           CIFAR-10, CIFAR-100, MNIST, ImageNet and the built-in `shapes`, in batches by (seed, step)

Also exported: ExactResume, HessianOperator, Muon, RandomProjection, ResidualConv2D, block_distances, deepen,
depth_profile, find_rate, memorize, rate_profile, scale_depth.

Modules and names are imported on first use: `import idmatters_tf` imports neither Keras nor NumPy. A module registers
its classes with Keras when it is imported: `import idmatters_tf.layers` before `keras.saving.load_model` loads models
that contain them. Compiled models also need `idmatters_tf.optimizers` if they use one, memorizing networks
`idmatters_tf.expressivity`.
"""

from typing import TYPE_CHECKING

from idmatters_tf._lazy import lazy_attributes

if TYPE_CHECKING:
    from idmatters_tf import (
        autodiff,
        callbacks,
        checkpointing,
        curvature,
        data,
        depth,
        determinism,
        distribute,
        expressivity,
        initializers,
        isometry,
        layers,
        linear,
        models,
        optimizers,
        surgery,
    )
    from idmatters_tf.callbacks import ExactResume
    from idmatters_tf.curvature import HessianOperator
    from idmatters_tf.depth import depth_profile, find_rate, rate_profile, scale_depth
    from idmatters_tf.expressivity import memorize
    from idmatters_tf.isometry import block_distances
    from idmatters_tf.layers import RandomProjection, ResidualConv2D
    from idmatters_tf.optimizers import Muon
    from idmatters_tf.surgery import deepen

__version__ = "0.1.0"

__all__ = [
    "ExactResume",
    "HessianOperator",
    "Muon",
    "RandomProjection",
    "ResidualConv2D",
    "__version__",
    "autodiff",
    "block_distances",
    "callbacks",
    "checkpointing",
    "curvature",
    "data",
    "deepen",
    "depth",
    "depth_profile",
    "determinism",
    "distribute",
    "expressivity",
    "find_rate",
    "initializers",
    "isometry",
    "layers",
    "linear",
    "memorize",
    "models",
    "optimizers",
    "rate_profile",
    "scale_depth",
    "surgery",
]

_ORIGINS = {
    "ExactResume": "idmatters_tf.callbacks",
    "HessianOperator": "idmatters_tf.curvature",
    "Muon": "idmatters_tf.optimizers",
    "RandomProjection": "idmatters_tf.layers",
    "ResidualConv2D": "idmatters_tf.layers",
    "block_distances": "idmatters_tf.isometry",
    "deepen": "idmatters_tf.surgery",
    "depth_profile": "idmatters_tf.depth",
    "find_rate": "idmatters_tf.depth",
    "memorize": "idmatters_tf.expressivity",
    "rate_profile": "idmatters_tf.depth",
    "scale_depth": "idmatters_tf.depth",
}

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _ORIGINS)
