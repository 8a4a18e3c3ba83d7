"""Every row of a sample through a network, against its label."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.expressivity._samples import checked, chunks


@dataclasses.dataclass(frozen=True)
class Verification:
    """What a network does on a sample.

    Attributes:
        rows, correct: numbers of all rows, and of those on which the label's output is larger than all others. Equal
            outputs and NaN are not correct.
        largest_error: over all rows and classes, of |output - one-hot|; NaN where an output is.
        wrong_rows: the first ten rows that are not correct.
    """

    rows: int
    correct: int
    largest_error: float
    wrong_rows: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        return self.correct / self.rows


def verify(
    model: keras.Model,
    x: ArrayLike,
    labels: ArrayLike,
    batch_size: int = 4096,
    progress: Callable[[int, int], object] | None = None,
) -> Verification:
    """Run every row through the model, in batches of the model's own dtype, and compare with the one-hot vectors.

    Args:
        model: from `memorize`, or loaded from a file.
        x, labels: as `memorize` takes them.
        batch_size: rows at a time, at most.
        progress: called with (rows done, n).

    Returns:
        A `Verification`.
    """
    x, labels, _ = checked(x, labels, model.output_shape[-1])
    dtype = model.inputs[0].dtype
    largest, wrong = 0.0, []
    order = _by_norm(model, x)
    # Compiled, unless there is a single batch, for which that would take longer than running it. `predict` would round
    # float64 to float32.
    run = model if len(x) <= batch_size else model.predict_on_batch
    # All batches have one shape, the last one filled up: another shape would be compiled anew.
    size = -(-len(x) // -(-len(x) // batch_size))
    for start in range(0, len(x), size):
        rows = order[start : start + size]
        filled = np.pad(rows, (0, size - len(rows)), mode="edge")
        outputs: NDArray[Any] = np.array(keras.ops.convert_to_numpy(run(x[filled].astype(dtype))))[: len(rows)]
        # Not the largest of the outputs, which would be class 0 where all are equal or NaN.
        own = np.arange(outputs.shape[1]) == labels[rows, None]
        ahead = outputs < outputs[own][:, None]
        right = np.where(own, ~np.isnan(outputs), ahead).all(axis=1)
        wrong.extend(int(row) for row in rows[~right])
        # NaN stays NaN.
        largest = float(np.maximum(largest, np.abs(outputs - own).max()))
        if progress is not None:
            progress(start + len(rows), len(x))
    return Verification(len(x), len(x) - len(wrong), largest, tuple(sorted(wrong)[:10]))


def _by_norm(model, x):
    """The rows in the order of their projections' norms, so that the rows of a batch fire in the same few blocks and
    the layer's look-ahead passes over the others; in the rows' own order for a model of another kind.
    """
    try:
        projection = model.get_layer("projection").weights
    except ValueError:
        return np.arange(len(x))
    kernel, *bias = (np.asarray(weight, np.float64) for weight in projection)
    norms = np.empty(len(x))
    for rows in chunks(x):
        norms[rows] = np.linalg.norm(x[rows].astype(np.float64, copy=False) @ kernel + sum(bias), axis=1)
    return np.argsort(-norms, kind="stable")
