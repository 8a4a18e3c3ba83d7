"""Tests of blocks of models with masks: finite differences of the whole model, and errors for masks in a block."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from idmatters_tf.isometry import JacobianOperator, block_distances, jacobian, layer_influence, measure

TIME, WIDTH, STEP = 5, 4, 1e-2
# Number of time steps of the two examples. The others are padding.
LENGTHS = (3, 4)
PADDING = np.arange(TIME) >= np.array(LENGTHS)[:, None]


class Shift(keras.layers.Layer):
    """Layer that adds `shift` to its input, for finite differences inside of the model."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.shift = np.zeros((), "float32")

    def call(self, x):
        return x + self.shift


class Attach(keras.layers.Layer):
    """Layer that attaches a mask to its input."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, x, mask=None):
        return 1.0 * x


def vectors():
    x = np.random.default_rng(0).normal(size=(2, TIME, WIDTH)).astype("float32")
    x[PADDING] = 0
    return x


def residual(branch, start):
    return keras.layers.Add(name="sum")([start, branch])


def attention():
    return keras.layers.MultiHeadAttention(2, 3, name="attention")


def recurrent():
    return keras.layers.GRU(WIDTH, return_sequences=True, name="recurrent")


# Each function receives a function for the beginning of the block. It returns symbolic inputs and end, data and block.


def mask_of_every_pair(begin):
    x, pairs = keras.Input((TIME, WIDTH)), keras.Input((TIME, TIME), dtype="bool")
    hidden = begin(keras.layers.Dense(WIDTH)(x))
    allowed = np.random.default_rng(2).random((2, TIME, TIME)) < 0.6
    end = residual(attention()(hidden, hidden, attention_mask=ops.logical_not(pairs)), hidden)
    return [x, pairs], end, [vectors(), ~allowed], "sum"


class Causal(keras.layers.Layer):
    """Layer that returns the causal mask of its input, (time, time)."""

    def call(self, x):
        places: Any = ops.arange(x.shape[1])
        return places[:, None] >= places

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape[1:2] * 2, "bool")


def mask_of_all_examples(begin):
    """Return a model of sequences of any length, with a mask without an axis of examples."""
    x = keras.Input((None, WIDTH))
    hidden = begin(keras.layers.Dense(WIDTH)(x))
    end = attention()(hidden, hidden, attention_mask=Causal()(hidden))
    return x, end, np.random.default_rng(0).normal(size=(2, TIME, WIDTH)).astype("float32"), "attention"


def two_explicit_masks(begin):
    x, real, other = keras.Input((TIME, WIDTH)), *(keras.Input((TIME,), dtype="bool") for _ in range(2))
    hidden = begin(keras.layers.Dense(WIDTH)(x))
    keys = keras.layers.Dense(WIDTH)(hidden)
    end = keras.layers.Attention()([hidden, keys], mask=[real, other])
    return [x, real, other], residual(end, hidden), [vectors(), ~PADDING, PADDING[:, ::-1]], "sum"


def removed_mask(begin):
    """Return a model whose attention removes the mask, so that later layers receive none."""
    x = keras.Input((TIME, WIDTH))
    hidden = begin(keras.layers.Masking()(x))
    middle = keras.layers.Add(name="middle")([hidden, attention()(hidden, hidden)])
    return x, residual(recurrent()(middle), hidden), vectors(), "middle"


def nested_with_explicit_mask(begin):
    inner = keras.Input((TIME, WIDTH))
    body = keras.Sequential([inner, keras.layers.Dense(WIDTH, name="first"), recurrent()], name="body")
    x, real = keras.Input((TIME, WIDTH)), keras.Input((TIME,), dtype="bool")
    hidden = begin(keras.layers.Dense(WIDTH)(x))
    return [x, real], residual(body(hidden, mask=real), hidden), [vectors(), ~PADDING], "sum"


def mask_before_the_block(begin):
    x = keras.Input((TIME, WIDTH))
    last = keras.Sequential([keras.layers.Masking(), keras.layers.GRU(WIDTH), keras.layers.Dense(TIME * WIDTH)])(x)
    hidden = begin(keras.layers.Reshape((TIME, WIDTH))(last))
    return x, residual(keras.layers.Dense(WIDTH, "tanh")(hidden), hidden), vectors(), "sum"


def build(case, begin=lambda tensor: tensor):
    """Return (model, data, block) of a case."""
    keras.utils.set_random_seed(0)
    inputs, end, data, block = case(begin)
    return keras.Model(inputs, end), data, block


def by_differences(case):
    """Return central differences of the model by a shift of the block's input, (examples, outputs, inputs)."""
    plain, data, _ = build(case)
    layer = Shift()
    model, _, _ = build(case, layer)
    model.set_weights(plain.get_weights())
    directions = np.eye(TIME * WIDTH).reshape(-1, TIME, WIDTH)
    shifts = STEP * np.concatenate([directions, -directions])
    layer.shift = np.concatenate([shifts, shifts]).astype("float32")
    repeated = keras.tree.map_structure(lambda array: np.repeat(array, len(shifts), 0), data)
    ends = np.asarray(ops.convert_to_numpy(model(repeated)))
    plus, minus = np.moveaxis(ends.astype(np.float64).reshape(2, 2, len(directions), -1), 1, 0)
    return np.swapaxes(plus - minus, 1, 2) / (2 * STEP)


@pytest.mark.parametrize("case", [mask_of_every_pair, mask_of_all_examples, mask_before_the_block])
def test_blocks_have_the_masks_of_the_model(case):
    """The Jacobians are compared for each example and for the batch."""
    model, data, block = build(case)
    expected = by_differences(case)
    distances = [np.linalg.norm(matrix - np.eye(TIME * WIDTH), 2) for matrix in expected]
    blocks = None if block.endswith("sum") else [block]
    np.testing.assert_allclose(block_distances(model, data, blocks)[block], distances, 3e-3)
    if blocks is not None:
        # Jacobian of the batch, in chunks of copies of it.
        dense = jacobian(model, data, block, chunk=4) @ np.eye(2 * TIME * WIDTH, dtype="float32")
        for index, matrix in enumerate(expected):
            rows = slice(index * TIME * WIDTH, (index + 1) * TIME * WIDTH)
            np.testing.assert_allclose(dense[rows, rows], matrix, atol=3e-3)


@pytest.mark.parametrize(
    ("case", "layer"),
    [
        (two_explicit_masks, "sum"),
        (removed_mask, "attention"),
        (nested_with_explicit_mask, "body/first"),
    ],
)
def test_attached_masks_in_a_block_raise(case, layer):
    model, data, block = build(case)
    with pytest.raises(ValueError, match=f"input of the layer '{layer}' in the block '{block}' has a mask of Keras"):
        block_distances(model, data)
    # The influence of the same blocks takes masks.
    target = np.zeros((2, TIME, WIDTH), "float32")
    assert np.isfinite(layer_influence(model, "mse", (data, target)).blocks[block].relative)


def test_masked_inputs_raise():
    masked = keras.layers.Masking()(vectors())
    pooling = keras.layers.GlobalAveragePooling1D()
    inputs = keras.Input(masked.shape[1:])
    model = keras.Model(inputs, pooling(residual(keras.layers.Dense(WIDTH)(inputs), inputs)))
    with pytest.raises(ValueError, match="Argument `point` has a mask of Keras"):
        JacobianOperator(pooling, masked)
    for function in (jacobian, measure, block_distances):
        with pytest.raises(ValueError, match="Argument `inputs` has a mask of Keras"):
            function(model, masked)
