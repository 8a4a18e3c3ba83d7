"""Training data that `ExactResume` can resume: common interface and choice of the class.

random_access  batches that are a function of the step: arrays, PyDataset, Grain's MapDataset, `Batches`
iterators      data with a serializable iterator: Grain's IterDataset and DataLoader
tf_data        a serializable iterator of a tf.data.Dataset
replay         any data, read again from the beginning of `fit`
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import keras

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf._keras_types import Structure
from idmatters_tf._tensorflow_internals.pipelines import is_dataset
from idmatters_tf.callbacks.batches import Batches

if TYPE_CHECKING:
    from idmatters_tf.callbacks._sources.tf_data import ValidationOrder


class Source:
    """Training data of a running `fit`, with a position that can be saved and restored.

    `ExactResume` calls, in this order: `attach`; `restore` if there is a checkpoint; `seek` before each epoch; `state`
    for each checkpoint; `close`. Constructors raise ValueError for data that are not deterministic.

    Attributes:
        steps_per_epoch: number of batches in an epoch.
        first_batch: first batch of the data as NumPy arrays: (x,), (x, y) or (x, y, sample_weight).
        digest: checksum of the first batch.
        order: arguments that determine the order of the batches. The first batch may be equal by chance.
        objects: objects whose attributes are restored as those of callbacks.
    """

    steps_per_epoch: int
    first_batch: Structure
    digest: int
    order: Mapping[str, object] = {}
    objects: Sequence[object] = ()

    def attach(self, fit: RunningFit) -> None:
        """Make the running `fit` take its batches from this source."""
        raise NotImplementedError

    def seek(self, epoch: int, offset: int = 0) -> None:
        """Begin the next pass of `fit` at a batch of an epoch. After `restore`, it is the batch that was restored."""
        raise NotImplementedError

    def state(self, offset: int) -> object:
        """Return the state for a checkpoint as plain data and arrays, or None if the position is sufficient.

        Args:
            offset: index of the next training batch in its epoch. The data may be loaded further ahead.
        """
        return None

    def restore(self, state: object) -> None:
        """Restore the result of `state`. Raise ValueError if the data differ from those of the checkpoint."""

    def close(self) -> None:
        """Release the data after the last epoch."""


def choose_steps_per_epoch(fit: RunningFit, length: int | None) -> int:
    """Return the number of batches in an epoch of `fit`, by default that of the data, None if infinite or unknown."""
    steps = fit.steps_per_epoch or length
    if steps is None:
        remedy = "Pass `steps_per_epoch` to `fit`"
        if fit.kind == "a tf.data.Dataset":
            remedy += ", or `dataset.apply(tf.data.experimental.assert_cardinality(N))` for N batches. Instead of "
            remedy += "`from_generator`, pass `FunctionBatches(step_to_batch, steps_per_epoch=N)`"
        raise ValueError(f"The length of the training data, {fit.kind}, is infinite or unknown. {remedy}.")
    return steps


def take_first(batches: Iterator[Structure]) -> Structure:
    """Return the first batch of an iterator. Raise ValueError if there is none."""
    for batch in batches:
        return batch
    raise ValueError("The training data are empty. Pass at least one batch to `fit`.")


def make_source(fit: RunningFit, seed: int, replay: bool = False) -> Source:
    """Return the source of the training data of a running `fit`, with the arguments of `ExactResume`.

    Raises:
        ValueError: the data cannot be resumed exactly.
    """
    from idmatters_tf.callbacks._sources import random_access
    from idmatters_tf.callbacks._sources.iterators import GrainIterator
    from idmatters_tf.callbacks._sources.replay import KINDS, Replay
    from idmatters_tf.callbacks._sources.tf_data import TensorFlowDataset

    if replay and fit.kind in KINDS and not isinstance(fit.data, Batches):
        return Replay(fit, seed)
    if getattr(fit.data, "source", None) is not None and keras.backend.backend() == "tensorflow":
        return random_access.AnyStepDataset(fit.data)
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
    raise ValueError(
        f"ExactResume cannot restore the position of {fit.kind}. Use `FunctionBatches(step_to_batch, "
        f"steps_per_epoch=...)` instead, or pass ExactResume(..., replay=True)."
    )


def make_validation_order(fit: RunningFit) -> "ValidationOrder | None":
    """Return the order of validation data in a `tf.data.Dataset`; None for other data.

    Raises:
        ValueError: the order cannot be restored.
    """
    x = validation_inputs(fit)
    if inspect.isgenerator(x):
        raise ValueError(
            "The validation data are a generator, whose position ExactResume cannot restore. Pass arrays, a "
            "tf.data.Dataset or a PyDataset."
        )
    if not is_dataset(x):
        return None
    from idmatters_tf.callbacks._sources.tf_data import ValidationOrder

    return ValidationOrder(x)


def validation_inputs(fit: RunningFit) -> object:
    """Return the first part of the validation data, or all if they are one object."""
    data = fit.validation_data
    return data[0] if isinstance(data, (tuple, list)) and len(data) else data
