"""Identity-parameterised residual networks for Keras: the parts, the mathematics, the data.

Sub-modules are imported when they are first used, so that `import idmatters_tf` costs nothing:

    initializers   IdentityNormal, StandardNormal, ScaledGlorot
    layers         ResidualConv2D, PadShortcut2D, RandomProjection, ResidualDense, ResidualDenseStack, LinearResidual,
                   ShortcutUnit, PerImageStandardization
    expressivity   residual networks that memorise any sample, in closed form
    linear         deep linear networks as mathematics: risks, factorisations, Hessians, gradient descent (NumPy alone)
    optimizers     Momentum (the learning rate outside the velocity, as TensorFlow 1 had it)
    norms          Frobenius and spectral norms of a network's kernels
    curvature      Hessians, Gauss-Newton and Fisher matrices of any Keras model; their spectra
    data           CIFAR-10, CIFAR-100, MNIST and the built-in `shapes`, as batches that are a function of (seed, step)
"""

import importlib

__version__ = "0.1.0"

_SUBMODULES = ("curvature", "data", "expressivity", "initializers", "layers", "linear", "norms", "optimizers")

__all__ = [*_SUBMODULES, "__version__"]


def __getattr__(name):
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
