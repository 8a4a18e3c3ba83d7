"""Norms of blocks between layers, compared with the dense matrix."""

import numpy as np
import pytest
import scipy.sparse.linalg

from idmatters_tf.curvature import HessianOperator, draw_coupling, layer_coupling
from tests.support import curvature_cases as cases


class Matrix(scipy.sparse.linalg.LinearOperator):
    """A random symmetric matrix with the slices of two layers."""

    def __init__(self):
        super().__init__(np.float64, (100, 100))
        self.layers = {"first": slice(0, 60), "second": slice(60, 100)}
        entries = np.random.default_rng(0).normal(size=self.shape)
        self.dense = entries + entries.T

    def _matmat(self, matrix):
        return self.dense @ matrix


def block_norms(dense, layers):
    return np.array([[np.linalg.norm(dense[row, column]) for column in layers.values()] for row in layers.values()])


def test_norms_of_blocks():
    model, loss, data = cases.case("labels and L2")
    operator = HessianOperator(model, loss, data, check=False)
    dense = operator.to_dense()
    expected = block_norms(dense, operator.layers)
    exact = layer_coupling(operator, probes=len(dense))
    np.testing.assert_allclose(exact.norms, expected, atol=1e-12)
    assert list(exact.layers) == list(operator.layers)
    share = 1 - np.sum(np.diag(expected) ** 2) / np.sum(expected**2)
    assert exact.off_diagonal_share == pytest.approx(share)
    # Random signs: unbiased for the squares.
    matrix = Matrix()
    squares = np.mean([layer_coupling(matrix, probes=2, seed=seed).norms ** 2 for seed in range(100)], axis=0)
    np.testing.assert_allclose(squares, block_norms(matrix.dense, matrix.layers) ** 2, rtol=0.05)
    image = draw_coupling(exact, "at the start")
    assert image.dtype == np.uint8
    assert image.shape == (520, 640, 4)
    assert image.std() > 10
    with pytest.raises(ValueError, match="`probes` must be a positive integer"):
        layer_coupling(operator, probes=0)
