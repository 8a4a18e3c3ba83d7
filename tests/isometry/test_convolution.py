"""Tests of convolutions as linear maps against Keras and dense matrices, and of isometric kernels."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf.isometry import (
    ConvolutionOperator,
    delta_orthogonal_kernel,
    extreme_singular_values,
    identity_kernel,
    kernel_distance,
    kernel_distances,
    singular_value_density,
    singular_values,
)
from idmatters_tf.layers import ScaledConv2D

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
    np.testing.assert_allclose(np.linalg.svd(operator.to_dense(), compute_uv=False), expected, atol=1e-10)


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
    np.testing.assert_allclose(operator.to_dense(), dense, atol=1e-12)
    np.testing.assert_allclose(operator.rmatmat(np.eye(operator.shape[0])), dense.T, atol=1e-12)
    np.testing.assert_allclose(singular_values(operator), np.linalg.svd(dense, compute_uv=False), atol=1e-10)


def test_invalid_arguments_raise():
    kernel = random_kernel(3, 3, 2, 2)
    for arguments, message in (
        ((kernel[0], (4, 4)), r"`kernel` must have shape \(rows, cols, input channels"),
        ((kernel, (4, 5), 2, "periodic"), "`strides` must divide the image size.*a stride of 2 on 5 pixels"),
        ((kernel, (2, 4), 1, "valid"), "must not be larger than the image"),
        ((kernel, (4, 4), 1, "reflect"), "`padding` must be one of 'same', 'valid', 'periodic'"),
        ((kernel, (4,)), r"`size` must be the image size \(rows, cols\)"),
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


@given(st.integers(1, 4), st.integers(0, 3), st.sampled_from([1, 2, 3, 4]), st.sampled_from(["same", "periodic"]))
def test_delta_orthogonal_kernels_are_isometries(inputs, more, side, padding):
    kernel = delta_orthogonal_kernel((side, side, inputs, inputs + more), seed=inputs)
    values = singular_values(ConvolutionOperator(kernel, (4, 5), padding=padding))
    np.testing.assert_allclose(values, 1, atol=1e-12)
    found = kernel_distance(kernel, (4, 5))
    assert found.orthogonal == pytest.approx(0, abs=1e-12)
    identity = identity_kernel(kernel.shape)
    assert found.relative == pytest.approx(np.linalg.norm(kernel - identity) / np.linalg.norm(identity))
    difference = ConvolutionOperator(kernel - identity, (4, 5), padding="periodic").to_dense()
    assert found.spectral == pytest.approx(np.linalg.norm(difference, 2), abs=1e-10)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_the_identity_kernel_is_the_identity(inputs, outputs, side):
    kernel = identity_kernel((side, side, inputs, outputs))
    image = np.random.default_rng(0).normal(size=(3, 4, inputs))
    moved = (ConvolutionOperator(kernel, (3, 4)) @ image.ravel()).reshape(3, 4, outputs)
    kept, first = min(inputs, outputs), abs(outputs - inputs) // 2
    if outputs >= inputs:
        np.testing.assert_array_equal(moved[..., first : first + kept], image)
    else:
        np.testing.assert_array_equal(moved, image[..., first : first + kept])
    assert kernel.sum() == kept
    assert kernel_distance(kernel).relative == 0


def test_the_nearest_delta_orthogonal_kernel():
    kernel = random_kernel(3, 3, 3, 4)
    left, _, right = np.linalg.svd(kernel[1, 1], full_matrices=False)
    nearest = np.zeros_like(kernel)
    nearest[1, 1] = left @ right
    assert kernel_distance(kernel).orthogonal == pytest.approx(np.linalg.norm(kernel - nearest) / np.sqrt(3))
    for seed in range(20):
        other = delta_orthogonal_kernel(kernel.shape, seed)
        assert np.linalg.norm(kernel - other) > np.linalg.norm(kernel - nearest)
    with pytest.raises(ValueError, match="at least as many outputs as inputs"):
        delta_orthogonal_kernel((3, 3, 4, 3))


def test_kernels_of_a_model():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, kernel_initializer="identity", name="same")])
    inputs = keras.Input((5, 5, 2))
    hidden = keras.layers.Conv2D(4, 3, kernel_initializer="zeros", name="zero")(inputs)
    model = keras.Model(inputs, inner(keras.layers.GlobalAveragePooling2D()(keras.layers.DepthwiseConv2D(2)(hidden))))
    found = kernel_distances(model)
    assert [path.split("/")[-2] for path in found] == ["zero", "same"]
    zero, same = found.values()
    assert (zero.relative, zero.orthogonal, zero.spectral) == (1, 1, None)
    assert (same.relative, same.spectral) == (0, 0)
    # Two layers of the same path.
    inputs = keras.Input((2,))
    towers = [keras.Model(inputs, keras.layers.Dense(2, name="a")(inputs)) for _ in range(2)]
    for factor, tower in enumerate(towers, 1):
        tower.get_layer("a").kernel.assign(factor * np.eye(2))
    found = kernel_distances(keras.Model(inputs, [tower(inputs) for tower in towers]))
    assert {path: distance.relative for path, distance in found.items()} == {"a/kernel": 0, "a/kernel:2": 1}
    scaled = keras.Sequential([keras.Input((5, 5, 2)), ScaledConv2D(2, 1, gain=3.0)])
    scaled.layers[0].kernel.assign(np.eye(2)[None, None])
    assert [each.relative for each in kernel_distances(scaled).values()] == [2]
    with pytest.raises(ValueError, match="`shape` must be"):
        identity_kernel((3, 3, 2))
