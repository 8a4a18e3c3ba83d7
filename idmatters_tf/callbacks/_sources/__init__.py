"""Training data that `ExactResume` can resume, one class for each kind.

base           interface of all kinds
random_access  batches that are a function of the step: arrays, PyDataset, Grain's MapDataset, `Batches`
"""

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf.callbacks._sources.base import Source
from idmatters_tf.callbacks._sources.random_access import RandomAccess, with_epochs_of
from idmatters_tf.callbacks.batches import Batches


def source_of(fit: RunningFit, seed: int) -> Source:
    """Return the source of the training data of a running `fit`.

    Args:
        fit: the running `fit`.
        seed: seed of orders that `fit` would draw.

    Raises:
        ValueError: the data cannot be resumed exactly.
    """
    if isinstance(fit.data, Batches):
        return RandomAccess(with_epochs_of(fit.data, fit.steps_per_epoch))
    raise ValueError(
        "ExactResume needs training data that can be entered at any batch: give `fit` "
        "`ArrayBatches(x, y, batch_size=..., seed=...)` or `FunctionBatches(step_to_batch, steps_per_epoch=...)` "
        "in place of arrays, a tf.data.Dataset, a generator or another PyDataset, whose position it cannot restore."
    )
