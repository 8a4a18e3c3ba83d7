"""Compiled functions on TensorFlow: graphs traced as rarely as the shapes of batches allow, on one or more devices.

With several devices, these are the replicas of the `tf.distribute.MirroredStrategy` in whose scope a compiler is made.
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

# The shapes of a batch's tensors; None for a size that may be any.
Shapes = tuple[tuple[int | None, ...], ...]


class Traced:
    """A function traced for the first two shapes of batches, and then once for all that differ in the same axes.

    Batches differ in the number of examples, and those of sequences in their length. Calling a `tf.function` itself
    would warn of retracing as soon as a few operators have been made: it counts by the place in the source.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function: Any = tf.function(function, autograph=False)
        self._graphs: dict[Any, dict[Shapes, Any]] = {}
        # False once a layer has failed on sizes that are not known, as Keras' UpSampling2D does.
        self._generalizes = True

    def __call__(self, batch: Any, *arguments: Any) -> Any:
        tensors = [tensor for tensor in tf.nest.flatten(batch) if tensor is not None]
        kinds = tuple((tensor.dtype, len(tensor.shape)) for tensor in tensors)
        graphs = self._graphs.setdefault((kinds, *(tuple(argument.shape) for argument in arguments)), {})
        shapes: Shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        key = next((known for known in graphs if _fits(known, shapes)), None)
        if key is None and len(graphs) >= 2 and self._generalizes:
            key = _in_common([*graphs, shapes])
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
    """Whether a graph for the known shapes takes those."""
    return all(
        size is None or size == other
        for sizes, others in zip(known, shapes, strict=True)
        for size, other in zip(sizes, others, strict=True)
    )


def _in_common(found: Sequence[Shapes]) -> Shapes:
    """The sizes that are the same in all, and None for the others."""
    return tuple(
        tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*of_tensor, strict=True))
        for of_tensor in zip(*found, strict=True)
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
                "Derivatives are computed on one machine: leave the scope of the multi-worker strategy, or use "
                "tf.distribute.MirroredStrategy."
            )
        self._variables = list(variables)
        self._traces: dict[str, Traced] = {}
        # TensorFlow's graphs are full of cycles, a megabyte for each operator, which would wait for a later collection.
        weakref.finalize(self, _release, self._traces).atexit = False

    def __call__(self, method: Callable[..., Any], parts: Sequence[tuple[Any, ...]], *arguments: Any) -> Any:
        traced = self._traces.get(method.__name__)
        if traced is None:
            traced = self._traces[method.__name__] = Traced(self._function(method))
        with explained():
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


def _release(traces: dict[str, Traced]) -> None:
    """Free the graphs of a compiler that is no longer used."""
    traces.clear()
    gc.collect()


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise ValueError where an operation has no gradient. Inside of graphs the error is left to the outermost call."""
    try:
        yield
    except Exception as error:
        reason = _missing_gradient(error) if tf.executing_eagerly() else None
        if reason is None:
            raise
        raise ValueError(
            f"TensorFlow cannot differentiate this function twice: {reason}. Use KERAS_BACKEND=jax, which can."
        ) from error


def _missing_gradient(error: Exception) -> str | None:
    """Return the message of TensorFlow where an operation has no gradient, None for all other errors.

    Tracing wraps the error in one of its own. Inside a loop nothing is noticed before the graph runs.
    """
    for cause in (error, error.__context__):
        lines = str(cause).strip().splitlines()
        if lines and ("gradient registry" in lines[-1] or "SymbolicGradient" in lines[-1]):
            return lines[-1].strip()
    return None


@contextlib.contextmanager
def quiet(level: int | None = None) -> Iterator[None]:
    """Suppress the line that `vectorized_map` logs for each gradient of a kernel that it computes in a loop.

    Args:
        level: also suppress all messages up to this level.
    """

    def wanted(record: logging.LogRecord) -> bool:
        return "uses a while_loop" not in str(record.msg) and (level is None or record.levelno > level)

    logger = logging.getLogger("tensorflow")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
