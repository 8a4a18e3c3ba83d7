"""Training data in `tf.data.Dataset`s that begin at any step, without Python between the batches."""

from typing import TYPE_CHECKING, Any

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf.callbacks._sources import Source
from idmatters_tf.callbacks.batches import FunctionBatches, checksum
from idmatters_tf.data.protocols import Share

if TYPE_CHECKING:
    import tensorflow as tf

# More steps than any training.
_ENDLESS = 1 << 40


class AnyStepDataset(Source):
    """Batches of a `TrainBatchSource`, of which each replica computes its share.

    One iterator yields the batches of successive epochs.
    """

    def __init__(self, batches: FunctionBatches):
        self.steps_per_epoch, self._source = batches.steps_per_epoch, batches.source
        self.first_batch = batches.arrays(0)
        self.digest = checksum(self.first_batch)
        self._iterator: Any = None
        # Step of the next batch of the iterator after this epoch, and step at which the epoch begins.
        self._next, self._begins = -1, 0

    def attach(self, fit: RunningFit) -> None:
        import tensorflow as tf

        self._strategy = tf.distribute.get_strategy() if fit.strategy is None else fit.strategy
        fit.take_iterators(self._begin, self.steps_per_epoch)

    def seek(self, epoch: int, offset: int = 0) -> None:
        self._begins = epoch * self.steps_per_epoch + offset

    def close(self) -> None:
        self._iterator = None

    def _begin(self) -> Any:
        if self._iterator is None or self._begins != self._next:
            self._iterator = iter(distribute(self._strategy, self._dataset))
        self._next = (self._begins // self.steps_per_epoch + 1) * self.steps_per_epoch
        return self._iterator

    def _dataset(self, share):
        return self._source.dataset(self._begins, _ENDLESS, share)


def distribute(strategy: "tf.distribute.Strategy", make_dataset: Any) -> Any:
    """Return a distributed data set; `make_dataset(share)` builds the data set of one input pipeline.

    On one replica it is the data set itself.
    """
    if strategy.num_replicas_in_sync == 1:
        return make_dataset(Share())

    return strategy.distribute_datasets_from_function(lambda context: make_dataset(share_of(context)))


def share_of(context: "tf.distribute.InputContext") -> Share:
    """Return the replicas that an input pipeline feeds."""
    count = context.num_replicas_in_sync // context.num_input_pipelines
    return Share(context.num_replicas_in_sync, context.input_pipeline_id * count, count)
