import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf.initializers import IdentityNormal
from idmatters_tf.layers import PadShortcut2D, ResidualConv2D
from idmatters_tf.layers.scaled import ScaledConv2D, ScaledResidualConv2D
from idmatters_tf.models.normalizer_free import normalizer_free_resnet
from tests.support.checks import check_layer

rng = np.random.default_rng(0)


def naive_convolution(images, kernel, strides=1):
    """Compute a "same" convolution with loops."""
    n, rows, cols, _ = images.shape
    k, _, _, filters = kernel.shape
    out_rows, out_cols = -(-rows // strides), -(-cols // strides)
    pads = [max((out - 1) * strides + k - size, 0) for out, size in ((out_rows, rows), (out_cols, cols))]
    padded = np.pad(images, [(0, 0), *((pad // 2, pad - pad // 2) for pad in pads), (0, 0)])
    result = np.zeros((n, out_rows, out_cols, filters))
    for row in range(out_rows):
        for col in range(out_cols):
            window = padded[:, row * strides : row * strides + k, col * strides : col * strides + k]
            result[:, row, col] = np.tensordot(window, kernel, 3)
    return result


def naive_shortcut(images, filters, strides):
    """Compute the means over windows, smaller at the edge, and add zero channels, an odd one at the end."""
    n, rows, cols, channels = images.shape
    pooled = np.zeros((n, -(-rows // strides), -(-cols // strides), channels))
    # "same" windows start half of the missing pixels before the image.
    before = [((-(-size // strides)) * strides - size) // 2 for size in (rows, cols)]
    for row in range(pooled.shape[1]):
        for col in range(pooled.shape[2]):
            top, left = row * strides - before[0], col * strides - before[1]
            window = images[:, max(top, 0) : top + strides, max(left, 0) : left + strides]
            pooled[:, row, col] = window.mean(axis=(1, 2))
    extra = filters - channels
    return np.pad(pooled, [(0, 0), (0, 0), (0, 0), (extra // 2, extra - extra // 2)])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(0, 5))
def test_pad_shortcut_is_pooling_and_zero_channels(rows, cols, strides, extra):
    images = rng.normal(size=(2, rows, cols, 3)).astype("float32")
    outputs = PadShortcut2D(3 + extra, strides)(images)
    np.testing.assert_allclose(outputs, naive_shortcut(images, 3 + extra, strides), atol=1e-5)


def test_pad_shortcut_as_a_layer():
    images = rng.normal(size=(2, 7, 9, 3)).astype("float32")
    check_layer(PadShortcut2D(6, 2), images, naive_shortcut(images, 6, 2))
    # Without pooling it keeps every second pixel.
    expected = np.pad(images[:, ::2, ::2], [(0, 0)] * 3 + [(0, 1)])
    np.testing.assert_array_equal(PadShortcut2D(4, 2, pooling="none")(images), expected)
    outputs = np.array(PadShortcut2D(6)(np.ones((1, 2, 2, 3), "float32")))
    np.testing.assert_array_equal(outputs[0, 0, 0], [0, 1, 1, 1, 0, 0])
    outputs = np.array(PadShortcut2D(4, data_format="channels_first")(np.ones((1, 2, 5, 5), "float32")))
    np.testing.assert_array_equal(outputs[0, :, 0, 0], [0, 1, 1, 0])


@pytest.mark.parametrize("shortcut", ["pad", "projection", "none"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("filters", "strides", "size"), [(3, 1, (6, 6)), (6, 2, (6, 8)), (5, 2, (5, 7))])
def test_block_equals_the_formula(shortcut, bias, filters, strides, size):
    images = rng.normal(size=(2, *size, 3)).astype("float32")
    block = ResidualConv2D(filters, strides=strides, shortcut=shortcut, use_bias=bias, kernel_initializer="he_normal")
    block.build(images.shape)
    block.set_weights([rng.normal(size=weight.shape) for weight in block.get_weights()])
    first, second = block.conv1, block.conv2
    inner = naive_convolution(images, np.array(first.kernel), strides) + (np.array(first.bias) if bias else 0)
    branch = naive_convolution(np.maximum(inner, 0), np.array(second.kernel)) + (np.array(second.bias) if bias else 0)
    skip = 0
    if shortcut == "pad":
        skip = naive_shortcut(images, filters, strides)
    elif shortcut == "projection":
        skip = images if block.skip is None else naive_convolution(images, np.array(block.skip.kernel), strides)
    np.testing.assert_allclose(block(images), skip + branch, atol=2e-4)
    if bias and size == (5, 7):
        check_layer(block, images)


def test_the_default_start_is_near_the_identity_and_the_two_kernels_differ():
    block = ResidualConv2D(64, kernel_initializer=IdentityNormal(seed=2))
    images = rng.normal(size=(2, 8, 8, 64)).astype("float32")
    branch = np.array(block(images)) - images
    assert 0 < np.linalg.norm(branch) < 2e-3 * np.linalg.norm(images)
    assert not np.array_equal(block.conv1.kernel, block.conv2.kernel)
    np.testing.assert_array_equal(ResidualConv2D(64, kernel_initializer="zeros")(images), images)
    drawn = ResidualConv2D(4, kernel_initializer=keras.initializers.HeNormal(keras.random.SeedGenerator(1)))
    drawn.build((None, 8, 8, 4))
    assert not np.array_equal(drawn.conv1.kernel, drawn.conv2.kernel)


@pytest.mark.parametrize("norm_first", [False, True])
def test_norms_come_after_the_convolutions_or_before_them(norm_first):
    """In the base code of Hardt & Ma they come before."""
    images = (5 + 2 * rng.normal(size=(16, 6, 6, 3))).astype("float32")
    activation = keras.layers.LeakyReLU(0.1)
    block = ResidualConv2D(3, norm="batch", norm_first=norm_first, norm_momentum=0.9, activation=activation)
    block.build(images.shape)
    kernels = [rng.normal(size=kernel.shape) for kernel in (block.conv1.kernel, block.conv2.kernel)]
    block.conv1.kernel.assign(kernels[0])
    block.conv2.kernel.assign(kernels[1])

    def normalized(values):
        return (values - values.mean((0, 1, 2))) / np.sqrt(values.var((0, 1, 2)) + 1e-3)

    # BN(C2(activation(BN(C1 x)))), or C2(activation(BN(C1 BN(x)))).
    between = normalized(naive_convolution(normalized(images) if norm_first else images, kernels[0]))
    branch = naive_convolution(np.where(between > 0, between, 0.1 * between), kernels[1])
    expected = images + (branch if norm_first else normalized(branch))
    np.testing.assert_allclose(np.array(block(images, training=True)), expected, rtol=1e-3, atol=1e-3)
    if norm_first:
        np.testing.assert_allclose(block.norm1.moving_mean, 0.1 * images.mean((0, 1, 2)), rtol=1e-4)


def test_invalid_arguments_raise():
    for arguments, message in (
        ({"filters": 4.5}, "`filters` of ResidualConv2D must be a positive integer.*4.5"),
        ({"filters": 4, "shortcut": "zero"}, "`shortcut`.*'pad', 'projection', 'none'.*'zero'"),
        ({"filters": 4, "data_format": "NHWC"}, "`data_format`"),
    ):
        with pytest.raises(ValueError, match=message):
            ResidualConv2D(**arguments)
    with pytest.raises(ValueError, match="at least the 8 channels.*projection"):
        ResidualConv2D(4)(np.ones((1, 4, 4, 8)))
    with pytest.raises(ValueError, match="rank-4"):
        ResidualConv2D(4)(np.ones((4, 8)))


def set_random(layer, shape):
    """Build a layer and set weights other than 0 and 1."""
    layer.build(shape)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.get_weights()])
    return {weight.path.split("/", 1)[-1]: np.array(weight) for weight in layer.weights}


def test_gains_multiply_the_kernel_of_each_output_channel():
    layer = ScaledConv2D(5, 3, strides=2, padding="same", name="layer")
    images = rng.normal(size=(2, 7, 6, 3)).astype("float32")
    weights = set_random(layer, images.shape)
    expected = naive_convolution(images, weights["kernel"] * weights["gains"], 2) + weights["bias"]
    check_layer(layer, images, expected, atol=1e-4)


@pytest.mark.parametrize(("filters", "strides", "last_kernel_size"), [(3, 1, None), (8, 2, 1)])
def test_scaled_block_equals_its_formula(filters, strides, last_kernel_size):
    layer = ScaledResidualConv2D(filters, strides=strides, last_kernel_size=last_kernel_size, name="block")
    images = rng.normal(size=(2, 7, 9, 3)).astype("float32")
    weights = set_random(layer, images.shape)
    scaled = {name: weights[f"{name}/kernel"] * weights[f"{name}/gains"] for name in ("conv1", "conv2")}
    hidden = np.maximum(naive_convolution(images, scaled["conv1"], strides) + weights["conv1/bias"], 0)
    branch = naive_convolution(hidden, scaled["conv2"]) + weights["conv2/bias"]
    check_layer(layer, images, naive_shortcut(images, filters, strides) + branch, atol=1e-3)
    np.testing.assert_array_equal(ScaledResidualConv2D(3, branch_gain=0.0)(images), images)


def test_network_starts_at_logits_of_zero():
    model = normalizer_free_resnet(blocks=(1, 2), stem_size=5, widths=(8, 16), stem=4, classes=7)
    assert not np.array(model(rng.normal(size=(5, 32, 32, 3)))).any()
    assert sum("gains" in variable.path for variable in model.trainable_variables) == 6
    block = model.get_layer("stage1_block1")
    assert not np.array_equal(block.conv1.kernel, block.conv2.kernel)
    with pytest.raises(ValueError, match="`blocks` and `widths` must have the same length"):
        normalizer_free_resnet(widths=(8, 16), stem=4, blocks=(1, 1, 1))
