"""Compiled functions on TensorFlow, with as few traces as the shapes of batches allow, on one or more devices.

Several devices are the replicas of the `tf.distribute.MirroredStrategy` in whose scope a compiler is created.
"""

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from idmatters_tf._tensorflow_internals.second_derivatives import differentiable_twice

# Shapes of the tensors of a batch; None is any size.
Shapes = tuple[tuple[int | None, ...], ...]


class TracedFunction:
    """Function traced for the first two shapes of batches, and then once for all shapes that differ in the same axes.

    Batches differ in the number of examples, and batches of sequences also in length. Calling a `tf.function` directly
    would warn of retracing after a few operators, because traces are counted by source location.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function: Any = tf.function(function, autograph=False)
        self._graphs: dict[Any, dict[Shapes, Any]] = {}
        # False after a layer has failed on unknown sizes, as Keras' UpSampling2D does.
        self._generalizes = True

    def __call__(self, batch: Any, *arguments: Any) -> Any:
        tensors = [tensor for tensor in tf.nest.flatten(batch) if tensor is not None]
        kinds = tuple((tensor.dtype, len(tensor.shape)) for tensor in tensors)
        graphs = self._graphs.setdefault((kinds, *(tuple(argument.shape) for argument in arguments)), {})
        shapes: Shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        key = next((known for known in graphs if _fits(known, shapes)), None)
        if key is None and len(graphs) >= 2 and self._generalizes:
            key = _generalize([*graphs, shapes])
            try:
                graphs[key] = self._trace(batch, key, arguments)
            except Exception:
                key, self._generalizes = None, False
        if key is None:
            key = shapes
            graphs[key] = self._trace(batch, key, arguments)
        return graphs[key](batch, *arguments)

    def _trace(self, batch: Any, shapes: Shapes, arguments: Sequence[Any]) -> Any:
        sizes = iter(shapes)
        specification = tf.nest.map_structure(
            lambda tensor: None if tensor is None else tf.TensorSpec(next(sizes), tensor.dtype), batch
        )
        with differentiable_twice(), quiet():
            return self.function.get_concrete_function(specification, *arguments)


def _fits(known: Shapes, shapes: Shapes) -> bool:
    """Return True if a graph for the known shapes accepts the given shapes."""
    return all(
        size is None or size == other
        for sizes, others in zip(known, shapes, strict=True)
        for size, other in zip(sizes, others, strict=True)
    )


def _generalize(found: Sequence[Shapes]) -> Shapes:
    """Return the sizes that all shapes have in common, and None for the others."""
    return tuple(
        tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
        for shapes in zip(*found, strict=True)
    )


class Compiler:
    """See `_interface.Compiler`. The variables are read inside the graphs."""

    def __init__(self, variables: Sequence[keras.Variable]):
        self._strategy: Any = tf.distribute.get_strategy()
        self.replicas = int(self._strategy.num_replicas_in_sync)
        if isinstance(
            self._strategy,
            (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.experimental.ParameterServerStrategy),
        ):
            raise ValueError(
                f"Derivatives require a single machine. Received: {type(self._strategy).__name__}. Use "
                f"tf.distribute.MirroredStrategy or no strategy."
            )
        self._variables = list(variables)
        self._traces: dict[str, TracedFunction] = {}
        # TensorFlow's graphs contain reference cycles, about a megabyte per operator, which are collected here.
        weakref.finalize(self, _release, self._traces).atexit = False

    def __call__(self, method: Callable[..., Any], parts: Sequence[tuple[Any, ...]], *arguments: Any) -> Any:
        traced = self._traces.get(method.__name__)
        if traced is None:
            traced = self._traces[method.__name__] = TracedFunction(self._function(method))
        with raise_missing_gradient():
            if self.replicas == 1:
                return traced(*parts[0], *arguments)
            spread = [self._spread(values) for values in zip(*parts, strict=True)]
            with differentiable_twice(), quiet():
                return traced.function(*spread, *arguments)

    def _function(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to trace."""
        variables, strategy = self._variables, self._strategy

        def on_replica(*arguments: Any) -> Any:
            return method([variable.value for variable in variables], *arguments)

        def on_replicas(*arguments: Any) -> Any:
            results = strategy.run(on_replica, args=arguments)
            return tf.nest.map_structure(
                lambda result: strategy.reduce(tf.distribute.ReduceOp.SUM, result, axis=None), results
            )

        return on_replica if self.replicas == 1 else on_replicas

    def _spread(self, values: Sequence[Any]) -> Any:
        """Return one value for each replica."""
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group]
        )


def _release(traces: dict[str, TracedFunction]) -> None:
    """Free the graphs of an unused compiler."""
    traces.clear()
    gc.collect()


@contextlib.contextmanager
def raise_missing_gradient() -> Iterator[None]:
    """Raise ValueError if an operation has no gradient. Inside graphs, the outermost call raises it."""
    try:
        yield
    except Exception as error:
        reason = _missing_gradient(error) if tf.executing_eagerly() else None
        if reason is None:
            raise
        raise ValueError(
            f"TensorFlow cannot differentiate this function twice: {reason}. Use KERAS_BACKEND=jax."
        ) from error


def _missing_gradient(error: Exception) -> str | None:
    """Return TensorFlow's message for an operation without a gradient, or None for other errors.

    Tracing wraps the error in another one. Inside a loop, the error occurs when the graph runs.
    """
    for cause in (error, error.__context__):
        lines = str(cause).strip().splitlines()
        if lines and ("gradient registry" in lines[-1] or "SymbolicGradient" in lines[-1]):
            return lines[-1].strip()
    return None


@contextlib.contextmanager
def quiet(level: int | None = None) -> Iterator[None]:
    """Suppress the messages of `vectorized_map` about gradients of kernels that it computes in a loop.

    Args:
        level: logging level up to which all other messages are also suppressed.
    """

    def wanted(record: logging.LogRecord) -> bool:
        return "uses a while_loop" not in str(record.msg) and (level is None or record.levelno > level)

    logger = logging.getLogger("tensorflow")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
