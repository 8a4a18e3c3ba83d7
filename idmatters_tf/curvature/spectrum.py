"""Eigenvalues: what they say in short, those at the ends of the spectrum, and the density of all of them.

Everything here takes any symmetric SciPy operator, matrices included.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from idmatters_tf.curvature.memory import check_fits
from idmatters_tf.progress import Bar

ENDS = ("largest", "smallest", "magnitude", "both")


class Summary(NamedTuple):
    """Li et al.'s figures of a spectrum.

    max_abs: the largest |eigenvalue|. p10_abs: the 10th percentile of the |eigenvalues|. condition: max_abs / p10_abs,
    their condition number (infinite where p10_abs is zero). index: the fraction of negative eigenvalues. smallest,
    largest: with signs.
    """

    max_abs: float
    p10_abs: float
    condition: float
    index: float
    smallest: float
    largest: float


def summarize(eigenvalues, tolerance=None):
    """Li et al.'s figures of a whole spectrum.

    Source: Li et al., *Demystifying ResNet*, footnote 1 (the 10th percentile, for the smallest is "very unstable"),
    section 5.2 (index).

    Args:
        eigenvalues: all of them, in any order.
        tolerance: eigenvalues of at most this size are zero, neither negative nor positive; if None, rounding:
            n * eps * max_abs.

    Returns:
        `Summary`.

    Example:

    >>> summarize([-1.0, 0.5, 2.0, 2.0]).index
    0.25
    """
    eigenvalues = np.asarray(eigenvalues)
    if eigenvalues.ndim != 1 or not eigenvalues.size or np.iscomplexobj(eigenvalues):
        raise ValueError(
            f"Argument `eigenvalues` must be a non-empty list of real numbers. Received: shape {eigenvalues.shape}, "
            f"dtype {eigenvalues.dtype}"
        )
    if not np.isfinite(eigenvalues).all():
        raise ValueError("Argument `eigenvalues` must be finite. Received: some that are not.")
    sizes = np.abs(eigenvalues)
    largest = float(sizes.max())
    if tolerance is None:
        tolerance = eigenvalues.size * float(np.finfo(np.result_type(eigenvalues, np.float32)).eps) * largest
    percentile = float(np.percentile(sizes, 10))
    return Summary(
        max_abs=largest,
        p10_abs=percentile,
        condition=largest / percentile if percentile > tolerance else float("inf"),
        index=float(np.mean(eigenvalues < -tolerance)),
        smallest=float(eigenvalues.min()),
        largest=float(eigenvalues.max()),
    )


class Eigenpairs(NamedTuple):
    """Some eigenvalues and -vectors.

    values: (k,), ascending. vectors: (P, k), orthonormal columns. residuals: ||A v - value * v||, (k,).
    """

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray


def top_eigenpairs(operator, k=1, which="largest", tolerance=None, max_products=None, seed=0, progress: bool = False):
    """Eigenvalues at the ends of the spectrum, by ARPACK's implicitly restarted Lanczos method.

    Args:
        operator: a symmetric operator or matrix.
        k: how many; with "both", k at each end.
        which: "largest", "smallest" (the most negative ones), "magnitude" or "both".
        tolerance: relative accuracy of the eigenvalues; 1e-9 for float64, 1e-4 for float32 if None.
        max_products: a bound on the products; as many as ARPACK needs if None.
        seed: of the starting vector.
        progress: whether a bar on standard error counts the products.

    Returns:
        `Eigenpairs`.

    Raises:
        ValueError: for k out of range; also where `max_products` did not suffice, with what had converged.
    """
    operator = scipy.sparse.linalg.aslinearoperator(operator)
    size = operator.shape[0]
    if which not in ENDS:
        raise ValueError(f"Argument `which` must be one of {', '.join(map(repr, ENDS))}. Received: which={which!r}")
    wanted = 2 * k if which == "both" else k
    if not k >= 1 or wanted > size:
        raise ValueError(f"Argument `k` must ask for 1 to {size} eigenvalues. Received: k={k}, which={which!r}")
    if tolerance is None:
        tolerance = 1e-9 if operator.dtype == np.float64 else 1e-4
    if size <= 32 or wanted >= size - 1:
        values, vectors = np.linalg.eigh((operator @ np.eye(size, dtype=operator.dtype)).astype(np.float64))
        order = {
            "largest": slice(size - k, size),
            "smallest": slice(0, k),
            "magnitude": np.sort(np.argsort(np.abs(values))[size - k :]),
            "both": np.r_[0:k, size - k : size],
        }[which]
        values, vectors = values[order], vectors[:, order]
        return Eigenpairs(values, vectors, _residuals(operator, values, vectors))
    with Bar(None, "eigenvalues, products", progress) as bar:
        counted = _Counted(operator, bar, max_products)
        start = np.random.default_rng(seed).normal(size=size)
        end = {"largest": "LA", "smallest": "SA", "magnitude": "LM", "both": "BE"}[which]
        try:
            values, vectors = scipy.sparse.linalg.eigsh(counted, wanted, which=end, tol=tolerance, v0=start)
        except _Enough as error:
            raise ValueError(
                f"Argument `max_products`: {max_products} products were not enough for {wanted} eigenvalues to a "
                f"relative {tolerance:g}. Allow more, ask for fewer, or raise `tolerance`."
            ) from error
    order = np.argsort(values)
    values, vectors = values[order], vectors[:, order]
    return Eigenpairs(values, vectors, _residuals(operator, values, vectors))


class _Enough(Exception):
    pass


class _Counted(scipy.sparse.linalg.LinearOperator):
    """An operator in float64, as ARPACK's recurrences need it, that counts its products."""

    def __init__(self, operator, bar, most):
        super().__init__(np.float64, operator.shape)
        self._operator, self._bar, self._left = operator, bar, most

    def _matvec(self, vector):
        if self._left is not None:
            if self._left == 0:
                raise _Enough
            self._left -= 1
        self._bar.advance()
        return np.asarray(self._operator.matvec(vector), np.float64)


def _residuals(operator, values, vectors):
    return np.linalg.norm(np.asarray(operator @ vectors, np.float64) - values * vectors, axis=0)


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

    grid: np.ndarray
    density: np.ndarray
    standard_error: np.ndarray
    bandwidth: float
    nodes: np.ndarray
    weights: np.ndarray

    def mean(self, function):
        """(value, standard error) of the mean of a function of the eigenvalues; times P it is a trace."""
        return _mean_and_error(np.sum(self.weights * function(self.nodes), axis=1))

    def index(self, tolerance=None):
        """(value, standard error) of the fraction of eigenvalues below -tolerance; 1 % of the largest in size if None.

        A node stands for all eigenvalues near it: how many of those close to zero are negative takes many steps, or the
        dense matrix and `summarize`.
        """
        tolerance = 0.01 * np.abs(self.nodes).max() if tolerance is None else tolerance
        return self.mean(lambda nodes: nodes < -tolerance)


def spectral_density(operator, probes=10, steps=80, points=400, bandwidth=None, seed=0, progress: bool = False):
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
    if probes < 1 or steps < 1 or points < 2:
        raise ValueError(
            f"Arguments `probes` and `steps` must be positive, `points` at least 2. Received: probes={probes}, "
            f"steps={steps}, points={points}"
        )
    steps = min(steps, size)
    check_fits(size, steps, operator.dtype, f"the Lanczos basis of {steps} steps", "Use fewer `steps`.")
    rng = np.random.default_rng(seed)
    # Several probes share the passes through the data, as long as their bases stay below a gigabyte.
    together = max(1, min(probes, 2**30 // (size * steps * operator.dtype.itemsize)))
    nodes, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    with Bar(probes * steps, "spectral density, products", progress) as bar:
        for first in range(0, probes, together):
            count = min(together, probes - first)
            signs = rng.integers(0, 2, (size, count)) * 2.0 - 1
            diagonals, beside = _lanczos(operator, signs, steps, bar)
            for probe in range(count):
                nodes[first + probe], weights[first + probe] = _quadrature(diagonals[probe], beside[probe])
    low, high = nodes.min(), nodes.max()
    bandwidth = 0.01 * max(high - low, 1e-12 * max(abs(high), abs(low), 1.0)) if bandwidth is None else bandwidth
    if not bandwidth > 0:
        raise ValueError(f"Argument `bandwidth` must be positive. Received: bandwidth={bandwidth}")
    grid = np.linspace(low - 4 * bandwidth, high + 4 * bandwidth, points)
    bumps = np.exp(-((grid - nodes[..., None]) ** 2) / (2 * bandwidth**2)) / (bandwidth * np.sqrt(2 * np.pi))
    density, error = _mean_and_error(np.einsum("ps,psg->pg", weights, bumps))
    return SpectralDensity(grid, density, error, float(bandwidth), nodes, weights)


def _lanczos(operator, starts, steps, bar):
    """Tridiagonal matrices of independent Lanczos recurrences: their diagonals and what stands beside them.

    Args:
        starts: (P, probes).

    Returns:
        (probes, steps) and (probes, steps - 1). A recurrence that ends early goes on with zeros, which have no weight.
    """
    size, probes = starts.shape
    basis = np.zeros((probes, steps, size), operator.dtype)
    diagonals, beside = np.zeros((probes, steps)), np.zeros((probes, steps - 1))
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
        beside[:, step] = np.where(ended, 0.0, lengths)
        vectors = np.where(ended[:, None], 0, products / np.where(ended, 1.0, lengths)[:, None]).astype(operator.dtype)
    return diagonals, beside


def _quadrature(diagonal, beside):
    """Nodes and weights, (steps,) each; where a recurrence ended early the last node is repeated without weight."""
    ends = np.flatnonzero(beside == 0)
    steps = ends[0] + 1 if ends.size else len(diagonal)
    nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonal[:steps], beside[: steps - 1])
    missing = (0, len(diagonal) - steps)
    return np.pad(nodes, missing, mode="edge"), np.pad(vectors[0] ** 2, missing)


def _mean_and_error(samples):
    """The mean over the first axis and its standard error, NaN for one sample."""
    count = len(samples)
    error = samples.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(samples.shape[1:], np.nan)
    return samples.mean(axis=0), error
