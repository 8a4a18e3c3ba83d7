"""Initialisers of the two papers: N(0, (1/(k^2 c))^2), N(0, (1/(k sqrt c))^2), and Glorot's times a small factor.

A kernel's shape is (spatial sizes..., input channels, output channels). With k x k kernels and c output channels, k^2
below is the product of the spatial sizes, so that a `Dense` kernel counts as k = 1 and a 1-D kernel of size k as k.
"""

import math
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import keras
import numpy as np

from idmatters_tf._keras_types import Tensor

InitializerT = TypeVar("InitializerT", bound=keras.initializers.Initializer)


class _ScaledNormal(keras.initializers.Initializer):
    """A normal distribution whose standard deviation is a function of the kernel's shape."""

    def __init__(self, seed: int | None = None):
        if not (seed is None or isinstance(seed, int)):
            raise ValueError(
                f"Argument `seed` of {type(self).__name__} must be an integer or None. Received: seed={seed!r}"
            )
        self.seed = seed
        # Drawn from Python's generator, as Keras' own initialisers do, so that keras.utils.set_random_seed fixes it.
        self._drawn_seed = random.randrange(2**31) if seed is None else seed

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if len(shape) < 2:
            raise ValueError(
                f"{type(self).__name__} needs a kernel of shape (spatial sizes..., inputs, outputs), rank 2 or more. "
                f"Received: shape={tuple(shape)}. Use 'zeros' for a bias."
            )
        return keras.random.normal(shape, stddev=self.standard_deviation(shape), dtype=dtype, seed=self._drawn_seed)

    def standard_deviation(self, shape: Sequence[int]) -> float:
        """The standard deviation (a float) used for a kernel of this shape."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {"seed": self.seed}


@keras.saving.register_keras_serializable(package="idmatters_tf")
class IdentityNormal(_ScaledNormal):
    """N(0, (1/(k^2 c))^2): the start near the identity of Hardt & Ma's residual convolutions.

    With this start each residual branch is a small perturbation of its skip (1e-3 to 3e-4 of it in the network of
    Table 1): the network begins near the identity map, and the noise only breaks the symmetry.
    Source: Hardt & Ma, *Identity Matters in Deep Learning*, section 4.1 (the same in all versions).

    Args:
        seed: an integer for the same values at each call, or None.

    Example:

    >>> round(IdentityNormal().standard_deviation((3, 3, 16, 64)) * 576, 6)
    1.0
    """

    def standard_deviation(self, shape: Sequence[int]) -> float:
        return 1.0 / (math.prod(shape[:-2]) * shape[-1])


@keras.saving.register_keras_serializable(package="idmatters_tf")
class StandardNormal(_ScaledNormal):
    """N(0, (1/(k sqrt c))^2): the start of "standard" convolutions that `IdentityNormal` replaces.

    Source: Hardt & Ma, section 4.1. The TensorFlow code they name used sqrt(2) times this (He et al., 2015).

    Args:
        seed: an integer for the same values at each call, or None.

    Example:

    >>> round(StandardNormal().standard_deviation((3, 3, 16, 64)) * 24, 6)
    1.0
    """

    def standard_deviation(self, shape: Sequence[int]) -> float:
        return 1.0 / math.sqrt(math.prod(shape[:-2]) * shape[-1])


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ScaledGlorot(_ScaledNormal):
    """Glorot's normal distribution times a small factor: Li et al.'s start near zero ("Xavier x 0.01").

    The standard deviation is `scale * sqrt(2 / (fan_in + fan_out))`; a plain normal, not a truncated one.
    Source: Li et al., *Demystifying ResNet*, section 4.1; Glorot & Bengio (2010), Eq. 12 for the variance.

    Args:
        scale: the factor; 0.01 in the paper, 1 gives Glorot's own.
        seed: an integer for the same values at each call, or None.

    Example:

    >>> round(ScaledGlorot(scale=0.5).standard_deviation((4, 4)), 6)
    0.25
    """

    def __init__(self, scale: float = 0.01, seed: int | None = None):
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(
                f"Argument `scale` of ScaledGlorot must be a positive number. Received: scale={scale}. "
                "Use keras.initializers.Zeros() to start at zero itself."
            )
        super().__init__(seed=seed)
        self.scale = scale

    def standard_deviation(self, shape: Sequence[int]) -> float:
        field = math.prod(shape[:-2])
        return self.scale * math.sqrt(2.0 / (field * (shape[-2] + shape[-1])))

    def get_config(self) -> dict[str, Any]:
        return {"scale": self.scale, **super().get_config()}


def reseeded(initializer: InitializerT, *salt: int) -> InitializerT:
    """A copy of a Keras initialiser, its integer seed mixed with `salt`.

    A layer with several kernels of one shape would fill them with the same numbers if it gave each the same seeded
    initialiser. Initialisers without an integer seed come back as plain copies.

    Args:
        initializer: a `keras.initializers.Initializer`.
        salt: non-negative integers.
    """
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] = mixed_seed(config["seed"], *salt)
    return type(initializer).from_config(config)


def mixed_seed(seed: int, *salt: int) -> int:
    """A seed in [0, 2^31), a hash of the non-negative integers given."""
    return int(np.random.SeedSequence([seed, *salt]).generate_state(1)[0] >> 1)
