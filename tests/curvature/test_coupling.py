"""Norms of blocks between layers, compared with the dense matrix."""

import numpy as np
import pytest

from idmatters_tf.curvature import HessianOperator, draw_coupling, layer_coupling
from tests.support import curvature_cases as cases


def test_norms_of_blocks():
    model, loss, data = cases.case("convolution")
    operator = HessianOperator(model, loss, data, check=False)
    dense = operator.to_dense()
    expected = np.array(
        [
            [np.linalg.norm(dense[row, column]) for column in operator.layers.values()]
            for row in operator.layers.values()
        ]
    )
    exact = layer_coupling(operator, probes=len(dense))
    np.testing.assert_allclose(exact.norms, expected, atol=1e-12)
    assert list(exact.layers) == list(operator.layers)
    share = 1 - np.sum(np.diag(expected) ** 2) / np.sum(expected**2)
    assert exact.off_diagonal_share == pytest.approx(share)
    # Random signs: unbiased for the squares.
    squares = np.mean([layer_coupling(operator, probes=2, seed=seed).norms ** 2 for seed in range(60)], axis=0)
    np.testing.assert_allclose(squares, expected**2, rtol=0.35, atol=1e-12)
    image = draw_coupling(exact, "at the start")
    assert image.dtype == np.uint8
    assert image.shape[2] == 4
    with pytest.raises(ValueError, match="`probes` must be a positive integer"):
        layer_coupling(operator, probes=0)
