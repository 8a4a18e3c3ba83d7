"""Certified radii: distances that a point may move in any direction before the answer of a memorizer changes."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf.expressivity._dyadic import Dyadic, root_below
from idmatters_tf.expressivity._exact_blocks import EPS, UNDERFLOW, ExactBlocks, Stretch, Units, rounding
from idmatters_tf.expressivity._exact_layers import find_construction, layer_names, residual_weights
from idmatters_tf.expressivity._samples import check_sample
from idmatters_tf.expressivity.construction import Weights

Floats = NDArray[np.float64]


def certified_radii(model: keras.Model, x: ArrayLike, progress: Callable[[int, int], object] | None = None) -> Floats:
    """Compute, for each row, the radius of a ball in which the answer of a "hardt-ma" network is constant.

    It is the smaller of two distances: to the nearest hyperplane on which an activation changes, |pre-activation| /
    ||gradient|| over all units, and to the point at which another class has an equal output. Inside the ball the
    network is affine.

    The radius describes the network as a function of real numbers. It is computed in rational arithmetic and rounded
    down: it is never larger than the exact radius, and smaller by at most one float. Float64 only selects candidates
    for the nearest hyperplane. Rounding errors of a machine's outputs are not included. Time grows with rows times
    units times width, and with the square of the number of blocks in which a row fires.

    The radii of the other constructions are distances on a line, see `LookupReport.smallest_radius`.

    Args:
        model: model of `memorize`, possibly loaded from a file.
        x: (n, d) finite rows, from the sample or not, rounded to float64.
        progress: callable that receives (rows done, n).

    Returns:
        (n,) float64, in the norm of x. 0 if the two largest outputs are equal, inf if no input changes the answer.

    Raises:
        ValueError: if the model has another construction or weights that are not finite, or if `x` is invalid.
    """
    if find_construction(model) != "hardt-ma":
        raise ValueError(
            f"Argument `model` must be of construction='hardt-ma'. Received: layers {layer_names(model)}. For other "
            f"constructions use `model.report.smallest_radius`."
        )
    return compute_radii(residual_weights(model), x, progress)


def compute_radii(weights: Weights, x: ArrayLike, progress: Callable[[int, int], object] | None = None) -> Floats:
    """Compute `certified_radii` of the network with these weights.

    Args:
        weights: weights of the network.
        x: (n, d).
        progress: callable that receives (rows done, n).

    Returns:
        (n,) float64, in the norm of x.
    """
    x, *_ = check_sample(x, np.zeros(len(np.asarray(x)), int))
    if x.shape[1] != len(weights.projection):
        raise ValueError(f"Argument `x` must have rows of length {len(weights.projection)}. Received: shape {x.shape}")
    network = _Network(weights)
    radii = np.empty(len(x))
    for row, point in enumerate(x):
        radii[row] = network.radius(point)
        if progress is not None and (row + 1) % 100 == 0:
            progress(row + 1, len(x))
    return radii


class _Network:
    """Weights of a network in the forms that are shared by all rows."""

    def __init__(self, weights: Weights):
        self.projection = Dyadic.exactly(weights.projection)
        self.bias = Dyadic.exactly(np.zeros(1) if weights.bias is None else weights.bias)
        self.blocks = ExactBlocks(weights.U, weights.s, weights.V)
        self.last = Units(weights.last_U, weights.last_s)
        self.last_V = weights.last_V
        self.lengths = _Lengths(self.projection)
        self.start = Dyadic.exactly(np.eye(weights.projection.shape[1], dtype=int))
        # All rows have the same gradients at the first block.
        self.first = _Gradients(self.lengths, Dyadic.exactly(np.eye(weights.projection.shape[1], dtype=int)))
        self.first_bounds = self.first.bounds(self.blocks.units.columns, self.blocks.units.norms)

    def radius(self, point: NDArray[Any]) -> float:
        h, gradients, units = Dyadic.exactly(point) @ self.projection + self.bias, self.first, self.blocks.units
        search, largest = _Search(), np.ldexp(self.first_bounds[1], self.first.scale - self.lengths.scale)
        for stretch in self.blocks.stretches(h):
            bounds = self.first_bounds if gradients is self.first else None
            search.through(stretch, units, gradients, largest[stretch.units], bounds)
            if len(stretch.fires):
                rows = self.blocks.V[stretch.fires]
                largest += gradients.growth(stretch.fires, units, rows)
                gradients = gradients.behind(units.column(stretch.fires), Dyadic.exactly(rows))
            h = stretch.behind
        return self._behind_the_blocks(h, gradients, search)

    def _behind_the_blocks(self, h: Dyadic, gradients: "_Gradients", search: "_Search") -> float:
        rounded, scale = h.floats()
        everything = slice(0, len(self.last.norms))
        before, errors = self.last.before(rounded, scale, everything)
        nowhere = np.full(len(before), np.inf)
        stretch = Stretch(everything, h, before, errors, scale, h, np.empty(0, np.int64))
        search.through(stretch, self.last, gradients, nowhere)
        hidden = self.last.values(h, np.arange(everything.stop)).relu()
        fires = np.flatnonzero(hidden.integers)
        V = Dyadic.exactly(self.last_V[fires])
        outputs = hidden[fires] @ V if len(fires) else Dyadic.exactly(np.zeros(self.last_V.shape[1], int))
        best = int(np.argmax(outputs.integers))
        others = np.flatnonzero(np.arange(len(outputs.integers)) != best)
        lead = outputs[[best]] - outputs[others]
        if not all(lead.integers):
            return 0.0
        if len(others):
            columns = self.last.column(fires) @ (V[:, [best]] - V[:, others])
            search.among(lead, columns, gradients)
        return math.inf if search.squared is None else root_below(search.squared)


class _Lengths:
    """Lengths ||projection w||, exactly and in floating point from k instead of d numbers."""

    def __init__(self, projection: Dyadic):
        floats, self.scale = projection.floats()
        self.gram = projection.T @ projection
        self.root, self.slack = floats, 0.0
        size = float(np.linalg.norm(floats))
        if floats.shape[0] > floats.shape[1]:
            # | ||root w||^2 - ||floats w||^2 | <= slack ||w||^2 for any accuracy of the factorization.
            self.root = np.asarray(np.linalg.qr(floats, mode="r"))
            residual = floats.T @ floats - self.root.T @ self.root
            both = size**2 + float(np.linalg.norm(self.root)) ** 2
            self.slack = float(np.linalg.norm(residual)) + rounding(len(floats)) * both
        self.size = float(np.linalg.norm(self.root))


class _Gradients:
    """Gradients of functions <u, h> with respect to the input: projection jacobian u."""

    def __init__(self, lengths: _Lengths, jacobian: Dyadic):
        self.lengths, self._jacobian = lengths, jacobian
        floats, scale = jacobian.floats()
        self.scale = scale + lengths.scale
        self._root = lengths.root @ floats
        size = float(np.linalg.norm(floats))
        self._rounding = rounding(len(lengths.root) + 2 * len(floats))
        self._error = self._rounding * lengths.size * size
        self._slack = lengths.slack * size**2

    def behind(self, U: Dyadic, V: Dyadic) -> "_Gradients":
        """Return the gradients after a block in which units with these columns (k, f) and rows (f, k) fire."""
        return _Gradients(self.lengths, self._jacobian + (self._jacobian @ U) @ V)

    def growth(self, fires: NDArray[np.integer], units: Units, V: Floats) -> Floats:
        """Bound the growth of all units' gradients, over 2^lengths.scale, when some units fire."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            along = self.bounds(units.columns[:, fires], units.norms[fires])[1]
            along = np.ldexp(along, self.scale - self.lengths.scale - units.scales[fires])
            sizes = np.linalg.norm(V, axis=1)
            moved = np.abs(V @ units.columns) + rounding(V.shape[1]) * sizes[:, None] * units.norms + UNDERFLOW
            return (1 + rounding(len(fires))) * (along @ moved)

    def bounds(self, columns: Floats, norms: Floats) -> tuple[Floats, Floats]:
        """Return lower and upper bounds for the lengths of gradients, over 2^scale, of columns u with these norms."""
        lengths = np.linalg.norm(self._root @ columns, axis=0)
        errors, slack = self._rounding * lengths + self._error * norms, self._slack * norms**2
        lower = np.sqrt(np.maximum(np.maximum(lengths - errors, 0) ** 2 - slack, 0))
        upper = np.sqrt((lengths + errors) ** 2 + slack)
        return lower * (1 - 16 * EPS), upper * (1 + 16 * EPS) + UNDERFLOW

    def squared(self, column: Dyadic) -> Fraction:
        """Compute a gradient's squared length exactly."""
        w = self._jacobian @ column
        return (w @ (self.lengths.gram @ w)).fractions()[0]


class _Search:
    """Search for the nearest zero of affine functions.

    Attributes:
        squared: smallest squared distance so far, None if all gradients were zero.
    """

    squared: Fraction | None = None

    def through(
        self,
        stretch: Stretch,
        units: Units,
        gradients: _Gradients,
        largest: Floats,
        bounds: tuple[Floats, Floats] | None = None,
    ) -> None:
        """Include the units of a stretch in the search.

        Args:
            stretch: the stretch.
            units: units of all stretches.
            gradients: gradients in the stretch.
            largest: (units of the stretch,), upper bounds for the gradients, over 2^lengths.scale.
            bounds: bounds for the gradients of all units, if known.
        """
        here = stretch.units
        with np.errstate(invalid="ignore"):
            # 1e-9 exceeds the rounding of sums of millions of terms.
            reachable = (1 + 1e-9) * self._limit(stretch.scale - gradients.lengths.scale) * largest + UNDERFLOW
            near = ~(np.abs(stretch.before) - stretch.errors > reachable) & ~units.constant[here]
        numbers = here.start + np.flatnonzero(near)
        if bounds is None:
            lower, upper = gradients.bounds(units.columns[:, numbers], units.norms[numbers])
        else:
            lower, upper = (bound[numbers] for bound in bounds)
        scale = stretch.scale - gradients.scale

        def exactly(place: int) -> tuple[Fraction, Dyadic]:
            unit = numbers[[place]]
            return units.values(stretch.h, unit).fractions()[0], units.column(unit)[:, 0]

        self._take(stretch.before[near], stretch.errors[near], lower, upper, scale, gradients, exactly)

    def among(self, values: Dyadic, columns: Dyadic, gradients: _Gradients) -> None:
        """Include functions with these values at the point, and these columns u (k, functions)."""
        floats, scale = columns.floats()
        shifts = -np.frexp(np.abs(floats).max(axis=0))[1]
        floats = np.ldexp(floats, shifts)
        rounded, values_scale = values.floats()
        rounded = np.ldexp(rounded, shifts)
        lower, upper = gradients.bounds(floats, np.linalg.norm(floats, axis=0))
        errors = 4 * EPS * np.abs(rounded) + UNDERFLOW

        def exactly(place: int) -> tuple[Fraction, Dyadic]:
            return values[[place]].fractions()[0], columns[:, place]

        self._take(rounded, errors, lower, upper, values_scale - scale - gradients.scale, gradients, exactly)

    def _take(
        self,
        values: Floats,
        errors: Floats,
        lower: Floats,
        upper: Floats,
        scale: int,
        gradients: _Gradients,
        exactly: Callable[[int], tuple[Fraction, Dyadic]],
    ) -> None:
        """Compute the candidates for the nearest zero exactly."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            nearest = np.maximum(np.abs(values) - errors, 0) / upper * (1 - 4 * EPS)
            farthest = (np.abs(values) + errors) / lower * (1 + 4 * EPS)
        nearest, farthest = np.nan_to_num(nearest, nan=0.0), np.where(np.isnan(farthest), np.inf, farthest)
        within = farthest.min(initial=np.inf)
        for place in np.argsort(nearest):
            if nearest[place] > min(within, self._limit(scale)):
                break
            value, column = exactly(int(place))
            length = gradients.squared(column)
            if length:
                squared = value**2 / length
                self.squared = squared if self.squared is None else min(self.squared, squared)

    def _limit(self, scale: int) -> float:
        """Return the smallest distance so far, over 2^scale, rounded up."""
        if self.squared is None:
            return math.inf
        return math.nextafter(root_below(self.squared * Fraction(4) ** -scale), math.inf)
