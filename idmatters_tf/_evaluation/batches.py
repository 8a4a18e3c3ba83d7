"""Data sets as batches that can be iterated repeatedly, on any backend."""

from collections.abc import Iterable, Iterator, Mapping

import keras
import numpy as np

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import checked_arrays
from idmatters_tf._keras_types import Data, Loss, Structure


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
        cardinality = getattr(data, "cardinality", None)
        if isinstance(data, Mapping):
            raise ValueError(
                "Argument `data` must be batches or a tuple of arrays (x, y). Received: a dict. For a model with named "
                "inputs, pass (dict of arrays, targets)."
            )
        if isinstance(data, tuple):
            data = list(_split_into_batches(checked_arrays(data), batch_size))
        elif data is None or hasattr(data, "__array__") or not hasattr(data, "__iter__"):
            raise ValueError(
                f"Argument `data` must be a tf.data.Dataset of batches, a tuple of arrays (x, y), or an iterable of "
                f"batches. Received: {type(data).__name__}"
            )
        elif cardinality is not None:
            # The value of tf.data.INFINITE_CARDINALITY.
            if int(cardinality()) == -1:
                raise ValueError(
                    "Argument `data` must be finite, because every product uses all of it. Received: an infinite "
                    "tf.data.Dataset. Remove repeat(), or use data.take(batches)."
                )
        elif iter(data) is data:
            raise ValueError(
                "Argument `data` must be an iterable that can be iterated repeatedly. Received: an iterator. Pass a "
                "list or a tf.data.Dataset."
            )
        self._batches: Iterable[Structure] = data

    def __iter__(self) -> Iterator[Structure]:
        for batch in self._batches:
            if any(part is not None and np.ndim(part) == 0 for part in keras.tree.flatten(batch)):
                raise ValueError(
                    "Argument `data` must contain batches of dense arrays. Received: single examples, or ragged or "
                    "sparse tensors. Use data.batch(batch_size), and make tensors dense."
                )
            yield batch


def check_data(loss: Loss | Data, data: Data | None) -> None:
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


def _split_into_batches(arrays: tuple[Structure, ...], batch_size: int) -> Iterator[Structure]:
    rows = next(len(array) for array in keras.tree.flatten(arrays) if array is not None)
    for start in range(0, rows, batch_size):
        yield keras.tree.map_structure(
            lambda array, start=start: None if array is None else array[start : start + batch_size], arrays
        )
