"""Data sets as batches that can be iterated repeatedly, on any backend."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import irregular_kind, weights_by_output
from idmatters_tf.curvature._losses import Batch, split_batch

SINGLE_EXAMPLES = "Argument `data` must contain batches. Received: single examples. Use data.batch(batch_size)."


class Batches:
    """Batches of examples.

    Args:
        data: a `tf.data.Dataset` of batches; a tuple of arrays, which is split into batches; or any other iterable of
            batches that can be iterated more than once.
        batch_size: batch size for arrays.
        class_weight: weight of the examples of each class, by label, as in `model.fit`.

    Attributes:
        kept: True if each pass yields the same objects, which holds for arrays.

    Raises:
        ValueError: if the data are not batches, can be iterated only once, or are infinite.
    """

    def __init__(self, data: Any, batch_size: int, class_weight: Mapping[int, float] | None = None):
        positive_integer("batch_size", batch_size)
        self._batches, self._class_weight = data, class_weight
        self.kept = isinstance(data, tuple) and class_weight is None
        if isinstance(data, tuple):
            self._batches = list(_split_into_batches(_check_arrays(data), batch_size))
        elif data is None or hasattr(data, "__array__") or not hasattr(data, "__iter__"):
            raise ValueError(
                f"Argument `data` must be a tf.data.Dataset of batches, a tuple of arrays (x, y), or an iterable of "
                f"batches. Received: {type(data).__name__}"
            )
        elif hasattr(data, "cardinality"):
            # The value of tf.data.INFINITE_CARDINALITY.
            if int(data.cardinality()) == -1:
                raise ValueError(
                    "Argument `data` must be finite, because every product uses all of it. Received: an infinite "
                    "tf.data.Dataset. Remove repeat(), or use data.take(batches)."
                )
        elif iter(data) is data:
            raise ValueError(
                "Argument `data` must be an iterable that can be iterated repeatedly. Received: an iterator. Pass a "
                "list or a tf.data.Dataset."
            )
        elif isinstance(data, list) and _looks_like_one_batch(data):
            raise ValueError(
                f"Argument `data` must be a tuple of arrays, (x, y), or a list of batches. Received: a list of "
                f"{len(data)} arrays that differ in shape or dtype. Pass a tuple."
            )

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            flat = keras.tree.flatten(batch)
            _check_dense(flat)
            if np.ndim(flat[0]) == 0:
                raise ValueError(SINGLE_EXAMPLES)
            yield batch if self._class_weight is None else self._weighted(split_batch(batch))

    def _weighted(self, batch: Batch) -> tuple[Any, Any, Any]:
        if batch.weights is not None or keras.tree.is_nested(batch.y) or batch.y is None:
            raise ValueError(
                "Argument `class_weight` requires one array of labels and no sample weights in `data`, as in "
                "`model.fit`."
            )
        labels = np.asarray(batch.y)
        if labels.ndim > 1:
            labels = labels[..., 0] if labels.shape[-1] == 1 else labels.argmax(axis=-1)
        assert self._class_weight is not None
        weights = [self._class_weight.get(int(label), 1.0) for label in np.ravel(np.round(labels).astype(int))]
        return batch.x, batch.y, np.reshape(np.array(weights, np.float64), labels.shape)


def length(batch: Any) -> int:
    """Return the number of examples in a batch."""
    return int(np.shape(keras.tree.flatten(batch)[0])[0])


def check_batch(model: keras.Model, batch: Any) -> None:
    """Raise ValueError if a batch (x, y, sample_weight) of a model is a single example."""
    parts = split_batch(batch)
    if any(part is not None and np.ndim(part) == 0 for part in keras.tree.flatten((parts.y, parts.weights))):
        raise ValueError(SINGLE_EXAMPLES)
    # Only functional models declare the shapes of their inputs.
    inputs = getattr(model, "inputs", None) or []
    found = keras.tree.flatten(parts.x)
    # Keras adds an axis where an input has one feature.
    if len(found) == len(inputs) and any(
        len(np.shape(array)) == len(declared.shape) - 1 and declared.shape[-1] != 1
        for array, declared in zip(found, inputs, strict=True)
    ):
        raise ValueError(SINGLE_EXAMPLES)


def _check_arrays(data: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a tuple of arrays, with sample weights repeated for each output as in `fit`."""
    flat = keras.tree.flatten(data)
    _check_dense(flat)
    for part in flat:
        if part is not None and not len(getattr(part, "shape", ())):
            raise ValueError(
                f"Argument `data`, if a tuple, must contain arrays: (x, y) or (x, y, sample_weight). Received: "
                f"{type(part).__name__}. Pass a data set without a tuple, and convert numbers with np.asarray."
            )
    if len(data) == 3:
        return data[0], data[1], weights_by_output(data[1], data[2])
    return data


def _check_dense(arrays: list[Any]) -> None:
    """Raise ValueError for ragged and sparse tensors."""
    for array in arrays:
        kind = irregular_kind(array)
        if kind is None and isinstance(array, np.ndarray) and array.dtype.hasobject and array.size:
            kind = "ragged" if np.ndim(array.ravel()[0]) else None
        if kind is not None:
            raise ValueError(
                f"Argument `data` must contain dense tensors. Received: a {kind} tensor. Make it dense, e.g. by "
                f"padding, to_tensor() or tf.sparse.to_dense."
            )


def _looks_like_one_batch(data: list[Any]) -> bool:
    """Return True for a list of arrays whose shapes or dtypes rule out batches of the same kind of examples."""
    if len(data) not in (2, 3) or not all(hasattr(part, "shape") and hasattr(part, "dtype") for part in data):
        return False
    return len({(tuple(part.shape[1:]), str(part.dtype)) for part in data}) > 1


def _split_into_batches(arrays: tuple[Any, ...], batch_size: int) -> Iterator[Any]:
    lengths = {int(array.shape[0]) for array in keras.tree.flatten(arrays) if array is not None}
    if len(lengths) != 1:
        raise ValueError(
            f"Argument `data` must contain arrays of equal length. Received: lengths "
            f"{', '.join(map(str, sorted(lengths)))}"
        )
    for start in range(0, lengths.pop(), batch_size):
        yield keras.tree.map_structure(
            lambda array, start=start: None if array is None else array[start : start + batch_size], arrays
        )
