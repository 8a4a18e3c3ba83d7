"""Deep linear networks as Keras models, and the conversion of weights to and from `idmatters_tf.linear`.

In `idmatters_tf.linear`, weights are arrays W of shape (units, n, dim, dim) that multiply columns. A Keras kernel
multiplies rows and is the transpose. Hardt & Ma's A is W[:, 0] of a `linear_residual`.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict, Unpack

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._conventions import decay_regularizer
from idmatters_tf._keras_types import Tensor
from idmatters_tf._seeds import reseed
from idmatters_tf.initializers import ScaledGlorot
from idmatters_tf.layers import LinearResidual, ShortcutUnit

Initializer: TypeAlias = str | keras.initializers.Initializer | None
Activation: TypeAlias = str | Callable[[Tensor], Tensor] | None


class _ChainOptions(TypedDict, total=False):
    weight_decay: float
    seed: int


def linear_residual(
    dim: int,
    depth: int,
    kernel_initializer: Initializer = "zeros",
    weight_decay: float = 0.0,
    seed: int = 0,
    name: str = "linear_residual",
) -> keras.Model:
    """Build a chain of layers h + A h.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Eq. 2.1.

    Args:
        dim: dimension of the vectors.
        depth: number of layers.
        kernel_initializer: initializer of every layer. "zeros" is the identity map. None is `ScaledGlorot(seed=seed)`.
            An integer seed is mixed with the number of the layer.
        weight_decay: rate in rate * ||A||_F^2 / 2.
        seed: seed of the default initializer.
        name: name of the model.

    Returns:
        A `keras.Model` from (batch, dim) to (batch, dim).
    """
    return _chain(dim, depth, LinearResidual, kernel_initializer, name, weight_decay, seed)


def plain(
    dim: int,
    depth: int,
    kernel_initializer: Initializer = None,
    *,
    name: str = "plain",
    **options: Unpack[_ChainOptions],
) -> keras.Model:
    """Build a chain of layers W h: the standard parameterization.

    The arguments, with `weight_decay` and `seed`, and the result are those of `linear_residual`. Li et al. compare the
    initializers "glorot_normal" (with a seed: `keras.initializers.GlorotNormal`) and `keras.initializers.Orthogonal`.
    The default, `ScaledGlorot`, is the former times 0.01, near the bad critical point at zero.
    """
    unit = functools.partial(keras.layers.Dense, dim, use_bias=False)
    return _chain(dim, depth, unit, kernel_initializer, name, **options)


def shortcut_network(
    dim: int,
    units: int,
    shortcut_depth: int,
    pre: Activation = None,
    mid: Activation = None,
    post: Activation = None,
    *,
    shortcut: bool = True,
    kernel_initializer: Initializer = None,
    name: str = "shortcut_network",
    **options: Unpack[_ChainOptions],
) -> keras.Model:
    """Build a chain of n-shortcut units, h + post(W_n mid(... mid(W_1 pre(h)))).

    Source: Li et al., *Demystifying ResNet*, Definitions 2 and 3 and Eq. 5.

    Args:
        dim: dimension of the vectors.
        units: number R of units.
        shortcut_depth: number n of kernels in a unit.
        pre: activation before the first kernel; None is linear.
        mid: activation between kernels; None is linear.
        post: activation after the last kernel; None is linear.
        shortcut: False omits the identity, for plain networks with activations at the same places.
        kernel_initializer: the default `ScaledGlorot` (Xavier times 0.01) is the paper's.
        name: name of the model.
        options: `weight_decay` and `seed`, see `linear_residual`.
    """
    unit = functools.partial(ShortcutUnit, shortcut_depth, pre, mid, post, shortcut)
    return _chain(dim, units, unit, kernel_initializer, name, **options)


def get_weights(model: keras.Model) -> NDArray[np.float64]:
    """Return the weights of a model in the form of `idmatters_tf.linear`.

    Args:
        model: a network of this module.

    Returns:
        (units, n, dim, dim) float64, without rounding.
    """
    kernels = [[np.asarray(keras.ops.convert_to_numpy(kernel)).T for kernel in unit] for unit in _kernels(model)]
    return np.array(kernels, dtype=np.float64)


def assign_weights(model: keras.Model, W: ArrayLike) -> None:
    """Set the weights of a model, rounded to its dtype. The inverse of `get_weights`.

    Args:
        model: a network of this module.
        W: (units, n, dim, dim), or (depth, dim, dim) for `linear_residual` and `plain`.

    Raises:
        ValueError: `W` has another shape.
    """
    kernels = _kernels(model)
    expected = (len(kernels), len(kernels[0]), *kernels[0][0].shape)
    W = np.asarray(W)
    if W.ndim == 3 and expected[1] == 1:
        W = W[:, None]
    if W.shape != expected:
        raise ValueError(
            f"Argument `W` must have the shape of the model {model.name!r}, {expected}. Received: shape {W.shape}"
        )
    for unit, matrices in zip(kernels, W, strict=True):
        for kernel, matrix in zip(unit, matrices, strict=True):
            kernel.assign(matrix.T)


def _kernels(model: keras.Model) -> list[list[Any]]:
    """Return the kernels of each unit, in the order of application."""
    return [getattr(layer, "kernels", None) or [layer.kernel] for layer in model.layers if layer.weights]


def _chain(
    dim: int,
    units: int,
    unit: Callable[..., keras.Layer],
    kernel_initializer: Initializer,
    name: str,
    weight_decay: float = 0.0,
    seed: int = 0,
) -> keras.Model:
    dim = positive_integer("dim", dim)
    units = positive_integer("units", units)
    regularizer = decay_regularizer(weight_decay)
    chosen: Any = keras.initializers.get(kernel_initializer)
    initializer: keras.initializers.Initializer = chosen or ScaledGlorot(seed=seed)
    # By default Keras rounds float64 inputs to float32 under every policy.
    inputs = outputs = keras.Input((dim,), dtype=keras.config.dtype_policy().variable_dtype, name="vectors")
    for number in range(units):
        options = {"kernel_regularizer": regularizer, "name": f"unit{number + 1}"}
        outputs = unit(kernel_initializer=reseed(initializer, number), **options)(outputs)
    return keras.Model(inputs, outputs, name=name)
