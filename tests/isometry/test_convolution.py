"""Tests of convolutions as linear maps against Keras and dense matrices."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf.isometry import (
    ConvolutionOperator,
    extreme_singular_values,
    singular_value_density,
    singular_values,
    spectral_norm,
)

SIDES = st.integers(1, 5)
SIZES = st.tuples(st.integers(1, 6), st.integers(1, 6))
STRIDES = st.tuples(st.integers(1, 3), st.integers(1, 3))


def random_kernel(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def circular(kernel, size, strides):
    """Return the matrix of a strided circular convolution, entry by entry."""
    (rows, cols), (down, right) = size, strides
    inputs, outputs = kernel.shape[2:]
    matrix = np.zeros((rows // down, cols // right, outputs, rows, cols, inputs))
    for p, q in np.ndindex(rows // down, cols // right):
        for i, j in np.ndindex(kernel.shape[:2]):
            row, col = (p * down + i) % rows, (q * right + j) % cols
            matrix[p, q, :, row, col] += kernel[i, j].T
    return matrix.reshape(-1, rows * cols * inputs)


@settings(max_examples=40)
@given(SIDES, SIDES, st.tuples(st.integers(1, 3), st.integers(1, 3)), STRIDES, st.integers(0, 99))
def test_periodic_singular_values_against_the_circular_matrix(rows, cols, blocks, strides, seed):
    size = blocks[0] * strides[0], blocks[1] * strides[1]
    kernel = random_kernel(rows, cols, 2, 3, seed=seed)
    operator = ConvolutionOperator(kernel, size, strides, "periodic")
    expected = np.linalg.svd(circular(kernel, size, strides), compute_uv=False)
    np.testing.assert_allclose(singular_values(operator), expected, atol=1e-10)
    # The operator centers the kernel and the matrix does not. Shifts do not change singular values.
    np.testing.assert_allclose(
        np.linalg.svd(operator @ np.eye(operator.shape[1]), compute_uv=False), expected, atol=1e-10
    )


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
        ((kernel, (4, 5), 2, "periodic"), "`strides` must divide the image size.*a stride of 2 on 5 pixels"),
        ((kernel, (2, 4), 1, "valid"), "must not be larger than the image"),
    ):
        with pytest.raises(ValueError, match=message):
            ConvolutionOperator(*arguments)
    with pytest.raises(ValueError, match=r"8,192 rows and 8,192 columns.*Use extreme_singular_values.*'periodic'"):
        singular_values(ConvolutionOperator(kernel, (64, 64)))


def test_large_convolution_from_products():
    # 12 x 12 x 2 = 288 entries, too many for a dense decomposition.
    periodic = ConvolutionOperator(random_kernel(3, 3, 2, 2), (12, 12), padding="periodic")
    exact = singular_values(periodic)
    ends = extreme_singular_values(periodic, k=2, tolerance=1e-6)
    assert not ends.exact
    np.testing.assert_allclose(ends.largest, exact[:2], rtol=1e-5)
    np.testing.assert_allclose(ends.smallest, exact[:-3:-1], rtol=1e-2)
    density = singular_value_density(periodic, probes=8, steps=30)
    mean = density.mean(np.square)
    assert abs(mean.value - np.mean(exact**2)) < 5 * mean.standard_error
    step = density.grid[1] - density.grid[0]
    assert density.density.sum() * step == pytest.approx(1, abs=1e-3)
    # The min(rows, columns) singular values of a wide map count, not the zeros of the remaining directions.
    wide = np.diag([3.0, 2.0, 1.0]) @ np.eye(3, 5)
    np.testing.assert_allclose(extreme_singular_values(wide, 2).smallest, [1, 2])
    with pytest.raises(ValueError, match="`k` must be between 1 and 3"):
        extreme_singular_values(wide, 4)
