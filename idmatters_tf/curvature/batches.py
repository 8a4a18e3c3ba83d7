"""A data set as batches that can be gone through again and again, whatever the backend."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from idmatters_tf.arguments import positive_integer
from idmatters_tf.curvature.losses import Batch, split_batch


class Batches:
    """Batches of examples.

    Args:
        data: a `tf.data.Dataset` of batches; a tuple of arrays, cut into batches here; or any other iterable of batches
            that can be gone through more than once.
        batch_size: for arrays.
        class_weight: by class, the weight of the examples with that label, as in `model.fit`.

    Attributes:
        kept: whether each pass gives the same objects: arrays that were cut here.

    Raises:
        ValueError: for data that are not batches, can be gone through only once, or never end.
    """

    def __init__(self, data: Any, batch_size: int, class_weight: Mapping[int, float] | None = None):
        positive_integer("batch_size", batch_size)
        self._batches, self._class_weight = data, class_weight
        self.kept = isinstance(data, tuple) and class_weight is None
        if isinstance(data, tuple):
            self._batches = list(_cut(data, batch_size))
        elif data is None or hasattr(data, "__array__") or not hasattr(data, "__iter__"):
            raise ValueError(
                f"Argument `data` must be a tf.data.Dataset of batches, a tuple of arrays (x, y), or an iterable of "
                f"batches. Received: {type(data).__name__}"
            )
        elif hasattr(data, "cardinality"):
            # TensorFlow's own name for it is tf.data.INFINITE_CARDINALITY.
            if int(data.cardinality()) == -1:
                raise ValueError(
                    "Argument `data` must come to an end: every product needs all of it. Received: an infinite "
                    "tf.data.Dataset. Leave repeat() out, or use data.take(batches)."
                )
        elif iter(data) is data:
            raise ValueError(
                "Argument `data` must be an iterable that can be gone through again: every product needs all of it. "
                "Received: an iterator. Pass a list or a tf.data.Dataset."
            )

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            flat = keras.tree.flatten(batch)
            if not np.shape(flat[0]):
                raise ValueError(
                    "Argument `data` must give batches; received: single examples. Use data.batch(batch_size)."
                )
            yield batch if self._class_weight is None else self._weighted(split_batch(batch))

    def _weighted(self, batch: Batch) -> tuple[Any, Any, Any]:
        if batch.weights is not None or keras.tree.is_nested(batch.y) or batch.y is None:
            raise ValueError(
                "Argument `class_weight` needs one array of labels and no sample weights in `data`, as in `model.fit`."
            )
        labels = np.asarray(batch.y)
        if labels.ndim > 1:
            labels = labels[..., 0] if labels.shape[-1] == 1 else labels.argmax(axis=-1)
        assert self._class_weight is not None
        weights = [self._class_weight.get(int(label), 1.0) for label in np.ravel(np.round(labels).astype(int))]
        return batch.x, batch.y, np.reshape(np.array(weights, np.float64), labels.shape)


def length(batch: Any) -> int:
    """The number of examples in a batch."""
    return int(np.shape(keras.tree.flatten(batch)[0])[0])


def _cut(arrays: tuple[Any, ...], batch_size: int) -> Iterator[Any]:
    lengths = {len(array) for array in keras.tree.flatten(arrays)}
    if len(lengths) != 1:
        raise ValueError(
            f"Argument `data` must hold arrays of one length. Received: lengths {', '.join(map(str, sorted(lengths)))}"
        )
    for start in range(0, lengths.pop(), batch_size):
        yield keras.tree.map_structure(lambda array, start=start: array[start : start + batch_size], arrays)
