"""The density of an operator's eigenvalues, by stochastic Lanczos quadrature."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._progress import Progress
from idmatters_tf.curvature._memory import check_fits
from idmatters_tf.curvature.estimators import Estimate, mean_of

Floats = NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True)
class SpectralDensity:
    """The eigenvalues of an operator as a smoothed density, which integrates to 1.

    Attributes:
        grid: (points,).
        density: (points,), the mean over the probes.
        standard_error: (points,), of that mean; NaN with one probe.
        bandwidth: standard deviation of the Gaussian that each eigenvalue is spread to.
        nodes, weights: (probes, steps), the quadrature rule of each probe; each row of weights sums to 1.
    """

    grid: Floats
    density: Floats
    standard_error: Floats
    bandwidth: float
    nodes: Floats
    weights: Floats

    def band(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """(low, high), (points,) each: at each point of the grid the interval of `Estimate.interval`."""
        return Estimate(self.density, self.standard_error, len(self.nodes)).interval(level)

    def mean(self, function: Callable[[Floats], NDArray[Any]]) -> Estimate:
        """The mean of a function of the eigenvalues; times P it is a trace."""
        return mean_of(np.sum(self.weights * function(self.nodes), axis=1))

    def index(self, tolerance: float | None = None) -> Estimate:
        """The fraction of eigenvalues below -tolerance; 1 % of the largest in size if None.

        A node stands for all eigenvalues near it: how many of those close to zero are negative takes many steps, or the
        dense matrix and `summarize`. The standard error is that of the random probes, not of so few steps.
        """
        tolerance = 0.01 * float(np.abs(self.nodes).max()) if tolerance is None else tolerance
        return self.mean(lambda nodes: nodes < -tolerance)


def spectral_density(
    operator: Any,
    probes: int = 10,
    steps: int = 80,
    points: int = 400,
    bandwidth: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> SpectralDensity:
    """The density of an operator's eigenvalues, by stochastic Lanczos quadrature with full reorthogonalisation.

    Each probe, a random vector of independent signs, gives a quadrature rule whose nodes and weights are the
    eigenvalues of the Lanczos tridiagonal matrix and the squares of their eigenvectors' first entries.
    Source: Ubaru, Chen & Saad, 2017; for neural networks Ghorbani, Krishnan & Xiao, 2019.

    Args:
        operator: a symmetric operator or matrix.
        probes: how many; the error falls like one over their square root.
        steps: of Lanczos for each, at most the size of the operator; as many products.
        points: of the grid.
        bandwidth: of the smoothing; 1 % of the spectrum's width if None.
        seed: of the probes.
        progress: whether a bar on standard error counts the products.

    Returns:
        `SpectralDensity`.
    """
    operator = scipy.sparse.linalg.aslinearoperator(operator)
    size = operator.shape[0]
    positive_integer("probes", probes)
    steps = min(positive_integer("steps", steps), size)
    if positive_integer("points", points) < 2:
        raise ValueError(f"Argument `points` must be at least 2. Received: points={points}")
    check_fits(size, steps, operator.dtype, f"the Lanczos basis of {steps} steps", "Use fewer `steps`.")
    rng = np.random.default_rng(seed)
    # Several probes share the passes through the data, as long as their bases stay below a gigabyte.
    together = max(1, min(probes, 2**30 // (size * steps * operator.dtype.itemsize)))
    nodes, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    with Progress(probes * steps, "spectral density", progress, unit="products") as bar:
        for first in range(0, probes, together):
            count = min(together, probes - first)
            signs = rng.integers(0, 2, (size, count)) * 2.0 - 1
            diagonals, off_diagonals = _lanczos(operator, signs, steps, bar)
            for probe in range(count):
                nodes[first + probe], weights[first + probe] = _quadrature(diagonals[probe], off_diagonals[probe])
    return smoothed(nodes, weights, points, bandwidth)


def smoothed(nodes: Floats, weights: Floats, points: int = 400, bandwidth: float | None = None) -> SpectralDensity:
    """The density of quadrature rules, each node spread to a Gaussian.

    Args:
        nodes, weights: (probes, steps), each row of weights sums to 1.
        points, bandwidth: see `spectral_density`.
    """
    low, high = nodes.min(), nodes.max()
    width = float(0.01 * max(high - low, 1e-12 * max(abs(high), abs(low), 1.0)) if bandwidth is None else bandwidth)
    if not width > 0:
        raise ValueError(f"Argument `bandwidth` must be positive. Received: bandwidth={bandwidth}")
    grid = np.linspace(low - 4 * width, high + 4 * width, points)
    bumps = np.exp(-((grid - nodes[..., None]) ** 2) / (2 * width**2)) / (width * np.sqrt(2 * np.pi))
    estimate = mean_of(np.einsum("ps,psg->pg", weights, bumps))
    return SpectralDensity(grid, np.asarray(estimate.value), np.asarray(estimate.standard_error), width, nodes, weights)


def _lanczos(operator: Any, starts: Floats, steps: int, bar: Progress) -> tuple[Floats, Floats]:
    """The tridiagonal matrices of independent Lanczos recurrences.

    Args:
        starts: (P, probes).

    Returns:
        Their diagonals, (probes, steps), and off-diagonals, (probes, steps - 1). A recurrence that ends early goes on
        with zeros, which have no weight.
    """
    size, probes = starts.shape
    basis = np.zeros((probes, steps, size), operator.dtype)
    diagonals, off_diagonals = np.zeros((probes, steps)), np.zeros((probes, steps - 1))
    vectors = (starts / np.linalg.norm(starts, axis=0)).T.astype(operator.dtype)
    scale = np.zeros(probes)
    for step in range(steps):
        basis[:, step] = vectors
        products = np.asarray(operator @ vectors.T).T if probes > 1 else np.asarray(operator @ vectors[0])[None]
        diagonals[:, step] = np.einsum("kp,kp->k", vectors, products, dtype=np.float64)
        # Twice is enough (Kahan): against all earlier vectors, or multiple copies of eigenvalues would appear.
        for _ in range(2):
            overlaps = np.einsum("ksp,kp->ks", basis[:, : step + 1], products)
            products = products - np.einsum("ksp,ks->kp", basis[:, : step + 1], overlaps)
        bar.advance(probes)
        if step + 1 == steps:
            break
        lengths = np.linalg.norm(products.astype(np.float64), axis=1)
        scale = np.maximum(scale, np.maximum(np.abs(diagonals[:, step]), lengths))
        ended = lengths <= 10 * np.sqrt(size) * np.finfo(operator.dtype).eps * scale
        off_diagonals[:, step] = np.where(ended, 0.0, lengths)
        vectors = np.where(ended[:, None], 0, products / np.where(ended, 1.0, lengths)[:, None]).astype(operator.dtype)
    return diagonals, off_diagonals


def _quadrature(diagonal: Floats, off_diagonal: Floats) -> tuple[Floats, Floats]:
    """Nodes and weights, (steps,) each; where a recurrence ended early the last node is repeated without weight."""
    ends = np.flatnonzero(off_diagonal == 0)
    steps = int(ends[0]) + 1 if ends.size else len(diagonal)
    nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonal[:steps], off_diagonal[: steps - 1])
    missing = (0, len(diagonal) - steps)
    return np.pad(nodes, missing, mode="edge"), np.pad(vectors[0] ** 2, missing)
