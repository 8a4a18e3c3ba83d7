"""Yun, Sra & Jadbabaie's memoriser: two hidden layers of O(sqrt(n)) hard-tanh units put each label into a slope.

Source: *Small ReLU networks are powerful memorizers* (arXiv 1810.07770, NeurIPS 2019), Theorem 3.1: 3-layer networks of
hard-tanh units with widths of the order of sqrt(n) pass through any n points. A hard-tanh, clip(z, -1, 1), is two
ReLUs: relu(z + 1) - relu(z - 1) - 1.

The points are projected to a line and cut into p groups of q neighbours, q even. In the first hidden layer one unit
for each group rises from -1 to 1 along it and is constant elsewhere, and one unit for each gap between groups does the
same there. So on each group and in each gap every unit of the second hidden layer has a pre-activation that is affine
along the line, with slopes of free choice. Unit k crosses -1..1 near the k-th point of each group, and takes there the
value y that stands for the label; it rises if k is odd and falls if k is even, and the gaps put it back to where it has
to begin. The other units are saturated, and their signs add up to 1 at each point: the sum of all units is y + 1.

Here q units, p groups and the slopes follow the paper's idea; how the gaps reset the units is ours, written from the
theorem and from memory of its proof, whose text was not at hand.
"""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.expressivity.lookup import EPS, GAP, line, radii_below

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ThreeLayers:
    """The numbers of such a network, for row vectors.

    Attributes:
        kernel, bias: of the projection, (d,) and a float; its unit of length is a cell.
        slopes, offsets: of the first hidden layer, (m,) each, m = 2 p - 1: clip(slopes t + offsets, -1, 1).
        weights, biases: of the second, (m, q) and (q,).
        classes: r. The label's number is r / 2 times the sum of the second layer, minus 1/2.
        margin: distance in cells that the projection of a point may move before its label changes, (n,), in the order
            of the rows; never too large, whatever was rounded.
        rounding: the share of the rounding error that is allowed which all that is computed may take.
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
        """The numbers that are stored, the first layer as a product of the projection and the slopes."""
        dense = len(self.kernel) + 1 + 2 * len(self.slopes) + self.weights.size + len(self.biases)
        return dense + len(self.biases) + 1 + label_weights(self.classes)

    @property
    def unshared(self) -> int:
        """The weights and biases of the three layers as the theorem has them, and of the labels' one-hot vectors."""
        m, q = self.weights.shape
        return len(self.kernel) * m + m + m * q + q + q + 1 + label_weights(self.classes)


def label_weights(classes: int) -> int:
    """The weights of the last two layers, which turn a label's number into its one-hot vector."""
    return 4 * classes + classes * (2 * classes + 1)


def construct_three_layers(x: NDArray[Any], labels: NDArray[Any], classes: int, seed: int) -> ThreeLayers:
    """The numbers of a network that maps each row to its label.

    Args:
        x: (n, d) real, finite, rows distinct.
        labels: (n,) in [0, classes).
        classes: r.
        seed: of the directions.

    Returns:
        `ThreeLayers`.

    Raises:
        ValueError: where rounding moves the values by more than the distance between labels allows.
    """
    n = len(x)
    # Every point has a unit of its own: all gaps count, also those between equal labels.
    kernel, bias, t, error = line(x, np.arange(n), seed)
    order = np.argsort(t, kind="stable")
    t = t[order]
    q = 2 * max(1, round(math.sqrt(2 * n) / 2))
    p = -(-n // q)
    padded = np.append(np.append(-np.inf, t), np.inf)
    gaps = np.minimum(t - padded[:-2], padded[2:] - t)
    gaps[~np.isfinite(gaps)] = 2 * GAP
    group, place = np.divmod(np.arange(n), q)
    # A third of the gap before and behind each group belongs to it.
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
    # Units of the second layer at both ends of each group; those without a point in the last group stay where they are.
    start = np.tile(-2 * directions, (p, 1))
    stop = start.copy()
    steep = directions[place] * 2 / gaps
    start[group, place] = values - steep * (t - first[group])
    stop[group, place] = values + steep * (last[group] - t)
    weights = np.empty((2 * p - 1, q))
    weights[::2] = (stop - start) / 2
    weights[1::2] = (start[1:] - stop[:-1]) / 2
    biases = start[0] + weights.sum(axis=0)
    summed = _summed(weights, biases, slopes, offsets, t)
    rounding = float(2 * error * (2 / gaps).max() + summed) * classes
    if rounding > 1:
        raise ValueError(
            f"Rounding may move a value by {rounding / classes:.2g}, and labels are {2 / classes:.2g} apart: float64 "
            f"is not enough for {n:,} rows of {classes} classes in two layers. Subtract the mean of x, memorise fewer "
            f"rows, or use construction='lookup' or 'hardt-ma'."
        )

    margin = np.empty(n)
    # Half the distance of two labels over the slope; the other units have not left saturation there.
    margin[order] = gaps / 2 * (1 / max(classes, 2) - 2 * summed) - 2 * error
    margin = np.maximum(margin, 0)
    return ThreeLayers(kernel, bias, slopes, offsets, weights, biases, classes, margin, rounding)


def _summed(weights: Floats, biases: Floats, slopes: Floats, offsets: Floats, t: Floats) -> float:
    """Bound by how much rounding behind the projection moves a point's value; half the distance of labels is 1 / r."""
    size = float((np.abs(weights).sum(axis=0) + np.abs(biases)).max())
    # At a point only its own group's unit is not saturated: how far rounding moves that one, times what it is worth.
    first = EPS * (np.abs(slopes) * np.abs(t).max() + np.abs(offsets))[::2]
    return size * (len(slopes) + 2) * EPS + 2 * float((np.abs(weights[::2]).max(axis=1) * first).max())


def evaluate_three_layers_exactly(network: ThreeLayers, row: ArrayLike) -> Fraction:
    """What the network would compute without any rounding: the label's number, up to the rounding of its weights.

    Args:
        network: the numbers.
        row: (d,).
    """

    def clip(value: Fraction) -> Fraction:
        return min(max(value, Fraction(-1)), Fraction(1))

    t = Fraction(network.bias)
    for weight, value in zip(network.kernel, np.asarray(row), strict=True):
        t += Fraction(float(weight)) * Fraction(float(value))
    hidden = [
        clip(Fraction(float(a)) * t + Fraction(float(b))) for a, b in zip(network.slopes, network.offsets, strict=True)
    ]
    total = Fraction(0)
    for column, bias in zip(network.weights.T, network.biases, strict=True):
        before = Fraction(float(bias))
        for weight, value in zip(column, hidden, strict=True):
            before += Fraction(float(weight)) * value
        total += clip(before)
    return Fraction(network.classes, 2) * total - Fraction(1, 2)
