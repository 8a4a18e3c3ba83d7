"""Runtime of TensorFlow 2.21: traced steps, random operations, kernels and coordination. It is imported on use."""

import contextlib
import inspect
import itertools
import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction


def traced_training_steps(model: "keras.Model") -> list["ConcreteFunction"]:
    """Return the concrete functions of the training step that have been traced so far."""
    train_function = getattr(model, "train_function", None)
    if not inspect.isfunction(train_function):
        return []
    parts = list(inspect.getclosurevars(train_function).nonlocals.values())
    # Keras wraps the step for Python iterators.
    parts += [part.__wrapped__ for part in parts if hasattr(part, "__wrapped__")]
    graphs = [part._list_all_concrete_functions() for part in parts if hasattr(part, "_list_all_concrete_functions")]
    return [concrete for several in graphs for concrete in several]


def _context() -> Any:
    """Return the eager context of this process."""
    from tensorflow.python.eager import context

    return context.context()


def operation_seeds() -> random.Random | None:
    """Return the generator of the seeds of eager random operations; None without `tf.random.set_seed`."""
    if "tensorflow" not in sys.modules:
        return None
    return getattr(_context(), "_rng", None)


def restore_operation_seeds(state: tuple[object, ...]) -> None:
    """Restore the state of `operation_seeds`."""
    found = _context()
    found._rng = random.Random()
    found._rng.setstate(state)
    # An operation with a seed that was used before would continue its sequence.
    found.clear_kernel_cache()


def onednn_is_enabled() -> bool:
    """Return True if TensorFlow uses oneDNN, by TF_ENABLE_ONEDNN_OPTS or by its default for this processor."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())


def report_error(message: str) -> None:
    """Stop the operations of all workers that wait for others, with an UnavailableError of a message."""
    import tensorflow as tf

    _context().report_error_to_cluster(tf.errors.UNAVAILABLE, message)


# Number of the next barrier.
_barriers = itertools.count()


def wait_for_all_tasks(seconds: float = 10.0) -> None:
    """Wait until all tasks of the cluster have called this function as often as this one, at most some seconds.

    A task that ends while another one receives the result of their last collective operation counts as lost.
    """
    import tensorflow as tf

    found = _context()
    # The task that coordinates the others may have ended, or a task has failed.
    with contextlib.suppress(tf.errors.OpError):
        found.wait_at_barrier(f"idmatters_tf {next(_barriers)}", int(1000 * seconds))
