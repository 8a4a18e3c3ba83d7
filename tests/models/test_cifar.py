from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf.layers import RandomProjection, ResidualConv2D
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.layout import Layout

rng = np.random.default_rng(3)


def trainable_parameters(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def convolutions(model):
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if isinstance(layer, keras.layers.Conv2D)]


def small(**arguments):
    return identity_resnet(**{"blocks": 1, "widths": (8, 12), "stem": 4, **arguments})


def images(n=2, size=32):
    return rng.normal(size=(n, size, size, 3)).astype("float32")


@pytest.fixture(scope="module")
def table_1():
    return identity_resnet()


def test_architecture_of_table_1(table_1):
    model = table_1
    assert len(convolutions(model)) == 55
    assert trainable_parameters(model) == 13_538_736
    assert [w.path for w in model.non_trainable_weights] == ["head/kernel"]
    assert isinstance(model.get_layer("head"), RandomProjection)
    assert model.get_layer("head").kernel.shape == (256, 10)
    assert sum(isinstance(layer, ResidualConv2D) for layer in model.layers) == 27
    # The other number in the text of the paper.
    assert trainable_parameters(identity_resnet(bias=True, shortcut="projection")) == 13_588_800


def test_initial_scales_and_a_loss_of_log_classes(table_1):
    model = table_1
    logits = model(images(8))
    loss = keras.losses.sparse_categorical_crossentropy(np.zeros(8, int), logits, from_logits=True)
    np.testing.assert_allclose(np.mean(loss), np.log(10), atol=0.1)
    stem = np.array(model.get_layer("stem").kernel)
    assert stem.std() == pytest.approx(1 / (3 * 4), rel=0.15)
    kernel = np.array(model.get_layer("stage3_block5").conv2.kernel)
    assert kernel.std() == pytest.approx(1 / (9 * 256), rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        # stem 108, first block 288 + 576, second 864 + 1296
        ({}, 108 + 288 + 576 + 864 + 1296),
        ({"bias": True}, 3132 + 4 + 16 + 24),
        ({"shortcut": "projection"}, 3132 + 4 * 8 + 8 * 12),
        ({"shortcut": "none", "initializer": "standard"}, 3132),
        ({"head": "trained"}, 3132 + 12 * 10 + 10),
        ({"norm": "batch"}, 3132 + 2 * (4 + 16 + 24)),
        ({"initializer": "standard", "branch_scale": 0.0}, 3132 + 2),
        ({"initializer": "fixup", "branch_scale": 1.0, "bias": True, "head": "trained"}, 3132 + 44 + 2 + 130),
    ],
)
def test_ablations_change_the_layers(arguments, parameters):
    model = small(**arguments)
    assert trainable_parameters(model) == parameters
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    assert np.isfinite(model.fit(images(4), np.arange(4), verbose=0).history["loss"][0])


@pytest.mark.parametrize("arguments", [{"initializer": "standard", "branch_scale": 0.0}, {"initializer": "fixup"}])
def test_descendants_start_at_the_identity(arguments):
    model = small(**arguments)
    x = rng.normal(size=(2, 8, 8, 4)).astype("float32")
    block = model.get_layer("stage1_block1")
    np.testing.assert_array_equal(block(x)[..., 2:6], x)
    scale = 1 / (3 * np.sqrt(8)) if "branch_scale" in arguments else np.sqrt(2 / 36 / 2)
    assert np.std(block.conv1.kernel) == pytest.approx(scale, rel=0.3)
    logits = small(**arguments, head="trained")(images())
    assert np.any(logits) == ("branch_scale" in arguments)
    assert not np.any(small(head="zero")(images()))


def test_options_of_the_papers_base_code():
    options = {"blocks": 1, "widths": (4, 8), "stem": 4, "norm": "batch", "head": "trained"}
    model = identity_resnet((8, 8, 3), norm_first=True, norm_momentum=0.9, negative_slope=0.1, **options)
    names = [layer.name for layer in model.layers]
    assert "last_norm" in names
    assert "stem_norm" not in names
    block = model.get_layer("stage2_block1")
    assert block.norm1.momentum == 0.9
    assert float(block.activation(np.array(-1.0, "float32"))) == pytest.approx(-0.1)
    # Uniform with variance 1 / fan_in, like the frozen projection.
    head = np.array(identity_resnet((8, 8, 3), classes=4000, **options).get_layer("head").kernel)
    assert np.abs(head).max() == pytest.approx(np.sqrt(3 / 8), rel=1e-3)
    assert head.var() == pytest.approx(1 / 8, rel=0.03)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widths": (), "blocks": (), "strides": ()}, "`widths` must have at least one stage"),
        (
            {"blocks": (1, 1, 1)},
            r"`blocks` and `widths` must have the same length. Received: blocks=\(1, 1, 1\), widths=",
        ),
        ({"blocks": (1, 0)}, r"`blocks\[1\]` must be a positive integer"),
        ({"stem": 8}, "`stem` and `widths` must not decrease with shortcut 'pad'"),
        ({"shortcut": "1x1"}, "`shortcut` must be one of 'pad', 'projection', 'none'"),
    ],
)
def test_invalid_layouts(changes, message):
    misspelled: dict[str, Any] = {"num_classes": 10}
    with pytest.raises(TypeError, match=r"has no argument `num_classes`. Did you mean `classes`\?"):
        identity_resnet(**misspelled)
    with pytest.raises(ValueError, match=message):
        Layout(**{"blocks": (1, 1), "widths": (4, 8), "strides": (1, 2), "stem": 4, **changes})
