"""Tests of the detection and naming of blocks."""

import keras
import numpy as np
import pytest

from idmatters_tf import layers
from idmatters_tf.isometry import block_distances, find_blocks, jacobian, measure
from idmatters_tf.models.resnet import preresnet


def names(model, blocks=None):
    return [block.name for block in find_blocks(model, blocks)]


def residual():
    """Build a model with x + f(x) in three notations, a shared layer, and a head."""
    inputs = keras.Input((4,), name="vectors")
    hidden = inputs + keras.layers.Dense(4, "tanh", name="branch")(inputs)
    hidden = keras.layers.Add(name="sum")([keras.layers.Dense(4, name="second")(hidden), hidden])
    shared = layers.LinearResidual(name="shared")
    hidden = shared(shared(hidden))
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(hidden), name="residual")


def test_blocks_are_found():
    sum_of_tensors, *others = names(residual())
    assert sum_of_tensors.startswith("add")
    assert others == ["sum", "shared", "shared:2"]
    model = keras.Sequential([keras.Input((3,)), layers.ResidualDense(2), layers.ShortcutUnit(2, name="unit")])
    assert names(model) == [model.layers[0].name, "unit"]
    assert names(preresnet((8, 8, 3), depth=8)) == [f"stage{stage}_block1" for stage in (1, 2, 3)]
    assert names(layers_of_a_transformer()) == ["attended", "transformed"]
    # The branch of the second sum bypasses the first, so the second sum is not a block.
    inputs = keras.Input((4,))
    first = keras.layers.Add(name="first")([inputs, keras.layers.Dense(4)(inputs)])
    second = keras.layers.Add(name="second")(
        [first, keras.layers.Dense(4)(keras.layers.Concatenate()([inputs, first]))]
    )
    assert names(keras.Model(inputs, second)) == ["first"]


def layers_of_a_transformer():
    inputs = keras.Input((5, 4))
    normalized = keras.layers.LayerNormalization()(inputs)
    hidden = keras.layers.Add(name="attended")([inputs, keras.layers.MultiHeadAttention(2, 2)(normalized, normalized)])
    branch = keras.layers.Dense(4)(keras.layers.Dense(8, "gelu")(keras.layers.LayerNormalization()(hidden)))
    return keras.Model(inputs, keras.layers.Add(name="transformed")([hidden, branch]))


def test_blocks_are_named():
    model = residual()
    assert names(model, [("vectors", "sum"), ("sum", "head")]) == ["vectors to sum", "sum to head"]
    assert names(model, {"all": ("vectors", "head"), "last": "head"}) == ["all", "last"]
    x = np.ones((1, 4), "float32")
    whole = jacobian(model, x) @ np.eye(4)
    np.testing.assert_allclose(jacobian(model, x, ("vectors", "head")) @ np.eye(4), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (["missing"], "names 'missing', which is not a layer of the model.*Its layers: .*branch, .*sum"),
        (["shared"], "Received: 'shared', which names the calls shared, shared"),
        (["sum"], "layers with one input and one output. Received: 'sum' with 2 and 1"),
        ([("sum", "branch")], "not a function of its input alone: its output is not computed from its input"),
        ([("branch", "sum")], "it also depends on the model's input"),
    ],
)
def test_invalid_blocks_raise(blocks, message):
    with pytest.raises(ValueError, match=message):
        find_blocks(residual(), blocks)


def body():
    inputs = keras.Input((4, 4, 2))
    hidden = layers.ResidualConv2D(2, name="one")(inputs)
    hidden = keras.layers.Add(name="two")([hidden, keras.layers.Conv2D(2, 3, padding="same", name="conv")(hidden)])
    return keras.Model(inputs, hidden, name="body")


def test_blocks_in_nested_models():
    keras.utils.set_random_seed(0)
    inner = body()
    inputs = keras.Input((4, 4, 2), name="images")
    hidden = layers.ResidualConv2D(2, name="one")(keras.Sequential([inner], name="outer")(2 * inputs))
    model = keras.Model(inputs, keras.layers.Flatten(name="flat")(hidden))
    images = np.random.default_rng(0).normal(size=(2, 4, 4, 2)).astype("float32")
    assert names(model) == ["outer/body/one", "outer/body/two", "one"]
    found, alone = block_distances(model, images), block_distances(inner, 2 * images)
    np.testing.assert_allclose(found["outer/body/one"], alone["one"], rtol=1e-5)
    np.testing.assert_allclose(found["outer/body/two"], alone["two"], rtol=1e-5)
    np.testing.assert_allclose(jacobian(model, images, "body") @ np.ones(64), jacobian(inner, 2 * images) @ np.ones(64))
    through = jacobian(model, images, ("images", "two")) @ np.ones(64)
    np.testing.assert_allclose(through, 2 * (jacobian(inner, 2 * images) @ np.ones(64)), rtol=1e-5)


def test_models_without_blocks_raise():
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="only")])
    with pytest.raises(ValueError, match="no residual layers of this package or of KerasHub, and no sum.*layers: only"):
        find_blocks(plain)
    unbuilt = keras.Sequential([keras.layers.Dense(3)], name="unbuilt")
    with pytest.raises(ValueError, match="`model` must be a built keras.Model. Received: 'unbuilt', not built"):
        jacobian(unbuilt, np.ones((1, 4)))
    with pytest.raises(ValueError, match="must be a built functional or Sequential"):
        find_blocks(unbuilt)
    for empty in (jacobian, measure):
        with pytest.raises(ValueError, match="`inputs` must contain at least one example. Received: an empty batch"):
            empty(body(), np.ones((0, 4, 4, 2)))


def test_integer_and_several_inputs_raise():
    pixels = keras.Input((4, 4, 3), dtype="uint8", name="pixels")
    hidden = layers.PerImageStandardization(name="standardized")(pixels)
    model = keras.Model(pixels, layers.ResidualConv2D(3, name="block")(hidden))
    images = np.random.default_rng(0).integers(0, 255, (1, 4, 4, 3)).astype("uint8")
    with pytest.raises(ValueError, match=r"of a floating-point dtype. Received: uint8. Name a block that starts after"):
        jacobian(model, images)
    # Blocks after the pixels are measured, without an end-to-end Jacobian.
    assert measure(model, images).end_to_end is None
    assert block_distances(model, images)["block"][0] < 0.1
    two = [keras.Input((2,)), keras.Input((2,))]
    both = keras.Model(two, [keras.layers.Add()(two), two[0] * 2])
    with pytest.raises(ValueError, match="has 2 inputs. Name a block"):
        jacobian(both, [np.ones((1, 2))] * 2)
