"""Extreme eigenvalues and eigenvectors of symmetric SciPy operators."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._linear_maps import as_operator
from idmatters_tf._progress import Progress

ENDS = ("largest", "smallest", "magnitude", "both")
# Blocks before convergence is accepted: good starting vectors converge before the random vectors have any effect.
LEAST_STEPS = 6

Array = NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues and eigenvectors, sorted from the largest eigenvalue to the smallest.

    Attributes:
        values: eigenvalues in descending order, (k,).
        vectors: orthonormal columns in the order of the values, (P, k).
        residuals: ||A v - value * v||, (k,).
        products: number of products with the operator.
    """

    values: NDArray[np.float64]
    vectors: Array
    residuals: NDArray[np.float64]
    products: int


def top_eigenpairs(
    operator: Any,
    k: int = 1,
    which: str = "largest",
    tolerance: float | None = None,
    start: Array | None = None,
    seed: int = 0,
    progress: bool = False,
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
            float32.
        start: starting vectors (P, j), e.g. `vectors` of an earlier result. A random vector is added.
        seed: seed of the random starting vectors.
        progress: True shows a progress bar on standard error.

    Returns:
        `Eigenpairs`, from the largest eigenvalue to the smallest. With "both", the k at the upper end come first and
        the most negative one is last.

    Raises:
        ValueError: if k is out of range.
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
        dense = np.asarray(operator @ np.eye(size, dtype=operator.dtype), np.float64)
        values, vectors = np.linalg.eigh((dense + dense.T) / 2)
        chosen = _chosen(values, k, which)[::-1]
        values, vectors = values[chosen], vectors[:, chosen]
        return Eigenpairs(values, vectors, np.linalg.norm(dense @ vectors - vectors * values, axis=0), size)
    rng = np.random.default_rng(seed)
    sums: list[NDArray[np.float64]] = []
    if start is not None:
        given = np.asarray(start, np.float64)
        if given.ndim != 2 or given.shape[0] != size:
            raise ValueError(f"Argument `start` must have shape ({size}, j). Received: shape {given.shape}")
        # Sums, because accuracy depends on the depth of the Krylov space: a block of all given vectors can cost more
        # than it saves. The basis is in ascending order.
        sums = [given[:, place::k].sum(axis=1) for place in reversed(range(min(k, given.shape[1])))]
    # A random vector finds components that the given vectors lack.
    block = np.stack([*sums, *rng.normal(size=(k - len(sums) + (start is not None), size))])
    with Progress(None, "eigenvalues", progress, unit="products") as bar:
        lanczos = _BlockLanczos(operator, block, k, which, rng, bar)
        values, vectors = lanczos.run(tolerance)
    products = np.asarray(operator @ vectors, np.float64)
    residuals = np.linalg.norm(products - vectors.astype(np.float64) * values, axis=0)
    return Eigenpairs(values[::-1], vectors[:, ::-1], residuals[::-1], lanczos.products + wanted)


class _BlockLanczos:
    """Krylov space of a block of vectors: an orthonormal basis in rows, and the operator restricted to it."""

    def __init__(self, operator: Any, block: Array, k: int, which: str, rng: np.random.Generator, bar: Progress):
        self._operator, self._k, self._which, self._rng, self._bar = operator, k, which, rng, bar
        self._size = operator.shape[0]
        self._wanted = 2 * k if which == "both" else k
        most = min(self._size, max(20, 2 * self._wanted + 4 * len(block)))
        self._basis = np.zeros((most, self._size), operator.dtype)
        self._projected = np.zeros((most, most))
        self._filled = 0
        self._width = len(block)
        self._scale = 0.0
        self._block = self._orthonormal(block)
        self.products = 0

    def run(self, tolerance: float) -> tuple[NDArray[np.float64], Array]:
        """Iterate until the residuals are below the tolerance, and return (values, vectors), ascending."""
        steps = 0
        while True:
            residual, width = self._extend(), len(self._block)
            steps += 1
            filled = self._filled
            values, rotation = np.linalg.eigh(self._projected[:filled, :filled])
            self._scale = max(self._scale, float(np.abs(values).max()))
            if filled >= self._wanted and (steps >= LEAST_STEPS or filled == self._size):
                chosen = _chosen(values, self._k, self._which)
                # Only products of the last block have components outside the space.
                gram = residual.astype(np.float64) @ residual.T.astype(np.float64)
                last = rotation[filled - width :, chosen]
                errors = np.sqrt(np.maximum(np.einsum("ij,ik,kj->j", last, gram, last), 0))
                # Relative to the other end of the spectrum, values inside of it can have small residuals.
                allowed = tolerance * np.maximum(np.abs(values[chosen]), 0.01 * self._scale)
                rounding = 100 * float(np.finfo(self._basis.dtype).eps) * self._scale
                if filled == self._size or (errors <= np.maximum(allowed, rounding)).all():
                    return values[chosen], (rotation[:, chosen].T.astype(self._basis.dtype) @ self._basis[:filled]).T
            if filled + self._width > len(self._basis):
                self._restart(values, rotation)
            self._block = self._orthonormal(residual)

    def _extend(self) -> Array:
        """Add the block to the basis and return the part of its products outside the space, (width, P)."""
        block, start, stop = self._block, self._filled, self._filled + len(self._block)
        self._basis[start:stop] = block
        products = np.asarray(self._operator @ block.T if len(block) > 1 else self._operator @ block[0])
        products = products.T if len(block) > 1 else products[None]
        self.products += len(block)
        self._bar.advance(len(block))
        products, overlaps = _remove(products, self._basis[:stop])
        self._projected[:stop, start:stop] = overlaps
        self._projected[start:stop, :stop] = overlaps.T
        # Removes rounding and slight asymmetry of the operator.
        corner = self._projected[start:stop, start:stop]
        self._projected[start:stop, start:stop] = (corner + corner.T) / 2
        self._filled = stop
        return products

    def _restart(self, values: NDArray[np.float64], rotation: NDArray[np.float64]) -> None:
        """Restart with the Ritz vectors nearest to the wanted ends."""
        filled = self._filled
        kept = max(self._wanted, min((len(self._basis) + self._wanted) // 2, len(self._basis) - 2 * self._width))
        count = -(-kept // 2) if self._which == "both" else kept
        chosen = _chosen(values, count, self._which)
        self._basis[: len(chosen)] = rotation[:, chosen].T.astype(self._basis.dtype) @ self._basis[:filled]
        self._projected[:] = 0
        self._projected[range(len(chosen)), range(len(chosen))] = values[chosen]
        self._filled = len(chosen)

    def _orthonormal(self, block: Array) -> Array:
        """Orthonormalize a block against itself and the basis, with random vectors for directions that vanish."""
        rows: list[Array] = []
        room = min(self._size - self._filled, self._width)
        candidates = [np.asarray(row, np.float64) for row in block]
        # A remainder below this bound is rounding and has no meaningful direction.
        least = 100 * np.sqrt(self._size) * float(np.finfo(self._basis.dtype).eps) * self._scale
        while len(rows) < room:
            row = candidates.pop(0) if candidates else self._rng.normal(size=self._size)
            bound = least if len(candidates) + len(rows) < len(block) else 0.0
            before = float(np.linalg.norm(row))
            against = self._basis[: self._filled]
            for _ in range(2):
                row = _remove(row[None], against)[0][0]
                if rows:
                    row = _remove(row[None], np.stack(rows))[0][0]
            norm = float(np.linalg.norm(row))
            if norm > max(bound, 1e-6 * before):
                rows.append((row / norm).astype(self._basis.dtype))
        return np.stack(rows)


def _remove(rows: Array, basis: Array) -> tuple[Array, NDArray[np.float64]]:
    """Return rows without their parts along an orthonormal basis, and these parts, (basis, rows).

    Applied twice because of rounding (Kahan).
    """
    total: Any = 0.0
    for _ in range(2):
        overlaps = basis @ rows.T
        rows = rows - overlaps.T @ basis
        total = total + overlaps.astype(np.float64)
    return rows, total


def _chosen(values: NDArray[np.float64], k: int, which: str) -> NDArray[np.intp]:
    """Return the ascending indices of the wanted eigenvalues among ascending eigenvalues."""
    size = len(values)
    choices: dict[str, Callable[[], Any]] = {
        "largest": lambda: np.arange(max(0, size - k), size),
        "smallest": lambda: np.arange(min(k, size)),
        "magnitude": lambda: np.sort(np.argsort(np.abs(values))[max(0, size - k) :]),
        "both": lambda: np.unique(np.r_[0 : min(k, size), max(0, size - k) : size]),
    }
    return choices[which]()
