"""Identity-parameterised residual networks for Keras: layers, mathematics and data.

Modules:

    initializers   IdentityNormal, StandardNormal, ScaledGlorot
    layers         residual blocks, shortcuts, frozen projections and preprocessing
    models         the networks of the two papers, as functions that return a `keras.Model`
    optimizers     Momentum (the learning rate outside the velocity, as in TensorFlow 1), Muon (orthogonalised momentum)
    clipping       adaptive gradient clipping, for networks without normalisation
    callbacks      for `model.fit`: exact resume after a kill, monitors of norms, distances and curvature
    determinism    all switches for reproducible training in one call
    surgery        insertion of blocks into trained models as the identity, and removal of blocks near it
    autodiff       gradient, jvp, vjp, hvp, linearize, jacobian, hessian of functions and Keras models
    curvature      Hessians, Gauss-Newton and Fisher matrices of any Keras model, and their spectra
    isometry       distances of blocks from the identity; singular values and norms of Jacobians and convolutions
    expressivity   networks that memorise any sample, in closed form
    linear         deep linear networks in NumPy: risks, factorisations, Hessians, gradient descent
    data           CIFAR-10, CIFAR-100, MNIST, ImageNet and the built-in `shapes`, in batches by (seed, step)

Exported from them as well: ExactResume, HessianOperator, Muon, RandomProjection, ResidualConv2D, block_distances,
deepen, memorize.

Modules and names are imported when they are first used: `import idmatters_tf` imports neither Keras nor NumPy. It
registers the package's classes, so that `keras.saving.load_model` can load models that contain them.
"""

from typing import TYPE_CHECKING

from idmatters_tf._lazy import lazy_attributes
from idmatters_tf._registration import register

if TYPE_CHECKING:
    from idmatters_tf import (
        autodiff,
        callbacks,
        clipping,
        curvature,
        data,
        determinism,
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
    from idmatters_tf.expressivity import memorize
    from idmatters_tf.isometry import block_distances
    from idmatters_tf.layers import RandomProjection, ResidualConv2D
    from idmatters_tf.optimizers import Muon
    from idmatters_tf.surgery import deepen

__version__ = "0.2.0"

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
    "clipping",
    "curvature",
    "data",
    "deepen",
    "determinism",
    "expressivity",
    "initializers",
    "isometry",
    "layers",
    "linear",
    "memorize",
    "models",
    "optimizers",
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
    "memorize": "idmatters_tf.expressivity",
}

register()

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _ORIGINS)
