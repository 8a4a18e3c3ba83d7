"""Memorizer of Yun, Sra & Jadbabaie: two hidden layers of O(sqrt(n)) hard-tanh units store the labels in slopes.

Source: *Small ReLU networks are powerful memorizers* (arXiv 1810.07770, NeurIPS 2019), Theorem 3.1: 3-layer networks of
hard-tanh units with widths of the order of sqrt(n) interpolate any n points. A hard-tanh, clip(z, -1, 1), is two ReLUs:
relu(z + 1) - relu(z - 1) - 1. The weights between groups are our own construction.

The points are projected to a line and divided into p groups of q neighbors, q even. The first hidden layer has one unit
for each group, which rises from -1 to 1 along it and is constant elsewhere, and one such unit for each gap between
groups. On each group and in each gap, the pre-activation of every unit of the second hidden layer is therefore affine,
with arbitrary slopes. Unit k crosses -1..1 near the k-th point of each group, where its value y represents the label.
It rises if k is odd and falls if k is even, and the gaps reset it for the next group. The other units are saturated and
their signs add up to 1 at each point. The sum of all units is y + 1.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity.lookup import EPS, GAP, count_label_weights, line, radii_below

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ThreeLayers:
    """Numbers of a network of construction "yun", for row vectors.

    Attributes:
        kernel, bias: projection, (d,) and a float. Its unit of length is a cell.
        slopes, offsets: first hidden layer, (m,) each with m = 2 p - 1: clip(slopes t + offsets, -1, 1).
        weights, biases: second hidden layer, (m, q) and (q,).
        classes: r. The label is r / 2 times the sum of the second layer, minus 1/2.
        margin: lower bound for the distance in cells that the projection of a point may move before its label changes,
            (n,), in the order of the rows.
        rounding: bound for the rounding error of all computations, as a fraction of the allowed error.
    """

    kernel: Floats
    bias: float
    slopes: Floats
    offsets: Floats
    weights: Floats
    biases: Floats
    classes: int
    margin: Floats
    rounding: float = 0.0

    @property
    def radii(self) -> Floats:
        """Distances that the rows may move in any direction before their labels change, (n,), in the norm of x."""
        return radii_below(self.margin, self.kernel)

    @property
    def groups(self) -> int:
        """Number of groups, p."""
        return (len(self.slopes) + 1) // 2

    @property
    def parameters(self) -> int:
        """Number of stored numbers, with the first layer as a product of projection and slopes."""
        dense = len(self.kernel) + 1 + 2 * len(self.slopes) + self.weights.size + len(self.biases)
        return dense + len(self.biases) + 1 + count_label_weights(self.classes)

    @property
    def unshared(self) -> int:
        """Number of weights and biases of the theorem's three layers and of the one-hot layers."""
        m, q = self.weights.shape
        return len(self.kernel) * m + m + m * q + q + q + 1 + count_label_weights(self.classes)


def construct_three_layers(x: NDArray[Any], labels: NDArray[Any], classes: int, seed: int) -> ThreeLayers:
    """Compute the numbers of a network that maps each row to its label.

    Args:
        x: (n, d) real, finite, distinct rows.
        labels: (n,) in [0, classes).
        classes: r.
        seed: seed of the directions.

    Returns:
        `ThreeLayers`.

    Raises:
        ValueError: if rounding errors are too large for the distance between labels.
    """
    n = len(x)
    # All gaps count, even between equal labels, because every point has its own unit.
    kernel, bias, t, error = line(x, np.arange(n), seed)
    order = np.argsort(t, kind="stable")
    t = t[order]
    q = 2 * max(1, round(math.sqrt(2 * n) / 2))
    p = -(-n // q)
    padded = np.append(np.append(-np.inf, t), np.inf)
    gaps = np.minimum(t - padded[:-2], padded[2:] - t)
    gaps[~np.isfinite(gaps)] = 2 * GAP
    group, place = np.divmod(np.arange(n), q)
    # Each group includes a third of the gaps before and after it.
    first = t[::q] - np.append(2 * GAP, t[q::q] - t[q - 1 : n - 1 : q])[:p] / 3
    last = np.append(t[q - 1 : n - 1 : q] + (t[q::q] - t[q - 1 : n - 1 : q]) / 3, t[-1] + 2 * GAP)[:p]
    begins = np.empty(2 * p - 1)
    ends = np.empty(2 * p - 1)
    begins[::2], ends[::2] = first, last
    begins[1::2], ends[1::2] = last[:-1], first[1:]
    slopes = 2 / (ends - begins)
    offsets = -(begins + ends) / (ends - begins)

    values = (2 * labels[order] + 1) / classes - 1
    directions = np.where(np.arange(q) % 2 == 0, 1.0, -1.0)
    # Units of the second layer at both ends of each group. Units without a point in the last group are constant.
    start = np.tile(-2 * directions, (p, 1))
    stop = start.copy()
    steep = directions[place] * 2 / gaps
    start[group, place] = values - steep * (t - first[group])
    stop[group, place] = values + steep * (last[group] - t)
    weights = np.empty((2 * p - 1, q))
    weights[::2] = (stop - start) / 2
    weights[1::2] = (start[1:] - stop[:-1]) / 2
    biases = start[0] + weights.sum(axis=0)
    summed = _bound_rounding(weights, biases, slopes, offsets, t)
    rounding = float(2 * error * (2 / gaps).max() + summed) * classes
    if rounding > 1:
        raise ValueError(
            f"float64 is not enough for {n:,} rows of {classes} classes in two layers: rounding may reach "
            f"{rounding / classes:.2g}, and labels differ by {2 / classes:.2g}. Subtract the mean of x, memorize fewer "
            f"rows, or use construction='lookup' or 'hardt-ma'."
        )

    margin = np.empty(n)
    # Half the distance of two labels over the slope. The other units are saturated there.
    margin[order] = gaps / 2 * (1 / max(classes, 2) - 2 * summed) - 2 * error
    margin = np.maximum(margin, 0)
    return ThreeLayers(kernel, bias, slopes, offsets, weights, biases, classes, margin, rounding)


def _bound_rounding(weights: Floats, biases: Floats, slopes: Floats, offsets: Floats, t: Floats) -> float:
    """Bound the rounding error of a point's value after the projection. Half the distance of labels is 1 / r."""
    size = float((np.abs(weights).sum(axis=0) + np.abs(biases)).max())
    # Only the unit of the point's own group is not saturated: its rounding error times its weight.
    first = EPS * (np.abs(slopes) * np.abs(t).max() + np.abs(offsets))[::2]
    return size * (len(slopes) + 2) * EPS + 2 * float((np.abs(weights[::2]).max(axis=1) * first).max())
