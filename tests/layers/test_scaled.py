"""Convolutions with gains compared with loops, and networks of them."""

import keras
import numpy as np
import pytest

from idmatters_tf.layers.scaled import ScaledConv2D, ScaledResidualConv2D
from idmatters_tf.models.normalizer_free import normalizer_free_resnet
from tests.layers.test_convolutional import naive_convolution, naive_shortcut
from tests.support.checks import check_layer, check_saving

rng = np.random.default_rng(0)


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


def test_the_two_kernels_of_a_seeded_block_differ_and_are_reproduced():
    first, again = (ScaledResidualConv2D(4, seed=3) for _ in range(2))
    for block in (first, again):
        block.build((None, 8, 8, 4))
    assert not np.array_equal(first.conv1.kernel, first.conv2.kernel)
    for ours, theirs in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="`filters`.*at least the 8 channels"):
        ScaledResidualConv2D(4)(np.zeros((1, 4, 4, 8), "float32"))


def test_network_starts_at_logits_of_zero_and_is_saved(tmp_path):
    sizes = {"blocks": (1, 2), "stem_size": 5, "stem_strides": 2}
    model = normalizer_free_resnet(**sizes, widths=(8, 16), stem=4, classes=7, last_kernel_size=1)
    assert model.get_layer("stem").output.shape == (None, 16, 16, 4)
    images = rng.normal(size=(5, 32, 32, 3)).astype("float32")
    assert not np.array(model(images)).any()
    model.layers[-1].set_weights([rng.normal(size=(16, 7)), rng.normal(size=7)])
    check_saving(model, images, tmp_path / "model.keras")
    assert sum("gains" in variable.path for variable in model.trainable_variables) == 6
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = normalizer_free_resnet(blocks=1, widths=(8, 16), stem=4)
    assert model.get_layer("stage2_block1").output.dtype == "bfloat16"
    with pytest.raises(ValueError, match="`blocks` and `widths` must have the same length"):
        normalizer_free_resnet(widths=(8, 16), stem=4, blocks=(1, 1, 1))
