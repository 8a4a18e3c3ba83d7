import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf.isometry import ConvolutionOperator, block_norms, branch_bounds, kernel_norms, spectral_norm
from idmatters_tf.layers import ResidualConv2D

rng = np.random.default_rng(2)


def dense_matrix(kernel, size, strides):
    """Return the matrix of a convolution, column by column from unit images."""
    channels = kernel.shape[2]
    units = np.eye(size[0] * size[1] * channels).reshape(-1, *size, channels).astype("float32")
    outputs = keras.ops.conv(units, kernel, strides=strides, padding="same", data_format="channels_last")
    return np.array(outputs).reshape(len(units), -1).T


@settings(max_examples=12)
@given(st.integers(1, 5), st.integers(2, 5), st.integers(1, 3), st.sampled_from([1, 2, 3]))
def test_spectral_norm_is_the_largest_singular_value(rows, cols, strides, k):
    kernel = rng.normal(size=(k, k, 2, 3)).astype("float32")
    exact = np.linalg.norm(dense_matrix(kernel, (rows, cols), strides), 2)
    assert spectral_norm(ConvolutionOperator(kernel, (rows, cols), strides)) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("padding", ["valid", "periodic"])
def test_spectral_norm_with_other_padding(padding):
    kernel = rng.normal(size=(2, 3, 2, 3))
    # With stride (2, 3) and "valid" no window covers the last row and column.
    convolution = ConvolutionOperator(kernel, (6, 9) if padding == "periodic" else (7, 8), (2, 3), padding)
    exact = np.linalg.norm(convolution.to_dense(), 2)
    assert spectral_norm(convolution, tolerance=1e-6) == pytest.approx(exact, rel=1e-5)


def test_tolerance_with_close_singular_values():
    # Twenty steps of the power method are up to 4 % low on such kernels.
    for seed in range(4):
        kernel = np.random.default_rng(seed).normal(size=(3, 3, 8, 8)).astype("float32")
        exact = np.linalg.norm(dense_matrix(kernel, (6, 6), 1), 2)
        convolution = ConvolutionOperator(kernel, (6, 6))
        assert spectral_norm(convolution) == pytest.approx(exact, rel=1e-3)
        assert spectral_norm(convolution, tolerance=1e-6) == pytest.approx(exact, rel=2e-6)


def test_matrices_and_zero_kernels():
    matrix = rng.normal(size=(4, 6))
    assert spectral_norm(matrix) == pytest.approx(np.linalg.svd(matrix)[1][0], rel=1e-12)
    assert spectral_norm(ConvolutionOperator(np.zeros((3, 3, 2, 2)), (4, 4))) == 0


def test_block_norms_of_a_model():
    inputs = keras.Input((8, 8, 3))
    outputs = ResidualConv2D(4, strides=2, name="one")(inputs)
    outputs = ResidualConv2D(4, name="two")(outputs)
    model = keras.Model(inputs, keras.layers.Flatten()(outputs))
    norms = block_norms(model)
    assert list(norms) == ["one", "two"]
    one = model.get_layer("one")
    kernels = [np.array(one.conv1.kernel), np.array(one.conv2.kernel)]
    assert norms["one"]["frobenius"] == pytest.approx(np.mean([np.linalg.norm(kernel) for kernel in kernels]))
    exact = max(
        np.linalg.norm(dense_matrix(kernels[0], (8, 8), 2), 2), np.linalg.norm(dense_matrix(kernels[1], (4, 4), 1), 2)
    )
    assert norms["one"]["spectral"] == pytest.approx(exact, rel=1e-3)


def test_convolution_without_size_raises():
    with pytest.raises(ValueError, match=r"shape \(3, 3, 2, 2\). Pass .* as ConvolutionOperator\(kernel, size\)"):
        spectral_norm(np.ones((3, 3, 2, 2)))


class OfItsOwn(keras.Model):
    def __init__(self):
        super().__init__()
        self.block = ResidualConv2D(4, name="block")

    def call(self, inputs):
        return self.block(inputs)


def test_nested_models_and_unknown_image_sizes():
    keras.utils.set_random_seed(0)
    body = keras.Sequential([keras.Input((6, 6, 2)), ResidualConv2D(4, strides=2, name="block")], name="body")
    model = keras.Sequential([keras.Input((6, 6, 2)), body, ResidualConv2D(4, name="block")])
    norms = kernel_norms(model)
    assert list(norms) == ["body/block", "block"]
    assert norms["body/block"] == kernel_norms(body)["block"]
    assert branch_bounds(model, norms)["body/block"] == branch_bounds(body, kernel_norms(body))["block"]
    model = OfItsOwn()
    model(np.ones((1, 6, 6, 4)))
    for unknown in (model, keras.Sequential([keras.Input((None, None, 4)), ResidualConv2D(4, name="block")])):
        with pytest.raises(ValueError, match="norms of 'block' depend on the size of its images, which is unknown"):
            kernel_norms(unknown)
