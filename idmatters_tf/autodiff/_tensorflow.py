"""Derivatives on TensorFlow: gradient tapes, and Hessian products by reverse over reverse (Pearlmutter, 1994)."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from idmatters_tf._tensorflow_internals.second_derivatives import differentiable_twice, is_recording
from idmatters_tf.autodiff._backend import CannotVectorize, LinearMap, Tensors
from idmatters_tf.autodiff._tensorflow_graphs import Compiler, quiet, raise_missing_gradient

__all__ = [
    "FEWEST_VECTORS",
    "Compiler",
    "batched",
    "gradient",
    "hessian_product",
    "linearize",
    "tensors",
    "vectorizing",
]

FEWEST_VECTORS = 2


def tensors(structure: Any) -> Any:
    """See `Backend.tensors`."""
    return tf.nest.map_structure(lambda part: None if part is None else tf.convert_to_tensor(part), structure)


def gradient(function: Callable[[Tensors], Any], point: Tensors) -> tuple[Any, Tensors]:
    """See `Backend.gradient`."""
    point = _separate(point)
    with raise_missing_gradient(), _differentiable_again():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(point)
            value = tf.convert_to_tensor(function(point))
        return value, _gradient(tape, value, point)


def linearize(
    function: Callable[[Tensors], tuple[Tensors, Any]], point: Tensors
) -> tuple[Tensors, Any, LinearMap, LinearMap]:
    """See `Backend.linearize`. J v is the derivative of J^T u with respect to u, without forward-mode derivatives."""
    point = _separate(point)
    tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
    with raise_missing_gradient(), _differentiable_again(), tape:
        tape.watch(point)
        outputs, auxiliary = function(point)
        outputs = _separate(outputs)
    directions = [tf.zeros_like(output) for output in outputs]
    transposing = tf.GradientTape(persistent=True, watch_accessed_variables=False)
    with raise_missing_gradient(), differentiable_twice(), transposing:
        transposing.watch(directions)
        transposed = _gradient(tape, outputs, point, directions)

    def jvp(vector: Tensors) -> Tensors:
        with raise_missing_gradient(), _differentiable_again():
            return _gradient(transposing, transposed, directions, vector)

    def vjp(vector: Tensors) -> Tensors:
        with raise_missing_gradient(), _differentiable_again():
            return _gradient(tape, outputs, point, vector)

    return outputs, auxiliary, jvp, vjp


def hessian_product(function: Callable[[Tensors], Any], point: Tensors) -> LinearMap:
    """See `Backend.hessian_product`."""
    point = _separate(point)
    outer = tf.GradientTape(persistent=True, watch_accessed_variables=False)
    with raise_missing_gradient(), differentiable_twice(), outer:
        outer.watch(point)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(point)
            value = tf.convert_to_tensor(function(point))
        slope = _gradient(inner, value, point)

    def product(vector: Tensors) -> Tensors:
        with raise_missing_gradient(), differentiable_twice():
            return _gradient(outer, slope, point, vector)

    return product


def batched(linear_map: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """See `Backend.batched`. Outside graphs, the map is traced once for the shapes of the first call."""

    def mapped(vectors: Any) -> Any:
        return tf.vectorized_map(linear_map, vectors)

    traced: list[Any] = []

    def call(vectors: Any) -> Any:
        if not tf.executing_eagerly():
            return mapped(vectors)
        if not traced:
            with quiet():
                traced.append(tf.function(mapped, autograph=False).get_concrete_function(vectors))
        return traced[0](vectors)

    return call


@contextlib.contextmanager
def vectorizing() -> Iterator[None]:
    """See `Backend.vectorizing`. In graphs, recurrent layers that are not unrolled cannot be vectorized."""
    try:
        with quiet(logging.ERROR):
            yield
    except (ValueError, NotImplementedError, tf.errors.OpError) as error:
        raise CannotVectorize(str(error)) from error


def _separate(tensors: Tensors) -> Tensors:
    """Return new tensors with the same values.

    Tapes distinguish tensors by identity. The given ones may occur several times, or in closures of the function.
    """
    return [tf.identity(tensor) for tensor in tensors]


def _gradient(tape: Any, target: Any, sources: Any, output_gradients: Any = None) -> Tensors:
    """Return the gradient, with zeros for unused sources, and dense because nested tapes cannot use IndexedSlices."""
    gradients = tape.gradient(target, sources, output_gradients=output_gradients, unconnected_gradients="zero")
    return [tf.convert_to_tensor(part) for part in gradients]


def _differentiable_again() -> contextlib.AbstractContextManager[None]:
    """Return `differentiable_twice` where results may be differentiated again: in graphs and under other tapes."""
    if tf.executing_eagerly() and not is_recording():
        return contextlib.nullcontext()
    return differentiable_twice()
