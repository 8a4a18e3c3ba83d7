"""Tests of the influence of blocks, and of layers as blocks."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from idmatters_tf.curvature import HessianOperator, ModelLoss
from idmatters_tf.isometry import block_distances, find_blocks, layer_influence
from idmatters_tf.layers import ResidualDense
from idmatters_tf.surgery import remove_identities


class Perceptron(keras.layers.Layer):
    def build(self, shape):
        self.first, self.second = keras.layers.Dense(8, "tanh"), keras.layers.Dense(shape[-1])
        self.first.build(shape)
        self.second.build((*shape[:-1], 8))

    def call(self, x):
        return self.second(self.first(x))


def test_own_layers_are_blocks_if_they_are_named():
    x = inputs = keras.Input((None, 4))
    # Constants are no branches.
    x = x + keras_hub.layers.SinePositionEncoding()(x)
    x = keras.layers.Add(name="sum")([x, Perceptron(name="branch")(keras.layers.LayerNormalization()(x))])
    x = keras.layers.Add(name="other")([x, Perceptron()(keras.layers.Concatenate()([x, inputs])[..., :4])])
    shared = Perceptron(name="shared")
    x = keras.layers.Add(name="long")([x, shared(shared(x))])
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 2)(x, x))
    assert [block.name for block in find_blocks(model)] == ["sum", "long"]
    # The sum with another input is a block without a Jacobian.
    data = np.ones((2, 3, 4), "float32"), np.zeros((2, 3, 4), "float32")
    influence = layer_influence(model, "mse", data).blocks
    assert list(influence) == ["sum", "other", "long"]
    distances = remove_identities(model, 0.0, data[0]).distances
    assert distances == {name: block.relative for name, block in influence.items()}
    # Both calls of a shared layer are skipped.
    named = layer_influence(model, "mse", data, blocks=["branch"]).blocks
    assert list(named) == ["branch"]
    assert list(remove_identities(model, 0.0, data[0], blocks=["branch", "sum"]).distances) == ["sum", "branch"]
    with pytest.raises(ValueError, match="names the calls shared, shared"):
        layer_influence(model, "mse", data, blocks=["shared"])


def test_elementwise_formulas_are_no_blocks():
    inputs = keras.Input((3, 4))
    hidden = keras.layers.Dense(4)(inputs)
    hidden = 0.5 * hidden * (1 + ops.tanh(0.8 * (hidden + 0.045 * hidden**3)))
    hidden = keras.layers.Add()([hidden, keras.layers.Activation("sigmoid")(hidden)])
    model = keras.Model(inputs, keras.layers.Add(name="block")([inputs, keras.layers.Dense(4)(hidden)]))
    assert [block.name for block in find_blocks(model)] == ["block"]
    assert list(remove_identities(model, 0.0, np.ones((2, 3, 4), "float32")).distances) == ["block"]


def test_sums_of_scores_of_attention_are_no_blocks():
    """In RealFormer, the scores of each layer are added to those of the previous one."""
    x = inputs = keras.Input((3, 4))
    previous = None
    for number in range(3):
        scores = ops.matmul(keras.layers.Dense(4)(x), ops.transpose(keras.layers.Dense(4)(x), (0, 2, 1)))
        previous = scores if previous is None else previous + scores
        branch = keras.layers.Dense(4)(ops.matmul(ops.softmax(previous), x))
        x = keras.layers.Add(name=f"block{number}")([x, branch])
    model = keras.Model(inputs, x)
    distances = remove_identities(model, 0.0, np.ones((2, 3, 4), "float32")).distances
    assert sorted(distances) == ["block0", "block1", "block2"]


@pytest.mark.parametrize("is_one_sum", [True, False])
def test_parallel_branches(is_one_sum):
    """The block is x + f(x) + g(x); two sums can be removed one by one."""
    keras.utils.set_random_seed(0)
    add, layers = keras.layers.Add, [keras.layers.Dense(4, name=name) for name in ("attention", "perceptron", "head")]
    x = inputs = keras.Input((4,))
    attention, perceptron = layers[0](x), layers[1](x)
    if is_one_sum:
        x = add(name="sum")([attention, x, perceptron])
    else:
        x = add(name="sum")([perceptron, add(name="first")([x, attention])])
    model = keras.Model(inputs, layers[2](x))
    data = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    branches = layers[0].kernel + layers[1].kernel
    expected = np.linalg.norm(branches, 2)
    np.testing.assert_allclose(list(block_distances(model, data[0]).values()), [[expected] * 5], rtol=1e-5)
    influence = layer_influence(model, "mse", tuple(data)).blocks
    assert list(influence) == (["sum"] if is_one_sum else ["first", "sum"])
    remaining = data[0] if is_one_sum else data[0] + layers[0](data[0])
    assert influence["sum"].loss == pytest.approx(float(np.mean((layers[2](remaining) - data[1]) ** 2)), rel=1e-5)
    result = remove_identities(model, influence["sum"].relative * 1.001, data[0])
    assert "sum" in result.removed
    np.testing.assert_allclose(
        result.model(data[0]), layers[2](data[0] if "first" in result.removed else remaining), rtol=1e-5
    )


def test_blocks_in_nested_and_shared_models():
    inputs = keras.Input((3, 4))
    layers = [keras.Input((3, 4)), keras.layers.Identity(), ResidualDense(3, name="inside")]
    nested = keras.Sequential(layers, name="nested")
    shared = keras.Sequential([keras.Input((3, 4)), ResidualDense(3, name="first")], name="shared")
    hidden = nested(keras.layers.Conv1D(4, 1, name="convolution")(inputs))
    model = keras.Model(inputs, shared(shared(hidden)))
    for layer in (nested.layers[1], shared.layers[0]):
        layer.V.assign(ops.zeros_like(layer.V))
        layer.U.assign(ops.zeros_like(layer.U))
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    assert [block.name for block in find_blocks(model)] == ["nested/inside"]
    assert list(layer_influence(model, "mse", (x, x)).blocks) == ["nested/inside", "shared/first"]
    result = remove_identities(model, 0.0, x)
    # A nested model without layers is removed, too.
    assert result.removed == ("nested/inside", "shared", "shared/first")
    assert [layer.name for layer in result.model.layers[1:]] == ["convolution", "nested"]
    np.testing.assert_array_equal(result.model(x), model(x))


class Noise(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed = keras.random.SeedGenerator(0)

    def call(self, x):
        return keras.random.normal(ops.shape(x), seed=self.seed)


def test_the_model_does_not_change_and_data_need_targets():
    inputs = keras.Input((4,))
    x = inputs + keras.layers.Dense(4, kernel_regularizer="l2")(Noise()(inputs) + inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    model.compile(loss="mse")
    state = [ops.convert_to_numpy(variable) for variable in model.variables]
    data = np.ones((4, 4), "float32"), np.zeros((4, 2), "float32")
    once, again = layer_influence(model, data=data), layer_influence(model, data=data)
    assert once == again
    assert all(np.array_equal(a, ops.convert_to_numpy(b)) for a, b in zip(state, model.variables, strict=True))
    assert layer_influence(model, "mse", data).loss == pytest.approx(once.loss - float(sum(model.losses)), rel=1e-5)
    with pytest.raises(ValueError, match="Keras cannot compute the loss of"):
        layer_influence(model, data=data[:1])
    # A loss of the model and the batch needs no targets.
    given = layer_influence(model, ModelLoss(lambda model, batch: ops.mean(model(batch[0]) ** 2)), data[:1])
    assert given.loss == pytest.approx(layer_influence(model, "mse", data).loss)
    with pytest.raises(ValueError, match="`loss` is required"):
        layer_influence(keras.Model(inputs, x), data=data)
    with pytest.raises(ValueError, match="`data` must be given after `loss`. Received: tuple in the place of `loss`"):
        layer_influence(model, data)


def test_losses_that_couple_examples_require_one_batch():
    inputs, loss = keras.Input((4,)), keras.losses.Dice()
    model = keras.Model(inputs, keras.layers.Dense(4, "sigmoid")(inputs + keras.layers.Dense(4, "tanh")(inputs)))
    x, y = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("float32")
    y = (y > 0).astype("float32")
    with pytest.raises(ValueError, match=r"couples the examples .*Received: data in 3 batches. Pass batch_size=6"):
        layer_influence(model, loss, (x, y), batch_size=2)
    assert layer_influence(model, loss, (x, y), batch_size=6).loss == pytest.approx(float(loss(y, model(x))), rel=1e-5)


def test_models_without_blocks_raise():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"no sums x \+ f\(x\). Name them as .*Its layers: first"):
        layer_influence(model, "mse", (np.ones((2, 4)), np.ones((2, 2))))


@pytest.mark.parametrize("add", [lambda x, y: x + y, lambda x, y: keras.layers.Add()([x, y])])
def test_masks_of_inputs_of_attention(add):
    """Attention removes the mask of x before the sum reads x."""
    tokens, target = np.array([[1, 2, 0, 0], [3, 1, 2, 4]]), np.random.default_rng(0).normal(size=(2, 4, 2))
    inputs = keras.Input((4,))
    x = keras.layers.Embedding(5, 3, "normal", mask_zero=True)(inputs)
    y = add(x, keras.layers.MultiHeadAttention(2, 3)(x, x))
    head = keras.layers.Dense(2)
    model = keras.Model(inputs, head(y))
    start, end = (np.asarray(keras.Model(inputs, part)(tokens))[tokens > 0] for part in (x, y))
    norms = [np.linalg.norm(part, axis=-1) for part in (start, end, end - start)]
    angle = np.degrees(np.mean(np.arccos(np.sum(start * end, -1) / norms[0] / norms[1])))
    distance = np.sqrt(np.sum(norms[2] ** 2) / np.sum(norms[0] ** 2))
    expected = np.mean((np.asarray(head(start)) - target[tokens > 0]) ** 2)
    (block,) = layer_influence(model, "mse", (tokens, target)).blocks.values()
    np.testing.assert_allclose([block.relative, block.angle, block.loss], [distance, angle, expected], rtol=1e-4)
    (found,) = remove_identities(model, 0.0, tokens).distances.values()
    np.testing.assert_allclose(found, distance, rtol=1e-5)


def test_padding_masks_of_own_layers_are_not_read():
    """In layers of users, as in PyTorch, True may mean padding."""

    class Padded(Perceptron):
        def call(self, x, padding_mask=None):
            return x + super().call(x)

    inputs, padding = keras.Input((3, 4)), keras.Input((3,), dtype="bool")
    model = keras.Model([inputs, padding], Padded(name="own")(inputs, padding_mask=padding))
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    given = [x, np.array([[False, True, True]] * 2)]
    size = layer_influence(model, "mse", (given, x), blocks=["own"]).blocks["own"].relative
    branch = np.asarray(model(given)) - x
    assert size == pytest.approx(np.linalg.norm(branch) / np.linalg.norm(x), rel=1e-5)


class AddOptional(keras.layers.Layer):
    def call(self, x, other=None):
        return x if other is None else x + other


def test_optional_inputs_given_as_none():
    optional, inputs = keras.Input((4,), optional=True), keras.Input((4,))
    hidden = keras.layers.Add(name="block")([inputs, keras.layers.Dense(4)(inputs)])
    model = keras.Model([optional, inputs], keras.layers.Dense(2)(AddOptional()(hidden, optional)))
    x, y = np.ones((3, 4), "float32"), np.zeros((3, 2), "float32")
    expected = float(np.mean(np.square(model([None, x]))))
    assert layer_influence(model, "mse", ([None, x], y)).loss == pytest.approx(expected, rel=1e-5)
    assert HessianOperator(model, "mse", ([None, x], y)).loss() == pytest.approx(expected, rel=1e-5)
    assert block_distances(model, [None, x])["block"].shape == (3,)


def test_stateful_recurrent_layers_are_measured_in_batches_of_one():
    inputs = keras.Input(batch_shape=(2, 3, 4))
    x = keras.layers.Add()([inputs, keras.layers.LSTM(4, return_sequences=True, stateful=True)(inputs)])
    with pytest.raises(ValueError, match=r"stateful recurrent layers.*Build it with stateful=False"):
        block_distances(keras.Model(inputs, x), np.ones((2, 3, 4), "float32"))
