"""Verification of a network on every row of a sample."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.expressivity._samples import check_sample, chunks


@dataclasses.dataclass(frozen=True)
class Verification:
    """Result of a verification.

    Attributes:
        rows: number of rows.
        correct: number of rows for which the label's output is larger than all others. Ties and NaN are not correct.
        largest_error: largest |output - one-hot| over all rows and classes, or NaN if an output is NaN.
        wrong_rows: first ten rows that are not correct.
    """

    rows: int
    correct: int
    largest_error: float
    wrong_rows: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """Fraction of correct rows."""
        return self.correct / self.rows


def verify(
    model: keras.Model,
    x: ArrayLike,
    labels: ArrayLike,
    batch_size: int = 4096,
    progress: Callable[[int, int], object] | None = None,
) -> Verification:
    """Compare the outputs of a model with one-hot vectors on every row, in the model's dtype.

    Args:
        model: model of `memorize`, possibly loaded from a file.
        x: (n, d) rows.
        labels: (n,) integers.
        batch_size: largest batch size.
        progress: callable that receives (rows done, n).

    Returns:
        A `Verification`.
    """
    x, labels, _ = check_sample(x, labels, model.output_shape[-1])
    dtype = model.inputs[0].dtype
    largest, wrong = 0.0, []
    order = _by_norm(model, x)
    # Compilation takes longer than a single batch. `predict` of other models rounds float64 to float32.
    run = model if len(x) <= batch_size else model.predict_on_batch
    # All batches have one shape, because a different last batch would be compiled again.
    size = -(-len(x) // -(-len(x) // batch_size))
    for start in range(0, len(x), size):
        rows = order[start : start + size]
        filled = np.pad(rows, (0, size - len(rows)), mode="edge")
        outputs: NDArray[Any] = np.array(keras.ops.convert_to_numpy(run(x[filled].astype(dtype))))[: len(rows)]
        # `argmax` would return class 0 for ties and NaN.
        own = np.arange(outputs.shape[1]) == labels[rows, None]
        ahead = outputs < outputs[own][:, None]
        right = np.where(own, ~np.isnan(outputs), ahead).all(axis=1)
        wrong.extend(int(row) for row in rows[~right])
        # `np.maximum` propagates NaN.
        largest = float(np.maximum(largest, np.abs(outputs - own).max()))
        if progress is not None:
            progress(start + len(rows), len(x))
    return Verification(len(x), len(x) - len(wrong), largest, tuple(sorted(wrong)[:10]))


def _by_norm(model, x):
    """Sort the rows by the norms of their projections, or keep their order for other models.

    The rows of a batch then fire in the same few blocks, and the layer skips the others.
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
