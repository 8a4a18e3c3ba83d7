"""Data sets as batches that can be iterated repeatedly, on any backend."""

from collections.abc import Iterable, Iterator, Mapping

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import checked_arrays
from idmatters_tf._keras_types import Data, Structure


class RepeatableBatches:
    """Batches of examples.

    Args:
        data: a `tf.data.Dataset` of batches; a tuple of arrays, which is split into batches; or any other iterable of
            batches that can be iterated more than once.
        batch_size: batch size for arrays.

    Attributes:
        kept: True if each pass yields the same objects, which holds for arrays.

    Raises:
        ValueError: if the data are not batches, can be iterated only once, or are infinite.
    """

    def __init__(self, data: Data | None, batch_size: int):
        positive_integer("batch_size", batch_size)
        self.kept = isinstance(data, tuple)
        if isinstance(data, tuple):
            batches: Iterable[Structure] = list(_split_into_batches(checked_arrays(data), batch_size))
        else:
            batches = _checked_batches(data)
            cardinality = getattr(batches, "cardinality", None)
            # The value of tf.data.INFINITE_CARDINALITY.
            if cardinality is not None and int(cardinality()) == -1:
                raise ValueError(
                    "Argument `data` must be finite, because every product uses all of it. Received: an infinite "
                    "tf.data.Dataset. Remove repeat(), or use data.take(batches)."
                )
        self._batches = batches

    def __iter__(self) -> Iterator[Structure]:
        for batch in self._batches:
            if any(part is not None and np.ndim(part) == 0 for part in keras.tree.flatten(batch)):
                raise ValueError(
                    "Argument `data` must contain batches of dense arrays. Received: single examples, or ragged or "
                    "sparse tensors. Use data.batch(batch_size), and make tensors dense."
                )
            yield batch


class TrainingBatches:
    """Infinite iterators of batches for short trainings, equal for equal seeds.

    Args:
        data: a tuple of arrays, tensors, or lists and dicts of them, of which each epoch takes all examples in a random
            order; or an iterable of batches that can be iterated more than once, which are repeated in their order.
        batch_size: batch size for arrays. A last incomplete batch is left out, if it is not the only one.

    Raises:
        ValueError: if the data are not batches, or can be iterated only once. The iterator raises one without examples.
    """

    def __init__(self, data: Data | None, batch_size: int):
        self._batch_size = positive_integer("batch_size", batch_size)
        if isinstance(data, tuple):
            self._data: Data = checked_arrays(tuple(_to_arrays(part) for part in data))
        else:
            self._data = _checked_batches(data)

    def __call__(self, seed: int) -> Iterator[tuple[Structure, ...]]:
        """Return an iterator of batches, tuples of arrays."""
        generator = np.random.default_rng(seed)
        while True:
            batch = None
            for batch in self._epoch(generator):
                yield batch
            if batch is None:
                raise ValueError("Argument `data` must contain at least one example. Received: none")

    def _epoch(self, generator: np.random.Generator) -> Iterator[tuple[Structure, ...]]:
        if not isinstance(self._data, tuple):
            for batch in self._data:
                yield _to_arrays(batch) if isinstance(batch, (list, tuple)) else (_to_arrays(batch),)
            return
        examples = length(self._data)
        order = generator.permutation(examples)
        for start in range(0, max(min(examples, 1), examples - self._batch_size + 1), self._batch_size):
            yield _rows(self._data, order[start : start + self._batch_size])


def check_data(loss: object, data: Data | None) -> None:
    """Raise ValueError if the argument `data` is missing, with a hint if the data were passed as `loss`."""
    if data is None:
        is_data = isinstance(loss, tuple) or hasattr(loss, "__array__") or hasattr(loss, "cardinality")
        received = f"{type(loss).__name__} in the place of `loss`" if is_data else "None"
        raise ValueError(
            f"Argument `data` must be given after `loss`. Received: {received}. Pass (model, loss, data), or data=... "
            f"for the compiled loss."
        )


def length(batch: Structure) -> int:
    """Return the number of examples in a batch, in which optional inputs may be None."""
    return int(np.shape(next(part for part in keras.tree.flatten(batch) if part is not None))[0])


def to_tensors(structure: Structure) -> Structure:
    """Return arrays as tensors; None stays."""
    return keras.tree.map_structure(lambda part: None if part is None else keras.ops.convert_to_tensor(part), structure)


def _checked_batches(data: Data | None) -> Data:
    """Return batches, or raise a ValueError if data are not batches that can be iterated more than once."""
    if isinstance(data, Mapping):
        raise ValueError(
            "Argument `data` must be batches or a tuple of arrays (x, y). Received: a dict. For a model with named "
            "inputs, pass (dict of arrays, targets)."
        )
    if data is None or hasattr(data, "__array__") or not hasattr(data, "__iter__"):
        raise ValueError(
            f"Argument `data` must be a tf.data.Dataset of batches, a tuple of arrays (x, y), or an iterable of "
            f"batches. Received: {type(data).__name__}"
        )
    if not hasattr(data, "cardinality") and iter(data) is data:
        raise ValueError(
            "Argument `data` must be an iterable that can be iterated repeatedly. Received: an iterator. Pass a "
            "list or a tf.data.Dataset."
        )
    return data


def _split_into_batches(arrays: tuple[Structure, ...], batch_size: int) -> Iterator[Structure]:
    for start in range(0, length(arrays), batch_size):
        yield _rows(arrays, slice(start, start + batch_size))


def _rows(arrays: Structure, rows: slice | NDArray[np.int64]) -> Structure:
    return keras.tree.map_structure(lambda array: None if array is None else array[rows], arrays)


def _to_arrays(value: Structure) -> Structure:
    """Return arrays or tensors as NumPy arrays, and lists of them, which `tf.data` would stack, as tuples."""
    if isinstance(value, dict):
        return {name: _to_arrays(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        if value and all(np.ndim(part) == 0 and not isinstance(part, dict) and part is not None for part in value):
            return np.asarray(value)
        return tuple(_to_arrays(part) for part in value)
    # Copies, since TensorFlow computes in place on arrays of an iterator under a strategy, and they are used again.
    return None if value is None else np.array(keras.ops.convert_to_numpy(value))
