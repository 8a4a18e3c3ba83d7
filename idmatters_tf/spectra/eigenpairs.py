"""Extreme eigenvalues and eigenvectors of symmetric SciPy operators."""

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._presentation.progress import Progress
from idmatters_tf._presentation.results import Result
from idmatters_tf.spectra.operators import Array, Matrix, as_operator, magnitude

ENDS = ("largest", "smallest", "magnitude", "both")
# Blocks before convergence is accepted: good starting vectors converge before the random vectors have any effect.
LEAST_STEPS = 6
# Entries of the basis vectors that are converted to float64 at once.
CHUNK = 2**13
# Largest P for dense matrices.
LARGEST_DENSE = 4096


@dataclasses.dataclass(frozen=True, repr=False)
class Eigenpairs(Result):
    """Eigenvalues and eigenvectors, sorted from the largest eigenvalue to the smallest.

    Attributes:
        values: eigenvalues in descending order, (k,).
        vectors: orthonormal columns in the order of the values, (P, k).
        residuals: ||A v - value * v||, (k,), from products with the returned vectors. Up to the rounding of the
            products, an eigenvalue of A is within the residual of each value.
        products: number of products with the operator.
        converged: True for residuals within the tolerance, (k,).
    """

    values: NDArray[np.float64]
    vectors: Array
    residuals: NDArray[np.float64]
    products: int
    converged: NDArray[np.bool_]


def top_eigenpairs(
    operator: Matrix,
    k: int = 1,
    which: str = "largest",
    tolerance: float | None = None,
    start: Array | None = None,
    seed: int = 0,
    progress: bool = False,
    max_products: int | None = None,
) -> Eigenpairs:
    """Compute extreme eigenvalues, with multiplicity, by the block Lanczos method.

    The block has k vectors and finds up to k copies of an eigenvalue, unlike a single vector. (At Li et al.'s zero
    point, each eigenvalue has multiplicity R d.) Thick restarts keep the best Ritz vectors, and new blocks are
    orthogonalized against all of them. Source: Golub & Underwood, 1977 (blocks); Wu & Simon, 2000 (restarts).

    Args:
        operator: symmetric operator or matrix.
        k: number of eigenvalues; with "both", the number at each end.
        which: "largest", "smallest" (the most negative ones), "magnitude" or "both".
        tolerance: tolerance of the residuals, relative to the eigenvalue, or to 1 % of the largest |eigenvalue| for
            smaller ones. Well separated eigenvalues are far more accurate. If None, 1e-9 for float64 and 1e-4 for
            float32. Residuals of 100 eps of the largest |eigenvalue| are accepted: 1.2e-5 of it in float32.
        start: starting vectors (P, j), e.g. `vectors` of an earlier result. A random vector is added.
        seed: seed of the random starting vectors.
        progress: True shows a progress bar on standard error.
        max_products: limit of the number of products, exceeded by at most two blocks; max(2000, 40 k) if None. If
            pairs have not converged then, a warning states how many have. If P is at most half of the limit, P products
            without convergence are followed by a decomposition of the dense matrix.

    Returns:
        `Eigenpairs`, from the largest eigenvalue to the smallest. With "both", the k at the upper end come first and
        the most negative one is last.

    Raises:
        ValueError: if k is out of range, or if products are not finite.
    """
    operator = as_operator(operator)
    size = operator.shape[0]
    check_choice("which", which, ENDS)
    wanted = 2 * positive_integer("k", k) if which == "both" else positive_integer("k", k)
    if wanted > size:
        raise ValueError(f"Argument `k` must select 1 to {size} eigenvalues. Received: k={k}, which={which!r}")
    if tolerance is None:
        tolerance = 1e-9 if operator.dtype == np.float64 else 1e-4
    if size <= 32 or wanted >= size - 1:
        return _dense_eigenpairs(operator, k, which)
    rng = np.random.default_rng(seed)
    block = _starting_block(start, k, size, rng)
    limit = max(2000, 40 * wanted) if max_products is None else positive_integer("max_products", max_products)
    with Progress(None, "eigenvalues", progress, unit="products") as bar:
        # After P products, the dense matrix is cheaper.
        stop = size + wanted if size <= min(LARGEST_DENSE, limit // 2) else limit
        pairs = _BlockLanczos(operator, block, k, which, rng, bar).run(tolerance, stop)
    if not pairs.converged.all() and pairs.products >= stop < limit:
        return _dense_eigenpairs(operator, k, which, pairs.products)
    if not pairs.converged.all():
        remedy = "`max_products` or `tolerance`" if pairs.products >= limit else "`tolerance`, or use float64"
        warnings.warn(
            f"{pairs.converged.sum()} of {wanted} eigenpairs converged within {pairs.products} products. The largest "
            f"residual is {pairs.residuals.max():.2g}. Increase {remedy}.",
            stacklevel=2,
        )
    return pairs


def _starting_block(start: Array | None, k: int, size: int, rng: np.random.Generator) -> Array:
    """Return k random vectors in rows, or k + 1 vectors from the given ones."""
    if start is None:
        return rng.normal(size=(k, size))
    given = np.asarray(start, np.float64)
    if given.ndim != 2 or given.shape[0] != size:
        raise ValueError(f"Argument `start` must have shape ({size}, j). Received: shape {given.shape}")
    # Sums, because accuracy depends on the depth of the Krylov space: a block of all given vectors can cost more than
    # it saves. The basis is in ascending order.
    sums = [given[:, first::k].sum(axis=1) for first in reversed(range(min(k, given.shape[1])))]
    # A random vector finds components that the given vectors lack.
    return np.stack([*sums, *rng.normal(size=(k + 1 - len(sums), size))])


def _dense_eigenpairs(operator: LinearOperator, k: int, which: str, products: int = 0) -> Eigenpairs:
    """Return eigenpairs of the dense matrix, after a number of products."""
    size = operator.shape[0]
    dense = multiply_rows(operator, np.eye(size, dtype=operator.dtype)).T
    values, vectors = np.linalg.eigh((dense + dense.T) / 2)
    chosen = _chosen(values, k, which)[::-1]
    values = values[chosen]
    vectors = vectors[:, chosen]
    residuals = np.linalg.norm(dense @ vectors - vectors * values, axis=0)
    return Eigenpairs(values, vectors, residuals, products + size, np.ones(len(values), bool))


class _BlockLanczos:
    """Krylov space of a block of vectors: an orthonormal basis in rows, and the operator restricted to it.

    The operator is divided by `_unit`, a power of two, so that squares neither overflow nor underflow.
    """

    def __init__(
        self, operator: LinearOperator, block: Array, k: int, which: str, rng: np.random.Generator, bar: Progress
    ):
        self._operator = operator
        self._k = k
        self._which = which
        self._rng = rng
        self._bar = bar
        self._size = operator.shape[0]
        self._wanted = 2 * k if which == "both" else k
        most = max(20, 2 * self._wanted + 4 * len(block))
        # With a basis of almost P vectors, restarts would lose more than they save.
        self._basis = np.zeros((most if self._size > 2 * most else self._size, self._size), operator.dtype)
        self._projected = np.zeros((len(self._basis),) * 2)
        self._filled = self._products = 0
        self._eps = float(np.finfo(operator.dtype).eps)
        self._scale = self._unit = 0.0
        self._extend(block)

    def run(self, tolerance: float, max_products: int) -> Eigenpairs:
        """Iterate until the residuals are below the tolerance, or up to a number of products."""
        start = steps = 0
        before = np.inf
        while True:
            residual = self._project(start)
            filled = self._filled
            steps += 1
            values, rotation = np.linalg.eigh(self._projected[:filled, :filled])
            self._scale = max(self._scale, float(np.abs(values).max()))
            last = filled == self._size or self._products + self._wanted >= max_products
            if filled >= self._wanted and (steps >= LEAST_STEPS or last):
                chosen = _chosen(values, self._k, self._which)
                # Only products of the last block have components outside the space.
                ends = rotation[start:, chosen]
                errors = np.sqrt(np.maximum(np.einsum("ij,ik,kj->j", ends, residual @ residual.T, ends), 0))
                if last or (errors <= self._allowed(values[chosen], tolerance)).all():
                    self._restart(values, rotation, chosen)
                    # The estimate lacks rounding and dropped directions.
                    residual = self._project(0)
                    square = self._projected[: self._wanted, : self._wanted]
                    values = np.diag(square)
                    rest = square - np.diag(values)
                    errors = np.hypot(np.linalg.norm(residual, axis=1), np.linalg.norm(rest, axis=0))
                    ratios = errors / np.maximum(self._allowed(values, tolerance), np.finfo(float).tiny)
                    # Residuals that do not decrease are limited by the rounding of the products.
                    if last or ratios.max() <= 1 or ratios.max() > before / 2:
                        order = np.argsort(-values)
                        return Eigenpairs(
                            values=self._unit * values[order],
                            vectors=self._basis[order].T,
                            residuals=self._unit * errors[order],
                            products=self._products,
                            converged=ratios[order] <= 1,
                        )
                    before = ratios.max()
            if self._filled + min(len(residual), self._size - self._filled) > len(self._basis):
                most = len(self._basis)
                kept = max(self._wanted, min((most + self._wanted) // 2, most - 2 * len(residual)))
                count = -(-kept // 2) if self._which == "both" else kept
                self._restart(values, rotation, _chosen(values, count, self._which))
            start = self._filled
            self._extend(residual)

    def _allowed(self, values: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
        """Return the largest accepted residuals."""
        # Relative to the other end of the spectrum, values inside of it can have small residuals.
        return np.maximum(tolerance * np.maximum(np.abs(values), 0.01 * self._scale), 100 * self._eps * self._scale)

    def _project(self, start: int) -> NDArray[np.float64]:
        """Project the products with the basis from `start` on, and return their parts outside the space, (width, P)."""
        stop = self._filled
        block = self._basis[start:stop]
        products = multiply_rows(self._operator, block)
        self._products += len(block)
        self._bar.advance(len(block))
        self._unit = self._unit or magnitude(products) or 1.0
        products /= self._unit
        # Twice, because of rounding (Kahan).
        overlaps = orthogonalize(products, self._basis[:stop]) + orthogonalize(products, self._basis[:stop])
        self._projected[:stop, start:stop] = overlaps
        self._projected[start:stop, :stop] = overlaps.T
        # Removes rounding and slight asymmetry of the operator.
        corner = self._projected[start:stop, start:stop]
        self._projected[start:stop, start:stop] = (corner + corner.T) / 2
        return products

    def _restart(self, values: NDArray[np.float64], rotation: NDArray[np.float64], chosen: NDArray[np.intp]) -> None:
        """Replace the basis by the chosen Ritz vectors."""
        count = len(chosen)
        self._basis[:count] = rotation[:, chosen].T.astype(self._basis.dtype) @ self._basis[: self._filled]
        self._projected[:] = 0
        self._projected[range(count), range(count)] = values[chosen]
        self._filled = count

    def _extend(self, candidates: Array) -> None:
        """Add a block to the basis: candidates, and random vectors in place of those that depend on the basis."""
        stop = min(self._filled + len(candidates), self._size)
        # Smaller remainders are rounding errors of the products.
        rows = [(row, 10 * self._eps * self._scale) for row in candidates]
        while self._filled < stop:
            row, least = rows.pop(0) if rows else (self._rng.normal(size=self._size), 0.0)
            length = float(np.linalg.norm(row))
            while length > least:
                before = length
                orthogonalize(row[None], self._basis[: self._filled])
                length = float(np.linalg.norm(row))
                if length > before / 2:
                    self._basis[self._filled] = row / length
                    self._filled += 1
                    break


def multiply_rows(operator: LinearOperator, rows: Array) -> NDArray[np.float64]:
    """Return the products of an operator with the rows of an array, (k, P); raise a ValueError if not finite."""
    products = np.asarray(operator @ rows.T if len(rows) > 1 else operator @ rows[0]).reshape(-1, len(rows))
    if not np.isfinite(products).all():
        raise ValueError("Products with `operator` must be finite. Received: infinite or NaN values.")
    return np.array(products.T, np.float64, order="C")


def orthogonalize(rows: NDArray[np.float64], basis: Array) -> NDArray[np.float64]:
    """Subtract from rows (k, P), in place, their parts along an orthonormal basis (n, P), and return these, (n, k).

    Sums over P are in float64, because rounding errors of float32 grow with P.
    """
    overlaps = np.zeros((len(basis), len(rows)))
    parts = [slice(start, start + CHUNK) for start in range(0, rows.shape[1], CHUNK)]
    for part in parts:
        overlaps += np.asarray(basis[:, part], np.float64) @ rows[:, part].T
    for part in parts:
        rows[:, part] -= overlaps.T @ np.asarray(basis[:, part], np.float64)
    return overlaps


def _chosen(values: NDArray[np.float64], k: int, which: str) -> NDArray[np.intp]:
    """Return the ascending indices of the wanted eigenvalues among ascending eigenvalues."""
    size = len(values)
    choices: dict[str, Callable[[], NDArray[np.intp]]] = {
        "largest": lambda: np.arange(max(0, size - k), size),
        "smallest": lambda: np.arange(min(k, size)),
        "magnitude": lambda: np.sort(np.argsort(np.abs(values))[max(0, size - k) :]),
        "both": lambda: np.unique(np.r_[0 : min(k, size), max(0, size - k) : size]),
    }
    return choices[which]()
