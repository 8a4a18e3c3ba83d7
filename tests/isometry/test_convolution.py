"""Tests of convolutions as linear maps against Keras and dense matrices."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf.isometry import (
    ConvolutionOperator,
    extreme_singular_values,
    singular_values,
    spectral_norm,
)

SIDES = st.integers(1, 5)
SIZES = st.tuples(st.integers(1, 6), st.integers(1, 6))


def random_kernel(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("seed", range(4))
def test_tolerance_with_close_singular_values(seed):
    # Twenty steps of the power method are up to 4 % low on such kernels.
    operator = ConvolutionOperator(random_kernel(3, 3, 8, 8, seed=seed), (6, 6))
    exact = np.linalg.norm(operator @ np.eye(operator.shape[1]), 2)
    assert spectral_norm(operator) == pytest.approx(exact, rel=1e-3)
    assert spectral_norm(operator, tolerance=1e-6) == pytest.approx(exact, rel=2e-6)


@settings(max_examples=20)
@given(SIDES, SIDES, SIZES, st.integers(1, 3), st.sampled_from(["same", "valid"]))
def test_zero_padding_agrees_with_keras(rows, cols, size, stride, padding):
    if padding == "valid" and (rows > size[0] or cols > size[1]):
        return
    kernel = random_kernel(rows, cols, 2, 3)
    operator = ConvolutionOperator(kernel, size, stride, padding)
    units = np.eye(operator.shape[1]).reshape(-1, *size, 2)
    outputs = keras.ops.conv(units, kernel, strides=stride, padding=padding, data_format="channels_last")
    dense = np.array(outputs).reshape(len(units), -1).T
    np.testing.assert_allclose(operator @ np.eye(operator.shape[1]), dense, atol=1e-12)
    np.testing.assert_allclose(operator.rmatmat(np.eye(operator.shape[0])), dense.T, atol=1e-12)
    expected = np.linalg.svd(dense, compute_uv=False)
    np.testing.assert_allclose(singular_values(operator), expected, atol=1e-10)
    # With a stride above the side of the kernel no window covers the last pixels.
    assert spectral_norm(operator, tolerance=1e-6) == pytest.approx(expected[0], rel=1e-5)


def test_invalid_arguments_raise():
    kernel = random_kernel(3, 3, 2, 2)
    for arguments, message in (
        ((kernel[0], (4, 4)), r"`kernel` must have shape \(rows, cols, input channels"),
        ((kernel, (2, 4), 1, "valid"), "must not be larger than the image"),
    ):
        with pytest.raises(ValueError, match=message):
            ConvolutionOperator(*arguments)
    with pytest.raises(ValueError, match=r"8,192 rows and 8,192 columns.*Use extreme_singular_values"):
        singular_values(ConvolutionOperator(kernel, (64, 64)))


def test_large_convolution_from_products():
    # 12 x 12 x 2 = 288 entries, too many for a dense decomposition.
    convolution = ConvolutionOperator(random_kernel(3, 3, 2, 2), (12, 12))
    exact = singular_values(convolution)
    ends = extreme_singular_values(convolution, k=2, tolerance=1e-6)
    assert not ends.exact
    assert 0 < ends.residual < 1e-6
    np.testing.assert_allclose(ends.largest, exact[:2], rtol=1e-5)
    np.testing.assert_allclose(ends.smallest, exact[:-3:-1], rtol=1e-2)
    # The min(rows, columns) singular values of a wide map count, not the zeros of the remaining directions.
    wide = np.diag([3.0, 2.0, 1.0]) @ np.eye(3, 5)
    np.testing.assert_allclose(extreme_singular_values(wide, 2).smallest, [1, 2])
    with pytest.raises(ValueError, match="`k` must be between 1 and 3"):
        extreme_singular_values(wide, 4)
