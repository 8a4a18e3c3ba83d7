"""Training data that `ExactResume` can resume, one class for each kind.

base           interface of all kinds
random_access  batches that are a function of the step: arrays, PyDataset, Grain's MapDataset, `Batches`
iterators      data with a serializable iterator: Grain's IterDataset and DataLoader
tf_data        tf.data.Dataset
"""

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf.callbacks._sources import random_access
from idmatters_tf.callbacks._sources.base import Source
from idmatters_tf.callbacks._sources.iterators import GrainIterator
from idmatters_tf.callbacks._sources.random_access import has_hooks as has_hooks
from idmatters_tf.callbacks._sources.tf_data import TensorFlowDataset
from idmatters_tf.callbacks.batches import Batches

_FUNCTION = "Use `FunctionBatches(step_to_batch, steps_per_epoch=...)`"


def make_source(fit: RunningFit, seed: int) -> Source:
    """Return the source of the training data of a running `fit`.

    Args:
        fit: the running `fit`.
        seed: seed of the order if `fit` shuffles.

    Raises:
        ValueError: the data cannot be resumed exactly.
    """
    if isinstance(fit.data, Batches):
        return random_access.RandomAccess(fit.data, fit.steps_per_epoch)
    if fit.kind == "arrays":
        return random_access.make_source_from_arrays(fit, seed)
    if fit.kind == "a PyDataset":
        return random_access.make_source_from_py_dataset(fit, seed)
    if fit.kind == "a Grain dataset" and hasattr(fit.data, "to_iter_dataset"):
        return random_access.make_source_from_map_dataset(fit)
    if fit.kind == "a Grain dataset":
        return GrainIterator(fit)
    if fit.kind == "a tf.data.Dataset":
        return TensorFlowDataset(fit)
    raise ValueError(f"ExactResume cannot restore the position of {fit.kind}. {_FUNCTION} instead.")
