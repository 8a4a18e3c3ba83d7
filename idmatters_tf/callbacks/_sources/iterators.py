"""Training data with a serializable iterator: Grain's `IterDataset` and `DataLoader`.

The saved state is that after the last training batch. Only the iterator itself loads data ahead, and its state accounts
for it. Grain's prefetching (`mp_prefetch`, `ReadOptions`, worker processes) overlaps loading and training.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf._keras_types import Structure
from idmatters_tf.callbacks._checksums import checksum
from idmatters_tf.callbacks._sources import Source, choose_steps_per_epoch, take_first
from idmatters_tf.callbacks.batches import as_arrays


class SavedIterator(Source):
    """Base class of training data with a serializable iterator.

    Subclasses implement `_begin`, `_save`, `_load` and, unless `_iterator` yields NumPy arrays, `_batches` and
    `_prepare`. The attribute `_iterator` is the current iterator.

    Args:
        steps_per_epoch: number of batches in an epoch.
        endless: True if one iterator yields the batches of all epochs, False if each epoch has a new iterator.

    Raises:
        ValueError: there are no batches, or the first batch differs after the state was restored.
    """

    def __init__(self, steps_per_epoch: int, endless: bool):
        self.steps_per_epoch = steps_per_epoch
        self._endless = endless
        # State to load before the next epoch, and True if the iterator is at the beginning of the next epoch.
        self._restored: object = None
        self._is_fresh = True
        self._iterator: Any = self._begin()
        start = self._save()
        digests = []
        for _ in range(2):
            batch = take_first(self._batches())
            self.first_batch, self.digest = self._prepare(batch), checksum(batch)
            digests.append(self.digest)
            self._load(start)
        if digests[0] != digests[1]:
            raise ValueError(
                "The training data are not deterministic: the first batch differs after the state of the iterator was "
                "restored. Draw random numbers from seeds that are part of the data, as Grain's `random_map` does."
            )

    def attach(self, fit: RunningFit) -> None:
        fit.take_iterators(self._batches, self.steps_per_epoch)

    def seek(self, epoch: int, offset: int = 0) -> None:
        if self._restored is not None:
            self._load(self._restored)
            self._restored = None
        elif not self._is_fresh and not self._endless:
            self._iterator = self._begin()
        self._is_fresh = False

    def state(self, offset: int) -> object:
        if not offset and not self._is_fresh and not self._endless:
            self._iterator = self._begin()
            self._is_fresh = True
        return self._save()

    def restore(self, state: object) -> None:
        self._restored = state

    def close(self) -> None:
        self._iterator = self._restored = None

    def _begin(self) -> Iterator[Structure]:
        """Return the iterator of a new pass over the data."""
        raise NotImplementedError

    def _save(self) -> object:
        """Return the state of the iterator."""
        raise NotImplementedError

    def _load(self, state: object) -> None:
        """Set the iterator to a state that `_save` returned."""
        raise NotImplementedError

    def _batches(self) -> Iterator[Structure]:
        """Return an iterator over batches in the form that Keras' training step accepts."""
        return self._iterator

    def _prepare(self, batch: Structure) -> Structure:
        """Return a batch in the form for building the model."""
        return as_arrays(batch, "in the first batch")


class GrainIterator(SavedIterator):
    """Batches of a Grain `IterDataset` or `DataLoader`, which restarts at its end."""

    def __init__(self, fit: RunningFit):
        # Keras appends the conversion of batches as an operation to the dataset or loader.
        on_jax = keras.backend.backend() == "jax"
        self._dataset: Iterable[Structure] = (
            fit.adapter.get_jax_iterator() if on_jax else fit.adapter.get_numpy_iterator()
        )
        super().__init__(choose_steps_per_epoch(fit, None), endless=True)

    def _begin(self) -> Iterator[Structure]:
        return iter(self._dataset)

    def _save(self) -> object:
        state = self._iterator.get_state()
        # A dataset returns plain data, a loader JSON in bytes.
        return state.decode() if isinstance(state, bytes) else state

    def _load(self, state: object) -> None:
        self._iterator = self._begin()
        if isinstance(state, str):
            state = _update_addresses(state, self._iterator.get_state())
        self._iterator.set_state(state)

    def _batches(self) -> Iterator[Structure]:
        for passes in itertools.count():
            is_empty = True
            for batch in self._iterator:
                is_empty = False
                yield batch
            if is_empty and passes:
                return
            self._iterator = self._begin()


def _update_addresses(state, current):
    """Return the state of a `DataLoader` with the current memory addresses in the descriptions of its parts.

    Grain compares `repr(source)`, which contains an address for most classes.
    """
    saved, now = json.loads(state), json.loads(current)
    for name, text in now.items():
        if isinstance(text, str) and _remove_addresses(text) == _remove_addresses(str(saved.get(name))):
            saved[name] = text
    return json.dumps(saved, indent=4).encode()


def _remove_addresses(text):
    return re.sub(r" at 0x[0-9a-f]+", "", text)
