"""Training data with an iterator whose state can be saved: Grain's `IterDataset` and `DataLoader`.

Nothing is read ahead of the training except by the iterator itself, whose state accounts for it: the state is always
the one behind the batch last trained on. Grain's own prefetching (`mp_prefetch`, `ReadOptions`, worker processes)
overlaps the loading with the training.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import keras

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf.callbacks._sources.base import Source, choose_steps_per_epoch
from idmatters_tf.callbacks.batches import as_arrays, checksum


class SavedIterator(Source):
    """Base class of training data with an iterator that can be saved.

    A subclass implements `_begin`, `_save`, `_load` and, for other batches than Python's iterators give, `_batches`,
    `_describe`. Its iterator is in `_iterator`.

    Args:
        steps_per_epoch: number of batches in an epoch.
        endless: True if one iterator gives the batches of all epochs, False if each epoch has an iterator of its own.

    Raises:
        ValueError: there are no batches, or the first one differs after the state was restored.
    """

    def __init__(self, steps_per_epoch: int, endless: bool):
        self.steps_per_epoch, self._endless = steps_per_epoch, endless
        # State to load before the next epoch, and True if the iterator is at the beginning of the next epoch.
        self._restored: Any = None
        self._is_fresh = True
        self._iterator: Any = self._begin()
        start = self._save()
        found = []
        for _ in range(2):
            batch = next(self._batches(), None)
            if batch is None:
                raise ValueError("The training data are empty. Give `fit` at least one batch.")
            found.append(self._describe(batch))
            self._load(start)
        (self._first, self._digest), (_, again) = found
        if again != self._digest:
            raise ValueError(
                "The training data are not deterministic: the first batch differs after the state of the iterator was "
                "restored. Draw random numbers from seeds that are part of the data, as Grain's `random_map` does."
            )

    def first_batch(self) -> Any:
        return self._first

    def digest(self) -> str:
        return self._digest

    def attach(self, fit: RunningFit) -> None:
        fit.take_iterators(self._batches, self.steps_per_epoch)

    def seek(self, epoch: int, offset: int = 0) -> None:
        if self._restored is not None:
            self._load(self._restored)
            self._restored = None
        elif not self._is_fresh and not self._endless:
            self._iterator = self._begin()
        self._is_fresh = False

    def state(self, epoch: int, offset: int) -> Any:
        if not offset and not self._is_fresh and not self._endless:
            self._iterator = self._begin()
            self._is_fresh = True
        return self._save()

    def restore(self, state: Any, epoch: int, offset: int) -> None:
        if state is None:
            raise ValueError(
                "The checkpoint is of training data without an iterator. Start the same script as before, or give "
                "ExactResume another folder."
            )
        self._restored = state

    def close(self) -> None:
        self._iterator = self._restored = None

    def _begin(self) -> Any:
        """Return the iterator of a new pass over the data."""
        raise NotImplementedError

    def _save(self) -> Any:
        """Return the state of the iterator."""
        raise NotImplementedError

    def _load(self, state: Any) -> None:
        """Set the iterator to one with a state that `_save` returned."""
        raise NotImplementedError

    def _batches(self) -> Iterator[Any]:
        """Return the iterator in the form that the training step of Keras takes."""
        return self._iterator

    def _describe(self, batch: Any) -> tuple[Any, str]:
        """Return a batch as the training step takes it when variables are made, and its checksum."""
        arrays = as_arrays(batch, "in the first batch")
        return arrays, checksum(arrays)


class GrainIterator(SavedIterator):
    """Batches of a Grain `IterDataset` or `DataLoader`, which begin anew where they end.

    Args:
        fit: the running `fit`.

    Raises:
        ValueError: `steps_per_epoch` is missing, or the data are not deterministic.
    """

    def __init__(self, fit: RunningFit):
        # Keras' conversion of the batches is an operation of the returned dataset or loader.
        on_jax = keras.backend.backend() == "jax"
        self._dataset: Any = fit.adapter.get_jax_iterator() if on_jax else fit.adapter.get_numpy_iterator()
        super().__init__(choose_steps_per_epoch(fit, None), endless=True)

    def _begin(self) -> Any:
        return iter(self._dataset)

    def _save(self) -> Any:
        state = self._iterator.get_state()
        # Plain data of a dataset, JSON in bytes of a loader.
        return state.decode() if isinstance(state, bytes) else state

    def _load(self, state: Any) -> None:
        self._iterator = self._begin()
        if isinstance(state, str):
            state = _with_present_addresses(state, self._iterator.get_state())
        self._iterator.set_state(state)

    def _batches(self) -> Iterator[Any]:
        for passes in itertools.count():
            found = False
            for batch in self._iterator:
                found = True
                yield batch
            if not found and passes:
                return
            self._iterator = self._begin()


def _with_present_addresses(state, current):
    """Return the state of a `DataLoader` with the descriptions of its parts where only addresses differ from the state.

    Grain compares `repr(source)`, which for most classes contains an address.
    """
    saved, now = json.loads(state), json.loads(current)
    for name, text in now.items():
        if isinstance(text, str) and _without_addresses(text) == _without_addresses(str(saved.get(name))):
            saved[name] = text
    return json.dumps(saved, indent=4).encode()


def _without_addresses(text):
    return re.sub(r" at 0x[0-9a-f]+", "", text)
