"""Identity-parameterised residual networks for Keras: the parts, the mathematics, the data.

Sub-modules are imported when they are first used, so that `import idmatters_tf` costs nothing. It is all that
`keras.saving.load_model` needs to load models with our layers, initialisers and optimizers.

    initializers   IdentityNormal, StandardNormal, ScaledGlorot
    layers         ResidualConv2D, PadShortcut2D, RandomProjection, ResidualDense, ResidualDenseStack, LinearResidual,
                   ShortcutUnit, PerImageStandardization
    expressivity   residual networks that memorise any sample, in closed form
    linear         deep linear networks as mathematics: risks, factorisations, Hessians, gradient descent
    models         the networks of the two papers, as functions that return a `keras.Model`
    optimizers     Momentum (the learning rate outside the velocity, as in TensorFlow 1), Muon (orthogonalised momentum)
    clipping       adaptive gradient clipping, for networks without normalisation
    norms          Frobenius and spectral norms of a network's kernels
    callbacks      for `model.fit`: exact resume after a kill; what the theory watches, measured during training
    determinism    all switches for reproducible training in one call
    surgery        blocks added to trained models as the identity, and taken out of them where they are near it
    autodiff       gradient, jvp, vjp, hvp, linearize, jacobian, hessian of functions, models and their variables
    curvature      Hessians, Gauss-Newton and Fisher matrices of any Keras model; their spectra
    isometry       how near the identity each block is: Jacobians, convolutions and kernels, their singular values
    data           CIFAR-10, CIFAR-100, MNIST and the built-in `shapes`, as batches that are a function of (seed, step)
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

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
        norms,
        optimizers,
        surgery,
    )

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "autodiff",
    "callbacks",
    "clipping",
    "curvature",
    "data",
    "determinism",
    "expressivity",
    "initializers",
    "isometry",
    "layers",
    "linear",
    "models",
    "norms",
    "optimizers",
    "surgery",
]


register()


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
