"""Derivatives on TensorFlow: gradient tapes, and Hessian products by reverse over reverse (Pearlmutter, 1994)."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf._tensorflow_internals.second_derivatives import differentiable, differentiable_twice, is_recording
from idmatters_tf.autodiff._protocol import LinearMap, Tensors

FEWEST_VECTORS = 2
# In graphs, recurrent layers that are not unrolled cannot be vectorized.
VECTORIZATION_ERRORS = (ValueError, NotImplementedError, tf.errors.OpError)


def tensors(structure: Structure) -> Structure:
    """See `Backend.tensors`."""
    return tf.nest.map_structure(lambda part: None if part is None else tf.convert_to_tensor(part), structure)


def gradient(function: Callable[[Tensors], Tensor], point: Tensors) -> tuple[Tensor, Tensors]:
    """See `Backend.gradient`."""
    point = _separate(point)
    with _raise_missing_gradient(), _differentiable_again():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(point)
            value = tf.convert_to_tensor(function(point))
        return value, _gradient(tape, value, point)


def linearize(
    function: Callable[[Tensors], tuple[Tensors, Structure]], point: Tensors
) -> tuple[Tensors, Structure, LinearMap, LinearMap]:
    """See `Backend.linearize`. J v is the derivative of J^T u with respect to u, without forward-mode derivatives."""
    point = _separate(point)
    tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
    with _raise_missing_gradient(), _differentiable_again(), tape:
        tape.watch(point)
        outputs, auxiliary = function(point)
        outputs = _separate(outputs)
    directions = [tf.zeros_like(output) for output in outputs]
    transposing = tf.GradientTape(persistent=True, watch_accessed_variables=False)
    with _raise_missing_gradient(), differentiable_twice(), transposing:
        transposing.watch(directions)
        transposed = _gradient(tape, outputs, point, directions)

    def jvp(vector: Tensors) -> Tensors:
        with _raise_missing_gradient(), _differentiable_again():
            return _gradient(transposing, transposed, directions, vector)

    def vjp(vector: Tensors) -> Tensors:
        with _raise_missing_gradient(), _differentiable_again():
            return _gradient(tape, outputs, point, vector)

    return outputs, auxiliary, jvp, vjp


def hessian_product(function: Callable[[Tensors], Tensor], point: Tensors) -> LinearMap:
    """See `Backend.hessian_product`."""
    point = _separate(point)
    outer = tf.GradientTape(persistent=True, watch_accessed_variables=False)
    with _raise_missing_gradient(), differentiable_twice(), outer:
        outer.watch(point)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(point)
            value = tf.convert_to_tensor(function(point))
        slope = _gradient(inner, value, point)

    def product(vector: Tensors) -> Tensors:
        with _raise_missing_gradient(), differentiable_twice():
            return _gradient(outer, slope, point, vector)

    return product


def batched(linear_map: Callable[[Structure], Structure]) -> Callable[[Structure], Structure]:
    """See `Backend.batched`. Outside graphs, the map is traced once for the shapes of the first call."""

    def mapped(vectors: Structure) -> Structure:
        return tf.vectorized_map(linear_map, vectors)

    traced: list[Callable[[Structure], Structure]] = []

    def call(vectors: Structure) -> Structure:
        with _quiet():
            if not tf.executing_eagerly():
                return mapped(vectors)
            if not traced:
                traced.append(tf.function(mapped, autograph=False).get_concrete_function(vectors))
            return traced[0](vectors)

    return call


class Compiler:
    """See `_protocol.Compiler`. The variables are read inside the graphs.

    A function is traced for the first shape of batches, and then once for all shapes that differ in the same axes:
    batches differ in the number of examples, and batches of sequences also in length.
    """

    def __init__(self, variables: Sequence[keras.Variable]):
        self._variables = list(variables)
        # By method and the shapes of the shared arguments, which are not generalized.
        self._functions: dict[tuple[object, ...], Any] = {}
        # False after a layer has failed on unknown sizes, as Keras' UpSampling2D does.
        self._generalizes = True

    def __call__(self, method: Callable[..., Structure], batch: Structure, *arguments: Tensor) -> Structure:
        key = (method.__name__, *(tuple(argument.shape) for argument in arguments))
        with _raise_missing_gradient(), differentiable_twice(), _quiet():
            function = self._traced(key, method)
            generalized = self._generalizes and function.experimental_get_tracing_count()
            try:
                return function(batch, *arguments)
            except Exception:
                if not generalized:
                    raise
                self._generalizes = False
                self._functions.clear()
                return self._traced(key, method)(batch, *arguments)

    def _traced(self, key: tuple[object, ...], method: Callable[..., Structure]) -> Any:
        # The compiled functions must not refer to the compiler.
        variables = self._variables

        def compiled(*arguments: Structure) -> Structure:
            return method([variable.value for variable in variables], *arguments)

        if key not in self._functions:
            self._functions[key] = tf.function(compiled, autograph=False, reduce_retracing=self._generalizes)
        return self._functions[key]


def _separate(tensors: Tensors) -> Tensors:
    """Return new tensors with the same values.

    Tapes distinguish tensors by identity. The given ones may occur several times, or in closures of the function.
    """
    return [tf.identity(tensor) for tensor in tensors]


def _gradient(
    tape: tf.GradientTape, target: Structure, sources: Tensors, output_gradients: Structure = None
) -> Tensors:
    """Return the gradient, with zeros for unused sources, and dense because nested tapes cannot use IndexedSlices."""
    gradients = tape.gradient(
        target, sources, output_gradients=output_gradients, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [tf.convert_to_tensor(part) for part in gradients]


def _differentiable_again() -> contextlib.AbstractContextManager[None]:
    """Return `differentiable_twice` where results may be differentiated again: in graphs and under other tapes."""
    if tf.executing_eagerly() and not is_recording():
        return differentiable()
    return differentiable_twice()


@contextlib.contextmanager
def _raise_missing_gradient() -> Iterator[None]:
    """Raise ValueError if an operation has no gradient. Inside graphs, the outermost call raises it."""
    try:
        yield
    except Exception as error:
        # Inside a loop, the error occurs when the graph runs.
        reason = (str(error).strip().splitlines() or [""])[-1]
        if tf.executing_eagerly() and ("gradient registry" in reason or "SymbolicGradient" in reason):
            raise ValueError(
                f"TensorFlow cannot differentiate this function twice: {reason}. Use KERAS_BACKEND=jax."
            ) from error
        raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the messages of TensorFlow's Python code on retracing and on operations that it cannot vectorize."""

    def rejected(record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger("tensorflow")
    logger.addFilter(rejected)
    try:
        yield
    finally:
        logger.removeFilter(rejected)
