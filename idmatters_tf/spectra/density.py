"""Spectral density estimation by stochastic Lanczos quadrature."""

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from idmatters_tf._arguments import positive_integer
from idmatters_tf._presentation.progress import Progress
from idmatters_tf._presentation.results import Drawing, Figure, Result
from idmatters_tf.spectra.eigenpairs import multiply_rows, orthogonalize
from idmatters_tf.spectra.estimators import Estimate, estimate_mean
from idmatters_tf.spectra.operators import Array, Matrix, as_operator, magnitude


@dataclasses.dataclass(frozen=True, repr=False)
class SpectralDensity(Result, Drawing):
    """Smoothed density of an operator's eigenvalues, which integrates to 1. `plot(path)` draws it.

    Attributes:
        grid: points on the axis of eigenvalues, (points,).
        density: mean over the probes, (points,).
        standard_error: standard error of that mean, (points,); NaN with one probe.
        bandwidth: standard deviation of the Gaussian kernel.
        nodes, weights: quadrature rule of each probe, (probes, steps). Each row of weights sums to 1.
    """

    grid: Array
    density: Array
    standard_error: Array
    bandwidth: float
    nodes: Array
    weights: Array

    def band(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return (low, high), the interval of `Estimate.interval` at each point of the grid, (points,) each."""
        return Estimate(self.density, self.standard_error, len(self.nodes)).interval(level)

    def mean(self, function: Callable[[Array], Array | NDArray[np.bool_]]) -> Estimate[float]:
        """Estimate the mean of a function of the eigenvalues; times P it is a trace."""
        return estimate_mean(np.sum(self.weights * function(self.nodes), axis=1))

    def index(self, tolerance: float | None = None) -> Estimate[float]:
        """Estimate the fraction of eigenvalues below -tolerance; 1 % of the largest in magnitude if None.

        A node represents all eigenvalues near it. The signs of eigenvalues close to zero require many steps, or the
        dense matrix and `summarize`. The standard error covers the random probes, not the truncation to few steps.
        """
        tolerance = 0.01 * float(np.abs(self.nodes).max()) if tolerance is None else tolerance
        return self.mean(lambda nodes: nodes < -tolerance)

    def draw(self, figure: Figure) -> None:
        """Draw the density on a logarithmic scale, with the 95 % interval of the mean over the probes."""
        axes = figure.subplots()
        floor = self.density.max() * 1e-7
        axes.semilogy(self.grid, np.maximum(self.density, floor), color="tab:blue")
        if np.isfinite(self.standard_error).all():
            low, high = self.band()
            axes.fill_between(self.grid, np.maximum(low, floor), np.maximum(high, floor), alpha=0.3)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_ylim(bottom=floor)
        axes.set(xlabel="eigenvalue", ylabel="density")
        axes.grid(alpha=0.3)


def spectral_density(
    operator: Matrix,
    probes: int = 4,
    steps: int = 25,
    points: int = 400,
    bandwidth: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> SpectralDensity:
    """Estimate the density of an operator's eigenvalues by stochastic Lanczos quadrature.

    Each probe is a random vector of independent signs. It gives a quadrature rule whose nodes are the eigenvalues of
    the Lanczos tridiagonal matrix and whose weights are the squares of their eigenvectors' first entries. Lanczos runs
    with full reorthogonalization.
    Source: Ubaru, Chen & Saad, 2017; for neural networks Ghorbani, Krishnan & Xiao, 2019.

    Args:
        operator: symmetric operator or matrix.
        probes: number of probes. The error is proportional to 1 / sqrt(probes); see also `Estimate.interval`.
        steps: Lanczos steps and products per probe, at most the size of the operator. The cost is probes * steps
            products, 100 by default.
        points: number of grid points.
        bandwidth: standard deviation of the smoothing kernel. If None, 0.8 / steps of the spectrum's width, at least
            1 %. The resolution of `steps` nodes is about as fine.
        seed: seed of the probes.
        progress: True shows a progress bar on standard error.

    Returns:
        `SpectralDensity`.
    """
    operator = as_operator(operator)
    size = operator.shape[0]
    positive_integer("probes", probes)
    steps = min(positive_integer("steps", steps), size)
    if positive_integer("points", points) < 2:
        raise ValueError(f"Argument `points` must be at least 2. Received: points={points}")
    rng = np.random.default_rng(seed)
    # Several probes share passes through the data while their bases stay below a gigabyte.
    together = max(1, min(probes, 2**30 // (size * steps * operator.dtype.itemsize)))
    nodes = np.zeros((probes, steps))
    weights = np.zeros((probes, steps))
    with Progress(probes * steps, "spectral density", progress, unit="products") as bar:
        for first in range(0, probes, together):
            count = min(together, probes - first)
            signs = rng.integers(0, 2, (size, count)) * 2.0 - 1
            diagonals, off_diagonals = _lanczos(operator, signs, steps, bar)
            for probe in range(count):
                nodes[first + probe], weights[first + probe] = _quadrature(diagonals[probe], off_diagonals[probe])
    return _smooth(nodes, weights, points, bandwidth)


def bounded_percentile(nodes: Array, weights: Array, size: int) -> tuple[float, float]:
    """Return the 10th percentile of |eigenvalues| from the quadrature of a random vector, with a bound of its error.

    The components of the vector between two nodes have at least the weight of the nodes strictly between them, and at
    most that of these and the two nodes (Chebyshev, Markov & Stieltjes). The weight of a tenth of the eigenvalues has a
    standard deviation of about sqrt(2 * 0.1 * 0.9 / size), of which two are added.

    Args:
        nodes: ascending nodes, (steps,).
        weights: weights of the nodes, (steps,).
        size: number of eigenvalues.
    """
    sizes = np.abs(nodes)
    order = np.argsort(sizes)
    value = float(sizes[order][min(np.searchsorted(np.cumsum(weights[order]), 0.1), len(nodes) - 1)])
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    slack = 2 * np.sqrt(0.18 / size)
    low = 0.0
    for radius in sizes[order]:
        # Nodes closer to zero than the radius are start, ..., stop - 1.
        start, stop = np.searchsorted(nodes, -radius, "right"), np.searchsorted(nodes, radius, "left")
        if sums[min(stop + 1, len(nodes))] - sums[max(start - 1, 0)] < 0.1 - slack:
            low = float(radius)
        start, stop = np.searchsorted(nodes, -radius, "left"), np.searchsorted(nodes, radius, "right")
        if sums[max(stop - 1, start)] - sums[min(start + 1, stop)] >= 0.1 + slack:
            return value, max(value - low, float(radius) - value)
    return value, max(value - low, float(sizes.max()) - value)


def _smooth(nodes: Array, weights: Array, points: int, bandwidth: float | None) -> SpectralDensity:
    """Compute the density of quadrature rules, (probes, steps), with a Gaussian kernel."""
    low = nodes.min()
    high = nodes.max()
    span = max(high - low, 1e-12 * (max(abs(high), abs(low)) or 1.0))
    # Narrower kernels would show single nodes.
    width = float(max(0.01, 0.8 / nodes.shape[1]) * span if bandwidth is None else bandwidth)
    if not width > 0:
        raise ValueError(f"Argument `bandwidth` must be positive. Received: bandwidth={bandwidth}")
    grid = np.linspace(low - 4 * width, high + 4 * width, points)
    bumps = np.exp(-(((grid - nodes[..., None]) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi))
    estimate = estimate_mean(np.einsum("ps,psg->pg", weights, bumps))
    return SpectralDensity(grid, np.asarray(estimate.value), np.asarray(estimate.standard_error), width, nodes, weights)


def _lanczos(operator: LinearOperator, starts: Array, steps: int, bar: Progress) -> tuple[Array, Array]:
    """Return the tridiagonal matrices of independent Lanczos recurrences from `starts`, (P, probes).

    Returns:
        Diagonals (probes, steps) and off-diagonals (probes, steps - 1). A recurrence that ends early is padded with
        zeros, which have no weight.
    """
    size, probes = starts.shape
    basis = np.zeros((probes, steps, size), operator.dtype)
    diagonals = np.zeros((probes, steps))
    off_diagonals = np.zeros((probes, steps - 1))
    vectors = (starts / np.linalg.norm(starts, axis=0)).T.astype(operator.dtype)
    scale = np.zeros(probes)
    unit = 0.0
    for step in range(steps):
        basis[:, step] = vectors
        products = multiply_rows(operator, vectors)
        unit = unit or magnitude(products) or 1.0
        products /= unit
        # Against all earlier vectors, to avoid multiple copies of eigenvalues. Twice is enough (Kahan).
        for probe, row in enumerate(products):
            earlier = basis[probe, : step + 1]
            diagonals[probe, step] = sum(orthogonalize(row[None], earlier)[-1, 0] for _ in range(2))
        bar.advance(probes)
        if step + 1 == steps:
            break
        lengths = np.linalg.norm(products, axis=1)
        scale = np.maximum(scale, np.maximum(np.abs(diagonals[:, step]), lengths))
        ended = lengths <= 10 * np.finfo(operator.dtype).eps * scale
        off_diagonals[:, step] = np.where(ended, 0.0, lengths)
        vectors = np.where(ended[:, None], 0, products / np.where(ended, 1.0, lengths)[:, None]).astype(operator.dtype)
    return unit * diagonals, unit * off_diagonals


def _quadrature(diagonal: Array, off_diagonal: Array) -> tuple[Array, Array]:
    """Return nodes and weights, (steps,) each.

    If the recurrence ended early, the last node is repeated with weight zero.
    """
    ends = np.flatnonzero(off_diagonal == 0)
    steps = int(ends[0]) + 1 if ends.size else len(diagonal)
    nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonal[:steps], off_diagonal[: steps - 1])
    missing = (0, len(diagonal) - steps)
    return np.pad(nodes, missing, mode="edge"), np.pad(vectors[0] ** 2, missing)
