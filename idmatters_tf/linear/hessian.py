"""Exact Hessians of deep linear networks at any point, dense by a Kronecker formula and matrix-free.

Notation: f = P_i W_i Q_i + const for every layer i, G = f S_XX - S_YX, C_ij the product between the layers j < i
(Q_i = C_ij W_j Q_j + ...), K the commutation matrix, K vec(M) = vec(M^T), and vec by rows. Then, for i >= j,

    H_ij = (P_i^T P_j) (x) (Q_i S_XX Q_j^T) + [i != j] ((P_i^T G Q_j^T) (x) C_ij) K

The papers contain only the Hessian at zero (Li et al., Theorem 1; see `idmatters_tf.linear.zero`).
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Self

import numpy as np
import scipy.sparse.linalg
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import Floats
from idmatters_tf.linear.shortcuts import layer_jacobians, problem


def shortcut_hessian(W: ArrayLike, sxx: ArrayLike, syx: ArrayLike, *, shortcut: bool = True) -> Floats:
    """Compute the dense Hessian of L(W) = ||Y - f(W) X||_F^2 / (2m).

    The arguments are those of `shortcut_risk`. Returns a symmetric matrix (P, P) of float64, with P = W.size, in the
    order of W.ravel().
    """
    W, sxx, syx = problem(W, sxx, syx)
    units, n, d, _ = W.shape
    Q, P, end_to_end = layer_jacobians(W, shortcut)
    residual = end_to_end @ sxx - syx
    Qt = Q.swapaxes(1, 2)
    Pt = P.swapaxes(1, 2)
    H = np.empty((units * n, d, d, units * n, d, d))
    for i, between in enumerate(_products_between(W, shortcut)):
        # NumPy stacks matrices along j first. The axis is then moved to its place in H[i, row, column, j, ...].
        outputs = Pt[i] @ P[: i + 1]
        inputs = Q[i] @ sxx @ Qt[: i + 1]
        # The products are symmetric up to rounding; the Hessian is made exactly symmetric.
        for products in (outputs, inputs):
            products[i] = (products[i] + products[i].T) / 2
        H[i, :, :, : i + 1] = np.einsum("jac,jbe->abjce", outputs, inputs)
        crossed = Pt[i] @ residual @ Qt[:i]
        H[i, :, :, :i] += np.einsum("jae,jbc->abjce", crossed, between)
        H[:i, :, :, i] = H[i, :, :, :i].transpose(2, 3, 4, 0, 1)
    return H.reshape(W.size, W.size)


def _products_between(W: Floats, shortcut: bool) -> Iterator[Floats]:
    """Yield C_ij for all j < i, (i, d, d), for each layer i."""
    to_entry = np.empty((0, *W.shape[2:]))
    for unit in W:
        products = to_entry
        for layer in unit:
            yield products
            products = np.concatenate([layer @ products, np.eye(len(layer))[None]])
        if shortcut:
            products[: len(to_entry)] += to_entry
        to_entry = products


class ShortcutHessian(scipy.sparse.linalg.LinearOperator):
    """Hessian of `shortcut_hessian` as a SciPy `LinearOperator`.

    A product with a vector costs O(layers * d^3) for any number of samples. Directions V change the map by
    sum_i P_i V_i Q_i. One forward and one backward pass through the layers give the changes of Q_i and P_i^T G.

    The arguments are those of `shortcut_risk`. The shape is (W.size, W.size), and vectors are in the order of
    W.ravel(). `@`, `matvec` and `matmat` work as in SciPy.
    """

    if TYPE_CHECKING:
        # SciPy annotates its own with the functions of an operator.
        def __new__(cls, W: ArrayLike, sxx: ArrayLike, syx: ArrayLike, *, shortcut: bool = True) -> Self: ...

    def __init__(self, W: ArrayLike, sxx: ArrayLike, syx: ArrayLike, *, shortcut: bool = True):
        self._W, self._sxx, syx = problem(W, sxx, syx)
        self._shortcut = bool(shortcut)
        Q, P, end_to_end = layer_jacobians(self._W, shortcut)
        self._Q = Q
        self._P = P
        self._Qt = Q.swapaxes(1, 2).copy()
        self._Pt = P.swapaxes(1, 2).copy()
        self._backward = self._Pt @ (end_to_end @ self._sxx - syx)
        self._Wt = self._W.swapaxes(2, 3).copy()
        super().__init__(np.float64, (self._W.size, self._W.size))  # pyright: ignore[reportCallIssue]

    def _matvec(self, vector: Floats) -> Floats:
        return self._product(np.reshape(vector, (1, *self._Q.shape))).ravel()

    def _matmat(self, vectors: Floats) -> Floats:
        V = np.ascontiguousarray(vectors.T).reshape(-1, *self._Q.shape)
        return self._product(V).reshape(len(V), -1).T

    def _adjoint(self) -> "ShortcutHessian":
        return self

    def _product(self, V: Floats) -> Floats:
        Vt = V.swapaxes(2, 3)
        changed = np.sum(self._P @ V @ self._Q, axis=1, keepdims=True) @ self._sxx
        forward = self._pass(V @ self._Q, self._W, range(len(self._W)), 1)
        backward = self._pass(Vt @ self._backward, self._Wt, reversed(range(len(self._W))), -1)
        return self._backward @ forward.swapaxes(2, 3) + (self._Pt @ changed + backward) @ self._Qt

    def _pass(self, sources: Floats, layers: Floats, units: Iterable[int], direction: int) -> Floats:
        """Sum sources over the paths from their layer to each later layer, in the direction of the pass.

        Args:
            sources: contributions of the layers to their outputs, (vectors, layers, d, d).
            layers: matrices of the layers, (units, n, d, d).
            units: indices of the units in the order of the pass.
            direction: 1 or -1, the order of the layers in a unit.
        """
        n = layers.shape[1]
        sums = np.empty_like(sources)
        total = np.zeros_like(sources[:, 0])
        for r in units:
            branch = total
            for layer in range(n)[::direction]:
                sums[:, r * n + layer] = branch
                branch = layers[r, layer] @ branch
                branch += sources[:, r * n + layer]
            total = total + branch if self._shortcut else branch
        return sums
