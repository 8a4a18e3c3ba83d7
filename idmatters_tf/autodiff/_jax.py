"""Derivatives on JAX: `jax.grad`, `jax.linearize`, and Hessian products as forward derivatives of the gradient."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from idmatters_tf._keras_internals import substitute_values
from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf.autodiff._protocol import LinearMap, Tensors

FEWEST_VECTORS = 1
VECTORIZATION_ERRORS = ()


def tensors(structure: Structure) -> Structure:
    """See `Backend.tensors`. Tensors of a tf.data.Dataset are also converted."""
    return keras.tree.map_structure(lambda part: None if part is None else jnp.asarray(np.asarray(part)), structure)


def gradient(function: Callable[[Tensors], Tensor], point: Tensors) -> tuple[Tensor, Tensors]:
    """See `Backend.gradient`."""
    return jax.value_and_grad(function)(point)


def linearize(
    function: Callable[[Tensors], tuple[Tensors, Structure]], point: Tensors
) -> tuple[Tensors, Structure, LinearMap, LinearMap]:
    """See `Backend.linearize`."""
    outputs, jvp, auxiliary = jax.linearize(function, point, has_aux=True)
    transposed = jax.linear_transpose(jvp, point)
    return outputs, auxiliary, jvp, lambda vector: transposed(vector)[0]


def hessian_product(function: Callable[[Tensors], Tensor], point: Tensors) -> LinearMap:
    """See `Backend.hessian_product`."""
    slope = jax.grad(function)
    return lambda vector: jax.jvp(slope, (point,), (vector,))[1]


def batched(linear_map: Callable[[Structure], Structure]) -> Callable[[Structure], Structure]:
    """See `Backend.batched`."""
    return jax.vmap(linear_map)


class _OtherVariables(Exception):
    """Variables that a trace has read and that are not arguments of the compiled function."""


class Compiler:
    """See `_protocol.Compiler`. All variables are arguments of the compiled functions and not constants.

    A function that reads other variables, such as those of a loss, is traced again with these as arguments.
    """

    def __init__(self, variables: Sequence[keras.Variable]):
        self._variables = list(variables)
        # The compiled function and the other variables that it reads, by method.
        self._compiled: dict[str, tuple[Callable[..., Structure], tuple[keras.Variable, ...]]] = {}

    def __call__(self, method: Callable[..., Structure], batch: Structure, *arguments: Tensor) -> Structure:
        name = method.__name__
        values = [variable.value for variable in self._variables]
        while True:
            compiled, others = self._compiled.setdefault(name, (_compile(method, ()), ()))
            try:
                return compiled(values, [variable.value for variable in others], batch, *arguments)
            except _OtherVariables as error:
                others = (*others, *error.args)
                self._compiled[name] = _compile(method, others), others


def _compile(method: Callable[..., Structure], others: Sequence[keras.Variable]) -> Callable[..., Structure]:
    def compiled(values: Tensors, other_values: Tensors, *arguments: Structure) -> Structure:
        with substitute_values(zip(others, other_values, strict=True)) as read:
            result = method(values, *arguments)
        if read:
            raise _OtherVariables(*read.values())
        return result

    return jax.jit(compiled)
