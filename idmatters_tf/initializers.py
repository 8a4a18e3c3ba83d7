"""Initializers of the two papers: N(0, (1/(k^2 c))^2), N(0, (1/(k sqrt c))^2), and scaled Glorot.

A kernel has shape (spatial sizes..., input channels, output channels). c is the number of output channels and k^2 the
product of the spatial sizes, so that k = 1 for `Dense` kernels.
"""

import math
import random
from collections.abc import Sequence

import keras

from idmatters_tf._arguments import seed_number
from idmatters_tf._keras_types import Tensor


class _ScaledNormal(keras.initializers.Initializer):
    """Normal distribution whose standard deviation is a function of the shape of the kernel."""

    def __init__(self, seed: int | None = None):
        self.seed = None if seed is None else seed_number(seed, self)
        # From Python's generator, as in Keras' initializers, so that keras.utils.set_random_seed determines it.
        self._drawn_seed = random.randrange(2**31) if self.seed is None else self.seed

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if len(shape) < 2:
            raise ValueError(
                f"{type(self).__name__} needs a kernel of shape (spatial sizes..., inputs, outputs), rank 2 or more. "
                f"Received: shape={tuple(shape)}. Use 'zeros' for a bias."
            )
        return keras.random.normal(shape, stddev=self.standard_deviation(shape), dtype=dtype, seed=self._drawn_seed)

    def standard_deviation(self, shape: Sequence[int]) -> float:
        """Return the standard deviation for kernels of a shape."""
        raise NotImplementedError

    def get_config(self) -> dict[str, object]:
        return {"seed": self.seed}


@keras.saving.register_keras_serializable(package="idmatters_tf")
class IdentityNormal(_ScaledNormal):
    """N(0, (1/(k^2 c))^2): the initialization of Hardt & Ma's residual convolutions near the identity.

    Each residual branch is a small perturbation of its skip (1e-3 to 3e-4 of it in the network of Table 1). The network
    is initially near the identity map, and the noise only breaks the symmetry.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, section 4.1 (the same in all versions).

    Args:
        seed: non-negative integer for equal values at each call, or None.

    Example:

    >>> round(IdentityNormal().standard_deviation((3, 3, 16, 64)) * 576, 6)
    1.0
    """

    def standard_deviation(self, shape: Sequence[int]) -> float:
        return 1.0 / (math.prod(shape[:-2]) * shape[-1])


@keras.saving.register_keras_serializable(package="idmatters_tf")
class StandardNormal(_ScaledNormal):
    """N(0, (1/(k sqrt c))^2): the "standard" initialization that `IdentityNormal` replaces.

    Source: Hardt & Ma, section 4.1. Their TensorFlow base code uses sqrt(2) times this deviation (He et al., 2015).

    Args:
        seed: non-negative integer for equal values at each call, or None.

    Example:

    >>> round(StandardNormal().standard_deviation((3, 3, 16, 64)) * 24, 6)
    1.0
    """

    def standard_deviation(self, shape: Sequence[int]) -> float:
        return 1.0 / math.sqrt(math.prod(shape[:-2]) * shape[-1])


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ScaledGlorot(_ScaledNormal):
    """Glorot's normal distribution times a small factor: Li et al.'s initialization near zero ("Xavier x 0.01").

    The standard deviation is `scale * sqrt(2 / (fan_in + fan_out))`. The distribution is not truncated.

    Source: Li et al., *Demystifying ResNet*, section 4.1; Glorot & Bengio (2010), Eq. 12 for the variance.

    Args:
        scale: factor; 0.01 in the paper, 1 for Glorot's distribution.
        seed: non-negative integer for equal values at each call, or None.

    Example:

    >>> round(ScaledGlorot(scale=0.5).standard_deviation((4, 4)), 6)
    0.25
    """

    def __init__(self, scale: float = 0.01, seed: int | None = None):
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(
                f"Argument `scale` of ScaledGlorot must be a positive number. Received: scale={scale}. "
                "Use keras.initializers.Zeros() for zero."
            )
        super().__init__(seed=seed)
        self.scale = scale

    def standard_deviation(self, shape: Sequence[int]) -> float:
        field = math.prod(shape[:-2])
        return self.scale * math.sqrt(2.0 / (field * (shape[-2] + shape[-1])))

    def get_config(self) -> dict[str, object]:
        return {"scale": self.scale, **super().get_config()}
