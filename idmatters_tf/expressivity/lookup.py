"""Memorizers based on a projection to a line and tables of thresholds, with fewer numbers than points.

The points are projected to a line, on which the label changes from point to point. The line is cut into chunks. The
changes in a chunk (thresholds relative to its start, and the label after each) are a row of a table. A network of ReLUs
finds the chunk of a point, selects its row and counts the thresholds below the point.

"lookup": the table itself, with width and chunks of the order of sqrt(n) and 2n numbers, as for Yun, Sra & Jadbabaie
    (see `idmatters_tf.expressivity.three_layers`), who store thresholds and labels in slopes. Here they are integers,
    with a few more layers, and float64 computes everything except the projection exactly.
"bit-extraction": the row of a chunk packed into a few long numbers, which the network reads bit by bit: Park, Lee, Yun
    & Shin (arXiv 2010.13363) and Vardi, Yehudai & Shamir (arXiv 2110.03187). With O(sqrt(n) log n) bits each,
    O(sqrt(n)) numbers suffice. The 53 bits of float64 store two or three changes.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity._samples import chunks

# Integers up to 2^53 are exact in float64.
WORD_BITS = 53
# Bits of a float64 with sign and exponent.
FLOAT_BITS = 64
EPS = float(np.finfo(np.float64).eps)
# Number of random directions. The one with the largest relative gap is used.
DIRECTIONS = 16
# Smallest gap between points of different labels, in cells. Every gap contains an integer threshold, a quarter of a
# cell above the point before and an eighth below the point after it, with an eighth for rounding.
GAP = 1.5
BELOW, ABOVE, ROUNDING = 0.25, 0.125, 0.125
# relu(1 - STEEP relu(threshold - offset)) is exactly 0 an eighth of a cell below the threshold.
STEEP = 8.0
WORDS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Numbers of a network of construction "lookup" or "bit-extraction".

    Attributes:
        kernel, bias: projection, (d,) and a float. Its unit of length is a cell.
        boundaries: starts of the chunks, (chunks,), ascending.
        thresholds, labels: integers of each chunk, (chunks, slots), padded with repetitions of the last label.
        classes: r.
        threshold_bits, label_bits: bits of the packed fields.
        per_word: number of slots in one packed number, 0 if they are not packed.
        margin: lower bound for the distance in cells that the projection of a point may move before its label changes,
            (n,), in the order of the rows.
        rounding: bound for the rounding error of the projection, as a fraction of the allowed error.
    """

    kernel: NDArray[np.float64]
    bias: float
    boundaries: NDArray[np.float64]
    thresholds: NDArray[Any]
    labels: NDArray[Any]
    classes: int
    threshold_bits: int
    label_bits: int
    per_word: int
    margin: NDArray[np.float64]
    rounding: float = 0.0

    @property
    def radii(self) -> NDArray[np.float64]:
        """Distances that the rows may move in any direction before their labels change, (n,), in the norm of x."""
        return radii_below(self.margin, self.kernel)

    @property
    def word_bits(self) -> int:
        """Bits of the longest number in the table."""
        if not self.per_word:
            return max(self.threshold_bits, self.label_bits)
        return self.per_word * (self.threshold_bits + self.label_bits)

    def table(self) -> NDArray[Any]:
        """Return the table with the start and the numbers of each chunk, an object array (chunks, 1 + numbers).

        A packed number contains `per_word` slots, the first in the highest bits, each a threshold and its label.
        """
        starts = self.boundaries.astype(object)[:, None]
        if not self.per_word:
            return np.concatenate([starts, self.thresholds, self.labels], axis=1)
        fields = (self.thresholds.astype(object) << self.label_bits) | self.labels.astype(object)
        fields = fields.reshape(len(starts), -1, self.per_word)
        words = fields[:, :, 0]
        for slot in range(1, self.per_word):
            words = (words << (self.threshold_bits + self.label_bits)) | fields[:, :, slot]
        return np.concatenate([starts, words], axis=1)

    @property
    def parameters(self) -> int:
        """Number of stored numbers."""
        numbers = self.thresholds.shape[1] * 2 if not self.per_word else self.thresholds.shape[1] // self.per_word
        return len(self.kernel) + 1 + len(self.boundaries) * (numbers + 2) + count_label_weights(self.classes)

    @property
    def unshared(self) -> int:
        """Number of weights and biases of the ReLU network, with every copy of a shared one counted."""
        per_word, packed = self.per_word or 1, bool(self.per_word)
        rows, numbers = len(self.boundaries), self.thresholds.shape[1] // per_word
        return count_unshared(len(self.kernel), rows, numbers, per_word, self.word_bits, self.classes, packed)


def count_label_weights(classes: int) -> int:
    """Count the weights of the last two layers, which map a label to its one-hot vector."""
    return 4 * classes + classes * (2 * classes + 1)


def count_unshared(dim: int, rows: int, numbers: int, per_word: int, bits: int, classes: int, packed: bool) -> int:
    """Count the weights of the network without sharing.

    A chunk has six: relu(B - t), relu(1 - 8 .), relu(. - next). A bit has seven: relu(half - y), relu(1 - .),
    2 y - full ., and the sum of the bits. A slot has ten: relu(threshold - offset), relu(1 - 8 .), relu(. - next),
    relu(label - L + L .) and the sum.
    """
    slots = numbers * per_word
    table = rows * (numbers + 1 if packed else 2 * numbers + 1)
    bit_weights = 7 * numbers * bits if packed else 0
    return dim + 1 + 6 * rows + table + bit_weights + 10 * slots + count_label_weights(classes)


def radii_below(margin: NDArray[np.float64], kernel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide distances on the line by the norm of the projection, rounded down.

    Args:
        margin: (n,), 0 or more.
        kernel: (d,), not zero.

    Returns:
        (n,) float64.
    """
    exponent = int(np.frexp(np.abs(kernel).max())[1])
    norm = np.linalg.norm(np.ldexp(kernel, -exponent)) * (1 + (len(kernel) + 8) * EPS)
    with np.errstate(over="ignore", under="ignore"):
        radii = np.ldexp(margin / norm * (1 - 4 * EPS), -exponent)
    return np.where(margin > 0, np.nextafter(radii, 0), 0.0)


def lower_bound(rows: int, classes: int, bits: int = FLOAT_BITS) -> int:
    """Return a lower bound for the numbers that any memorizer of arbitrary labels stores.

    There are classes^rows labellings, which require different networks, and each number has 2^bits values. The
    architecture is the same for all labellings.

    Args:
        rows: n.
        classes: r.
        bits: bits of a number, 64 for a float64 with sign and exponent.

    Example: CIFAR-10 with random labels.

    >>> lower_bound(50_000, 10)
    2596
    """
    return math.ceil(rows * math.log2(classes) / bits)


def construct_lookup(
    x: NDArray[Any], labels: NDArray[Any], classes: int, packed: bool, seed: int, word_bits: int = WORD_BITS
) -> Lookup:
    """Compute the numbers of a network that maps each row to its label.

    Args:
        x: (n, d) real, finite, distinct rows.
        labels: (n,) in [0, classes).
        classes: r.
        packed: True to pack the row of a chunk into long numbers ("bit-extraction"), False for "lookup".
        seed: seed of the directions.
        word_bits: bits of the long numbers. Above 53 they are exact only in `evaluate_exactly`.

    Returns:
        `Lookup`.

    Raises:
        ValueError: if the rounding of the projections is too large for the gaps between them.
    """
    kernel, bias, t, error = line(x, labels, seed)
    order = np.argsort(t, kind="stable")
    t, labels = t[order], labels[order].astype(np.int64)
    changes = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    # The first chunk starts before the first point, by half the first gap between labels.
    room = float(t[changes[0]] - t[changes[0] - 1]) if len(changes) else 2.0
    before = np.concatenate([[t[0] - max(room, 2.0)], t[changes - 1]])
    behind = t[np.concatenate([[0], changes])]
    names = labels[np.concatenate([[0], changes])]
    label_bits = max(1, int(classes - 1).bit_length())
    starts, slots, threshold_bits, per_word = _layout(
        before, behind, label_bits, classes, x.shape[1], packed, word_bits
    )
    boundaries = (before[starts] + behind[starts]) / 2
    thresholds = np.full((len(starts), slots), (1 << threshold_bits) - 1, object)
    padded_labels = np.empty((len(starts), slots), object)
    lowest = np.empty(len(names))
    for row, (first, last) in enumerate(zip(starts, [*starts[1:], len(names)], strict=True)):
        own = _thresholds(before[first:last] - boundaries[row], behind[first:last] - boundaries[row], threshold_bits)
        own[0] = 0.0
        lowest[first:last] = own + boundaries[row]
        lowest[first] = boundaries[row]
        thresholds[row, : last - first] = [int(value) for value in own]
        padded_labels[row] = [int(name) for name in names[first:last]] + [int(names[last - 1])] * (slots - last + first)
    segment = np.searchsorted(changes, np.arange(len(t)), side="right")
    # A point is below the next threshold up to an eighth of a cell before it.
    upper = np.append(lowest[1:] - 1 / STEEP, np.inf)[segment]
    margin = np.empty(len(t))
    places = max(np.abs(t).max(), np.abs(lowest).max(), np.abs(boundaries).max())
    margin[order] = np.minimum(t - lowest[segment], upper - t) - 2 * error - 8 * EPS * places
    return Lookup(
        kernel,
        bias,
        boundaries,
        thresholds,
        padded_labels,
        classes,
        threshold_bits,
        label_bits,
        per_word,
        np.maximum(margin, 0),
        rounding=float(2 * error / ROUNDING),
    )


def _thresholds(before: NDArray[np.float64], behind: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """Return the integer of at most `bits` bits nearest to the middle of each gap, with a margin at both ends."""
    low, high = np.ceil(before + BELOW), np.floor(behind - ABOVE)
    return np.minimum(np.clip(np.round((before + behind) / 2), low, np.maximum(low, high)), 2.0**bits - 1)


def line(
    x: NDArray[Any], labels: NDArray[Any], seed: int
) -> tuple[NDArray[np.float64], float, NDArray[np.float64], float]:
    """Project the rows to a line by the best of 16 random directions.

    The unit of length is a cell: the smallest gap between different labels is 1.5 cells.

    Args:
        x: (n, d) real, finite, distinct rows.
        labels: (n,). Rows with the same label need not be separated.
        seed: seed of the directions.

    Returns:
        (kernel (d,), bias, projected rows (n,), bound for their rounding errors).

    Raises:
        ValueError: if the rounding of the projections is too large for the gaps between them.
    """
    directions = np.random.default_rng(seed).standard_normal((x.shape[1], DIRECTIONS))
    T, sizes = np.empty((len(x), DIRECTIONS)), np.zeros(DIRECTIONS)
    for rows in chunks(x):
        part = x[rows].astype(np.float64)
        T[rows] = part @ directions
        np.maximum(sizes, (np.abs(part) @ np.abs(directions)).max(axis=0), out=sizes)
    gaps = np.array([_smallest_gap(t, labels) for t in T.T])
    best = int(np.argmax(gaps / sizes))
    if not gaps[best] > 0:
        raise ValueError(
            f"In each of {DIRECTIONS} directions, float64 projects two rows of different labels to the same number. "
            f"Subtract the mean of x, scale its columns to similar sizes, or use construction='hardt-ma'."
        )
    # A single label has no gaps, and any scale is valid.
    scale = GAP / gaps[best] if np.isfinite(gaps[best]) else 1.0 / (sizes[best] or 1.0)
    kernel = directions[:, best] * scale
    bias = 2.0 - float(T[:, best].min() * scale)
    # Bound for sums in any order (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1).
    error = (x.shape[1] + 2) * EPS * (float(sizes[best] * scale) + abs(bias))
    # The projection is rounded twice, here and in the network.
    if 2 * error > ROUNDING:
        raise ValueError(
            f"float64 is not enough for {len(x):,} rows on one line: rounding may reach {error / GAP:.2g} of the "
            f"smallest gap, and {ROUNDING / GAP / 2:.2g} is allowed. Subtract the mean of x, memorize fewer rows, or "
            f"use construction='hardt-ma'."
        )
    t = np.empty(len(x))
    for rows in chunks(x):
        t[rows] = x[rows].astype(np.float64) @ kernel + bias
    return kernel, bias, t, error


def _smallest_gap(t: NDArray[np.float64], labels: NDArray[Any]) -> float:
    """Return the smallest gap between neighbors of different labels, infinite if there are none."""
    order = np.argsort(t, kind="stable")
    t, labels = t[order], labels[order]
    gaps = np.diff(t)[labels[1:] != labels[:-1]]
    return float(gaps.min(initial=np.inf))


def _layout(
    before: NDArray[np.float64],
    behind: NDArray[np.float64],
    label_bits: int,
    classes: int,
    dim: int,
    packed: bool,
    word_bits: int,
) -> tuple[NDArray[np.int64], int, int, int]:
    """Return the first change of each chunk, slots of a chunk, bits of a threshold, and slots of a packed number."""
    count = len(before)
    if not packed:
        slots = max(1, math.isqrt(count))
        return _greedy(before, behind, slots, WORD_BITS - 2), slots, WORD_BITS - 2, 0
    best, cost = None, math.inf
    if word_bits > WORD_BITS:
        # One long number for each chunk of about sqrt(n) changes, with as many bits as necessary.
        slots = math.isqrt(count - 1) + 1
        bits = math.ceil(behind[-1] - before[0]).bit_length()
        per_word = max(1, min(slots, word_bits // (bits + label_bits)))
        slots = -(-slots // per_word) * per_word
        return _greedy(before, behind, slots, bits), slots, bits, per_word
    for per_word in range(1, word_bits // (label_bits + 1) + 1):
        bits = word_bits // per_word - label_bits
        if per_word > 1 and bits < 4:
            break
        for words in WORDS:
            starts = _greedy(before, behind, words * per_word, bits)
            used = per_word * (bits + label_bits)
            total = count_unshared(dim, len(starts), words, per_word, used, classes, True)
            if total < cost:
                best, cost = (starts, words * per_word, bits, per_word), total
    assert best is not None
    return best


def _greedy(before: NDArray[np.float64], behind: NDArray[np.float64], slots: int, bits: int) -> NDArray[np.int64]:
    """Return the longest possible chunks, with at most `slots` changes and thresholds of at most `bits` bits."""
    starts, first, reach = [], 0, 2.0**bits - 2
    while first < len(before):
        starts.append(first)
        boundary = (before[first] + behind[first]) / 2
        within = int(np.searchsorted(before, boundary + reach, side="right"))
        first = min(first + slots, max(within, first + 1))
    return np.array(starts)
