"""Training data of any kind, which a resumed run reads again from the beginning of `fit`.

A checkpoint contains a checksum of each batch so far. The resumed run reads and drops these batches and compares them.
Batches are read one by one when the training step needs them, so that generators are not ahead of the training.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf._keras_types import Structure
from idmatters_tf._presentation.progress import Progress
from idmatters_tf.callbacks._checksums import checksum
from idmatters_tf.callbacks._encoding import Saved
from idmatters_tf.callbacks._sources import Source, choose_steps_per_epoch, take_first
from idmatters_tf.callbacks._sources.random_access import PyDatasetBatches
from idmatters_tf.callbacks._sources.tf_data import check

# Kinds of data whose position cannot be saved in general.
KINDS = ("a tf.data.Dataset", "a generator", "a torch DataLoader", "a PyDataset")


class Replay(Source):
    """Batches of data of one of KINDS, which are read again from the beginning of `fit`.

    Raises:
        ValueError: the number of batches in an epoch is unknown, or the data certainly differ in another process.
    """

    def __init__(self, fit: RunningFit, seed: int):
        self.steps_per_epoch = choose_steps_per_epoch(fit, fit.adapter.num_batches)
        self._batches = self._read(fit, seed)
        self.first_batch = take_first(self._batches)
        self.digest = checksum(self.first_batch)
        # Checksums of the batches that have been read.
        self._checksums: list[int] = []
        self._iterator = self._iterate()
        self._verbose = bool((fit.callbacks[0].params or {}).get("verbose"))

    def attach(self, fit: RunningFit) -> None:
        on_jax = keras.backend.backend() == "jax" and fit.kind == "a tf.data.Dataset"
        converted = fit.converted(self._iterator) if on_jax else self._iterator
        fit.take_iterators(lambda: converted, self.steps_per_epoch)

    def seek(self, epoch: int, offset: int = 0) -> None:
        pass

    def state(self, offset: int) -> Saved:
        return {"checksums": np.array(self._checksums, np.uint32)}

    def restore(self, state: Saved) -> None:
        checksums = state["checksums"].tolist()
        with Progress(len(checksums), "replay", self._verbose, unit="batches") as progress:
            progress.say(f"Reading {len(checksums)} batches of the training data again")
            for number, expected in enumerate(checksums):
                if next(self._iterator, None) is None or self._checksums[number] != expected:
                    raise ValueError(
                        f"The training data do not repeat: batch {number} differs from that before the interruption. "
                        f"Seed all generators that the data use, do not draw from them between two batches, and load "
                        f"batches in a fixed order."
                    )
                progress.advance()

    def _iterate(self):
        for batch in itertools.chain([self.first_batch], self._batches):
            self._checksums.append(checksum(batch))
            yield batch
        raise ValueError(f"The training data end after {len(self._checksums)} batches. Pass fewer epochs or steps.")

    def _read(self, fit: RunningFit, seed: int) -> Iterator[Structure]:
        """Yield the batches of all epochs."""
        if fit.kind == "a generator":
            yield from fit.adapter.get_numpy_iterator()
        elif fit.kind == "a PyDataset":
            batches = PyDatasetBatches(fit.data, self.steps_per_epoch, bool(fit.shuffle), seed)
            for epoch in itertools.count():
                batches.seek(epoch)
                batches.begin()
                for index in range(self.steps_per_epoch):
                    yield fit.standardized(batches.batch(epoch * self.steps_per_epoch + index))
                batches.on_epoch_end()
        else:
            read: Any = fit.adapter.get_numpy_iterator
            if fit.kind == "a tf.data.Dataset":
                data = fit.adapter.get_tf_dataset()
                check(data, "replay")
                read = data.__iter__
            for _ in itertools.count():
                iterator: Iterator[Structure] = iter(read())
                if (first := next(iterator, None)) is None:
                    return
                yield first
                yield from iterator
