"""Training data with random access: each batch is a function of its step."""

from typing import Any

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf.callbacks._sources.base import Source
from idmatters_tf.callbacks.batches import Batches, FunctionBatches


class RandomAccess(Source):
    """Batches that are a function of the step.

    Args:
        batches: the batches, which `fit` takes in place of the data that it was given.
    """

    def __init__(self, batches: Batches):
        self._batches = batches
        self.steps_per_epoch = batches.steps_per_epoch

    def first_batch(self) -> Any:
        return self._batches.arrays(0)

    def digest(self) -> str:
        digest = self._batches.digest(0)
        if self._batches.digest(0) != digest:
            raise ValueError(
                "The batches must be a function of the step, but batch 0 differs from one call to the next. Draw "
                "random numbers from the step, as in `numpy.random.default_rng((seed, step))`."
            )
        return digest

    def attach(self, fit: RunningFit) -> None:
        self.seek(0)
        fit.take_batches_of(self._batches)

    def seek(self, epoch: int, offset: int = 0) -> None:
        self._batches.seek(epoch, offset)

    def close(self) -> None:
        self.seek(0)


def with_epochs_of(batches: Batches, steps_per_epoch: int | None) -> Batches:
    """Return the same endless sequence of batches with another number of them in an epoch.

    Args:
        batches: the batches.
        steps_per_epoch: batches in an epoch; None leaves their own number.
    """
    if steps_per_epoch in (None, batches.steps_per_epoch):
        return batches
    return FunctionBatches(batches.batch, steps_per_epoch)
