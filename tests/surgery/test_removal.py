import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from idmatters_tf.layers import ResidualConv2D, ResidualDense
from idmatters_tf.surgery import deepen, remove_identities


def distance(outputs, inputs):
    """Compute the relative distance, independently of the package."""
    outputs, inputs = (np.asarray(part, np.float64) for part in (outputs, inputs))
    return np.sqrt(((outputs - inputs) ** 2).sum() / (inputs**2).sum())


@pytest.fixture(scope="module")
def stack():
    """Build a compiled network of three blocks with very different branches, and data in two batches."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), *(ResidualDense(5, name=f"block{i}") for i in range(3))])
    model.add(layers.Dense(3, name="head"))
    for size, layer in zip((1e-3, 1.0, 1e-2), model.layers[:3], strict=True):
        layer.V.assign(size * np.random.default_rng(1).normal(size=(5, 6)))
        layer.U.assign(np.random.default_rng(2).normal(size=(6, 5)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
    rng = np.random.default_rng(0)
    return model, rng.normal(size=(20, 6)).astype("float32"), rng.integers(0, 3, 20)


def test_near_blocks_are_removed_and_the_loss_is_reported(stack):
    model, x, y = stack
    first, last = (remove_identities(model, 0.0, (x, y)).distances[name] for name in ("block0", "block2"))
    assert first < last < 0.1
    result = remove_identities(model, 1.01 * last, (x, y))
    assert result.removed == ("block0", "block2")
    assert [layer.name for layer in result.model.layers] == ["block1", "head"]
    by_hand = model.get_layer("head")(model.get_layer("block1")(x))
    np.testing.assert_allclose(result.model(x), by_hand, rtol=1e-6)
    losses = keras.losses.sparse_categorical_crossentropy(y, by_hand, from_logits=True)
    assert result.after["loss"] == pytest.approx(float(ops.mean(losses)), rel=1e-5)
    assert result.after["accuracy"] == pytest.approx(float(np.mean(np.argmax(by_hand, 1) == y)))
    assert result.before["loss"] == pytest.approx(model.evaluate(x, y, verbose=0)[0], rel=1e-6)
    assert result.before["loss"] != result.after["loss"]
    # The original network does not change.
    assert len(model.layers) == 4


def residual_graph(blocks):
    """Build a model with residual blocks as sums in the graph, the second one by `+`."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", name="stem")(inputs)
    for number in blocks:
        branch = layers.Conv2D(4, 3, padding="same", activation="relu", name=f"conv{number}a")(x)
        branch = layers.Conv2D(4, 3, padding="same", name=f"conv{number}b")(branch)
        x = layers.Add(name="sum1")([x, branch]) if number == 1 else branch + x
    # Not a residual block, because neither term is computed from the other.
    left, right = layers.Conv2D(4, 1, name="left")(x), layers.Conv2D(4, 1, name="right")(x)
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(layers.Add(name="merge")([left, right])))


def test_sums_in_the_graph_are_removed():
    keras.utils.set_random_seed(0)
    model = residual_graph((1, 2, 3))
    for name in ("conv1b", "conv3b"):
        model.get_layer(name).kernel.assign(1e-4 * model.get_layer(name).kernel)
    model.get_layer("right").kernel.assign(ops.zeros((1, 1, 4, 4)))
    x = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
    result = remove_identities(model, 1e-2, x)
    assert len(result.removed) == 2
    assert "sum1" in result.removed
    assert len(result.distances) == 3
    stem = keras.Model(model.input, model.get_layer("stem").output)(x)
    branch = keras.Model(model.input, model.get_layer("conv1b").output)(x)
    assert result.distances["sum1"] == pytest.approx(distance(stem + branch, stem), rel=1e-4)
    expected = residual_graph((2,))
    names = [layer.name for layer in expected.layers if isinstance(layer, layers.Conv2D)]
    for name in names:
        expected.get_layer(name).set_weights(model.get_layer(name).get_weights())
    np.testing.assert_allclose(result.model(x), expected(x), rtol=1e-5, atol=1e-6)
    assert [layer.name for layer in result.model.layers if isinstance(layer, layers.Conv2D)] == names


def test_shared_block_is_measured_over_all_calls():
    """The block is near the identity on large inputs, but not on small ones."""
    block = ResidualConv2D(2, 1, name="block", use_bias=True)
    inputs = keras.Input((4, 4, 2))
    model = keras.Model(inputs, block(layers.Rescaling(1e-3)(block(inputs))))
    block.conv2.bias.assign([0.1, 0.1])
    x = np.random.default_rng(0).normal(size=(5, 4, 4, 2)).astype("float32")
    result = remove_identities(model, 0.0, x)
    first = np.asarray(block(x))
    second = 1e-3 * first
    changed = np.sum((first - x) ** 2) + np.sum((np.asarray(block(second)) - second) ** 2)
    expected = np.sqrt(changed / (np.sum(x**2) + np.sum(second**2)))
    assert result.distances["block"] == pytest.approx(expected, rel=1e-3)


def test_inputs_by_name_invalid_arguments_and_removal_of_all_layers(stack):
    model, x, _ = stack
    distances = remove_identities(model, 0.0, x).distances
    only = keras.Sequential([keras.Input((6,)), ResidualDense(5, last_kernel_initializer="zeros")])
    np.testing.assert_array_equal(remove_identities(only, 0.0, x).model(x), x)
    # Inputs by name, without targets, have no loss.
    named = remove_identities(model, 0.5, {model.inputs[0].name: x})
    assert named.distances == distances
    assert named.before == named.after == {}
    assert named.removed == ("block0", "block2")
    for tolerance, data, message in ((-1, x, "`tolerance` must be 0"), (0.1, [], "`data` must contain at least one")):
        with pytest.raises(ValueError, match=message):
            remove_identities(model, tolerance, data)


def test_models_of_a_mirrored_strategy():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        inputs = keras.Input((4,))
        hidden = inputs + layers.Dense(4, name="hidden")(inputs)
        model = keras.Model(inputs, layers.Dense(2)(hidden))
        model.compile("sgd", "mse")
    x, y = np.ones((6, 4), "float32"), np.ones((6, 2), "float32")
    removed = remove_identities(model, 100.0, (x, y))
    assert removed.before["loss"] == pytest.approx(model.evaluate(x, y, verbose=0))
    assert len(removed.model.layers) < len(model.layers)
    for changed in (removed.model, deepen(model, "hidden", lambda shape: ResidualDense(4))):
        assert changed.distribute_strategy is strategy
        changed.fit(x, y, verbose=0)
        variables = [variable.value for variable in (*changed.variables, *changed.optimizer.variables)]
        assert all(strategy.extended.variable_created_in_scope(variable) for variable in variables)
