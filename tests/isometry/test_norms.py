import keras
import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

from idmatters_tf.isometry import (
    JacobianOperator,
    block_distances,
    block_norms,
    extreme_singular_values,
    kernel_norms,
    measure,
    singular_values,
    spectral_norm,
)
from idmatters_tf.layers import ResidualConv2D
from tests.support.checks import skip_without_channels_first

rng = np.random.default_rng(2)


def dense_matrix(kernel, size):
    """Return the matrix of a convolution, column by column from unit images."""
    channels = kernel.shape[2]
    units = np.eye(size[0] * size[1] * channels).reshape(-1, *size, channels).astype("float32")
    outputs = keras.ops.conv(units, kernel.astype("float32"), padding="same", data_format="channels_last")
    return np.array(outputs).reshape(len(units), -1).T


def convolution(kernel, size, **options):
    """Return the operator of a layer with a kernel on images of some size."""
    layer = keras.layers.Conv2D(kernel.shape[3], kernel.shape[:2], padding="same", use_bias=False, **options)
    images = np.zeros((1, *size, kernel.shape[2] * options.get("groups", 1)), "float32")
    layer.build(images.shape)
    layer.kernel.assign(kernel)
    return JacobianOperator(layer, images)


@pytest.mark.parametrize("seed", range(2))
def test_tolerance_with_close_singular_values(seed):
    # Twenty steps of the power method are up to 4 % low on such kernels.
    kernel = np.random.default_rng(seed).normal(size=(3, 3, 8, 8))
    operator, exact = convolution(kernel, (6, 6)), np.linalg.norm(dense_matrix(kernel, (6, 6)), 2)
    assert spectral_norm(operator) == pytest.approx(exact, rel=1e-3)
    assert spectral_norm(operator, tolerance=1e-6) == pytest.approx(exact, rel=2e-6)


def test_large_convolution_from_products():
    # 12 x 12 x 2 = 288 entries, too many for a dense decomposition.
    operator = convolution(rng.normal(size=(3, 3, 2, 2)), (12, 12))
    exact = singular_values(operator)
    ends = extreme_singular_values(operator, k=2, tolerance=1e-6)
    assert not ends.exact
    assert 0 < ends.residual < 1e-6
    np.testing.assert_allclose(ends.largest, exact[:2], rtol=1e-5)
    np.testing.assert_allclose(ends.smallest, exact[:-3:-1], rtol=1e-2)
    # The min(rows, columns) singular values of a wide map count, not the zeros of the remaining directions.
    wide = np.diag([3.0, 2.0, 1.0]) @ np.eye(3, 5)
    np.testing.assert_allclose(extreme_singular_values(wide, 2).smallest, [1, 2])
    with pytest.raises(ValueError, match="`k` must be between 1 and 3"):
        extreme_singular_values(wide, 4)
    with pytest.raises(ValueError, match=r"8,192 rows and 8,192 columns.*Use extreme_singular_values"):
        singular_values(convolution(np.ones((3, 3, 2, 2)), (64, 64)))


@pytest.mark.parametrize("options", [{"groups": 2}, {"dilation_rate": 2}, {"strides": 2}, {"padding": "valid"}])
def test_kinds_of_convolutions(options):
    inputs = keras.Input((4, 5, 4))
    layer = keras.layers.Conv2D(4, 3, **{"padding": "same", **options})
    branch = layer(inputs)
    branch = keras.layers.Dense(20 * 4, use_bias=False)(keras.layers.Flatten()(branch))
    model = keras.Model(inputs, keras.layers.Add()([inputs, keras.layers.Reshape((4, 5, 4))(branch)]))
    (norms,) = kernel_norms(model, tolerance=1e-6).values()
    units = np.eye(80).reshape(-1, 4, 5, 4).astype("float32")
    matrix = np.array(layer(units)).reshape(len(units), -1) - np.array(layer(0 * units)).reshape(len(units), -1)
    assert norms[0].spectral == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-4)
    assert norms[0].frobenius == pytest.approx(np.linalg.norm(layer.kernel))


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_tiny_and_huge_maps(size):
    # Squares of the singular values are outside of the range of float32.
    kernel, matrix = rng.normal(size=(3, 3, 2, 2)), rng.normal(size=(262, 258)).astype("float32")
    exact = np.linalg.svd(matrix, compute_uv=False)
    norms = [spectral_norm(convolution(factor * kernel, (5, 5))) for factor in (size, 1)]
    assert norms[0] == pytest.approx(size * norms[1], rel=1e-5)
    scaled = np.float32(size) * matrix
    model = keras.Sequential([keras.Input((262,)), keras.layers.Dense(258, use_bias=False, name="dense")])
    model.layers[0].kernel.assign(scaled)
    block = measure(model, np.ones((1, 262), "float32"), ["dense"], end_to_end=False).blocks["dense"]
    ends = extreme_singular_values(scaled)
    found = [spectral_norm(scaled), spectral_norm(aslinearoperator(scaled)), ends.largest[0], block.largest[0]]
    np.testing.assert_allclose(found, size * exact[0], rtol=1e-3)
    np.testing.assert_allclose(ends.smallest[0], size * exact[-1], atol=0.03 * size * exact[0])


def test_maps_that_are_zero_or_not_finite():
    assert spectral_norm(convolution(np.zeros((3, 3, 2, 2)), (4, 4))) == 0
    # All entries but the central one multiply padding.
    padding = np.ones((3, 3, 4, 4)) * (np.arange(9) != 4).reshape(3, 3, 1, 1)
    assert spectral_norm(convolution(padding, (1, 1))) == 0
    for value in (np.nan, np.inf):
        matrix = np.ones((300, 300), np.float32)
        matrix[3, 4] = value
        images = convolution(value * np.ones((3, 3, 2, 2)), (5, 5))
        for operator in (matrix, aslinearoperator(matrix), aslinearoperator(matrix[:4, :5]), images):
            assert np.isnan(spectral_norm(operator))
        assert np.isnan(extreme_singular_values(matrix).smallest).all()
        assert np.isnan(singular_values(matrix)).all()


def convolution_sums():
    """Return a model of sums x + f(x), built of Keras' own layers."""
    inputs = keras.Input((6, 5, 2))
    x = ResidualConv2D(3, name="layer")(inputs)
    branch = keras.layers.Conv2D(4, 3, padding="same", activation="relu", name="first")(x)
    branch = keras.layers.Conv2D(3, (2, 3), padding="same", name="second")(branch)
    x = keras.layers.Add(name="sum")([x, branch])
    branch = keras.layers.Conv2D(3, 3, padding="valid", name="valid")(keras.layers.ZeroPadding2D(1)(x))
    x = keras.layers.Add(name="padded")([branch, x])
    branch = keras.layers.BatchNormalization()(keras.layers.Conv2D(3, 3, padding="same", name="normalized")(x))
    x = keras.layers.Add(name="with_norm")([x, branch])
    # Not the kernel of a matrix or of a plain convolution.
    x = keras.layers.Add(name="depthwise")([x, keras.layers.DepthwiseConv2D(3, padding="same")(x)])
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Add(name="matrices")([x, keras.layers.Dense(3, "tanh", name="dense")(x)])
    model = keras.Model(inputs, x, name="body")
    for variable in model.trainable_variables:
        variable.assign(0.3 * rng.normal(size=variable.shape))
    return model


def test_norms_of_sums():
    model = convolution_sums()
    norms = kernel_norms(model, tolerance=1e-6)
    assert list(norms) == ["layer", "sum", "padded", "with_norm", "matrices"]
    first, second, valid, dense = (
        np.array(model.get_layer(name).kernel) for name in ("first", "second", "valid", "dense")
    )
    exact = [np.linalg.norm(dense_matrix(kernel, (6, 5)), 2) for kernel in (first, second)]
    assert [kernel.spectral for kernel in norms["sum"]] == pytest.approx(exact, rel=1e-3)
    frobenius = [np.linalg.norm(first), np.linalg.norm(second)]
    assert [kernel.frobenius for kernel in norms["sum"]] == pytest.approx(frobenius)
    summary = block_norms(model)["sum"]
    assert summary == pytest.approx({"frobenius": np.mean(frobenius), "spectral": max(exact)}, rel=1e-3)
    # A valid convolution behind padding is a "same" one; its own map takes the padded image.
    assert norms["padded"][0].spectral >= np.linalg.norm(dense_matrix(valid, (6, 5)), 2) * 0.999
    assert norms["matrices"][0].spectral == pytest.approx(np.linalg.norm(dense, 2))
    unknown = keras.Sequential([keras.Input((None, None, 4)), ResidualConv2D(4, name="block")])
    with pytest.raises(ValueError, match="norms of 'block' depend on the size of its images, which is unknown"):
        kernel_norms(unknown)
    nested = keras.Sequential([keras.Input((6, 5, 2)), model])
    assert kernel_norms(nested, tolerance=1e-6) == {f"body/{name}": values for name, values in norms.items()}


def test_channels_first():
    skip_without_channels_first()
    images, results, weights = rng.normal(size=(1, 7, 6, 2)).astype("float32"), [], None
    for data_format, axis in (("channels_last", 3), ("channels_first", 1)):
        data = images if axis == 3 else images.transpose(0, 3, 1, 2)
        inputs = keras.Input(data.shape[1:])
        x = ResidualConv2D(4, strides=2, kernel_initializer="he_normal", data_format=data_format, name="layer")(inputs)
        branch = keras.layers.Conv2D(4, (2, 3), padding="same", data_format=data_format, name="conv")(x)
        x = keras.layers.Add(name="sum")([x, branch])
        pool = keras.layers.AveragePooling2D(2, padding="same", data_format=data_format)
        halves = [pool(x), pool(0.5 * x)]
        model = keras.Model(inputs, keras.layers.Concatenate(axis, name="halved")(halves))
        weights = weights or model.get_weights()
        model.set_weights(weights)
        norms, distances = kernel_norms(model), block_distances(model, data, ["layer", ("sum", "halved")])
        kernels = [kernel.spectral for name in ("layer", "sum") for kernel in norms[name]]
        results.append([*kernels, *np.concatenate(list(distances.values()))])
    assert np.isfinite(results).all()
    np.testing.assert_allclose(*results, rtol=2e-3)
