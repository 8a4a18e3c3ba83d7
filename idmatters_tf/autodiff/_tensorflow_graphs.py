"""Compiled functions on TensorFlow, on one or more devices.

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


class Compiler:
    """See `_backend.Compiler`. The variables are read inside the graphs.

    A function is traced for the first shape of batches, and then once for all shapes that differ in the same axes:
    batches differ in the number of examples, and batches of sequences also in length.
    """

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
        # By method and the shapes of the shared arguments, which are not generalized.
        self._functions: dict[Any, Any] = {}
        # False after a layer has failed on unknown sizes, as Keras' UpSampling2D does.
        self._generalizes = True
        # TensorFlow's graphs contain reference cycles, about a megabyte per operator, which are collected here.
        weakref.finalize(self, _release, self._functions).atexit = False

    def __call__(self, method: Callable[..., Any], parts: Sequence[tuple[Any, ...]], *arguments: Any) -> Any:
        values = parts[0] if self.replicas == 1 else [self._spread(each) for each in zip(*parts, strict=True)]
        key = (method.__name__, *(tuple(argument.shape) for argument in arguments))
        with raise_missing_gradient(), differentiable_twice(), quiet():
            function = self._traced(key, method)
            generalized = self._generalizes and function.experimental_get_tracing_count()
            try:
                return function(*values, *arguments)
            except Exception:
                if not generalized:
                    raise
                self._generalizes = False
                self._functions.clear()
                return self._traced(key, method)(*values, *arguments)

    def _traced(self, key: tuple[Any, ...], method: Callable[..., Any]) -> Any:
        if key not in self._functions:
            self._functions[key] = tf.function(
                self._function(method), autograph=False, reduce_retracing=self._generalizes
            )
        return self._functions[key]

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


def _release(functions: dict[Any, Any]) -> None:
    """Free the graphs of an unused compiler."""
    functions.clear()
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
    """Suppress the messages of `vectorized_map` about kernels that it computes in a loop, and of retracing.

    TensorFlow counts traces by source location and would warn of retracing after a few operators.

    Args:
        level: logging level up to which all other messages are also suppressed.
    """

    def wanted(record: logging.LogRecord) -> bool:
        expected = any(text in str(record.msg) for text in ("uses a while_loop", "triggered tf.function retracing"))
        return not expected and (level is None or record.levelno > level)

    logger = logging.getLogger("tensorflow")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
