"""Tests of the influence of blocks, and of layers of layers as blocks."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from idmatters_tf.isometry import find_blocks, layer_influence
from idmatters_tf.surgery import remove_identities


class AddWaves(keras.layers.Layer):
    def build(self, shape):
        self.embedding = keras.layers.Embedding(*shape[1:])
        self.embedding.build(())

    def call(self, x):
        return x + self.embedding(ops.arange(x.shape[1]))


class Perceptron(keras.layers.Layer):
    def build(self, shape):
        self.first, self.second = keras.layers.Dense(8, "tanh"), keras.layers.Dense(shape[-1])
        self.first.build(shape)
        self.second.build((*shape[:-1], 8))

    def call(self, x):
        return self.second(self.first(x))


def test_sums_and_layers_of_layers_are_told_apart():
    x = inputs = keras.Input((None, 4))
    # Constants are no branches.
    x = x + keras_hub.layers.SinePositionEncoding()(x)
    # A branch that is a layer of layers is no block beside its sum, nor if it has another input.
    x = keras.layers.Add(name="sum")([x, Perceptron(name="branch")(keras.layers.LayerNormalization()(x))])
    x = keras.layers.Add()([x, Perceptron()(keras.layers.Concatenate()([x, inputs])[..., :4])])
    shared = Perceptron(name="shared")
    # Layers of layers in the branch of a long skip are blocks.
    x = keras.layers.Add(name="long")([x, shared(shared(x))])
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 2)(x, x))
    assert [block.name for block in find_blocks(model)] == ["sum", "shared", "shared:2", "long"]
    fixed = keras.Input((3, 4))
    assert [b.name for b in find_blocks(keras.Model(fixed, Perceptron(name="only")(AddWaves()(fixed))))] == ["only"]
    # Both calls of a shared layer are skipped. The sum with another input is a block without a Jacobian.
    data = np.ones((2, 3, 4), "float32"), np.zeros((2, 3, 4), "float32")
    influence = layer_influence(model, "mse", data).blocks
    assert [name for name in influence if not name.startswith("add")] == ["sum", "shared", "long"]
    assert len(influence) == 4
    distances = remove_identities(model, 0.0, data[0]).distances
    assert distances == {name: block.relative for name, block in influence.items()}


class OwnKernel(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], shape[-1]), initializer="zeros")

    def call(self, x):
        return x + x @ self.kernel


class OwnConvolution(keras.layers.Conv1D):
    pass


def test_blocks_with_kernels_of_their_own_and_in_shared_models():
    inputs = keras.Input((3, 4))
    nested = keras.Sequential([keras.Input((3, 4)), keras.layers.Identity(), OwnKernel(name="inside")], name="nested")
    shared = keras.Sequential([keras.Input((3, 4)), OwnKernel(name="first")], name="shared")
    hidden = nested(OwnConvolution(4, 1, name="convolution")(inputs))
    model = keras.Model(inputs, shared(shared(hidden)))
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
    given = layer_influence(model, lambda model, batch: ops.mean(model(batch[0]) ** 2), data[:1])
    assert given.loss == pytest.approx(layer_influence(model, "mse", data).loss)
    with pytest.raises(ValueError, match="`loss` is required"):
        layer_influence(keras.Model(inputs, x), data=data)
    with pytest.raises(ValueError, match="`data` must be given after `loss`. Received: tuple in the place of `loss`"):
        layer_influence(model, data)


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
