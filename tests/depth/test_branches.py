"""Residual branches found along the graph: sums, last weights, weights that the user names, and refused models."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from idmatters_tf import scale_depth
from idmatters_tf.depth.scale import scale_branches


def stack(block, depth=2, shape=(6,)):
    """Return a model of blocks, which are functions of a tensor."""
    x = inputs = keras.Input(shape)
    for _ in range(depth):
        x = block(x)
    return keras.Model(inputs, layers.Dense(2)(x))


def mlp(activation=None, width=6, **options):
    return lambda x: layers.Dense(width, activation, **options)(layers.Dense(8, "tanh")(x))


def branch(*parts):
    """Return a block x + f(x) whose branch applies a dense layer and further layers."""

    def apply(x):
        f = layers.Dense(6)(layers.Activation("tanh")(x))
        for part in parts:
            f = part()(f)
        return layers.Add()([x, f])

    return apply


class Block(layers.Layer):
    """A layer with the sum x + factor * V tanh(U x), or with other sums."""

    def __init__(self, kind="plain", **kwargs):
        super().__init__(**kwargs)
        self.kind, self.first, self.last = kind, layers.Dense(8, "tanh"), layers.Dense(6, name="end")
        self.other = layers.Dense(6, name="other")

    def build(self, shape):
        self.first.build(shape)
        self.last.build((*shape[:-1], 8))
        self.other.build(shape)
        self.factor = self.add_weight(name="factor", shape=(), initializer="ones")
        self.shift = self.add_weight(name="shift", shape=(shape[-1],), initializer="ones")

    def call(self, x, attended=None):
        inner = self.last(self.first(x))
        if self.kind == "factor":
            return x + self.factor * inner
        if self.kind == "shift":
            return x + (inner + self.shift)
        x = x + inner
        return x + self.other(x) if self.kind == "two" else x


class Times(layers.Layer):
    """Multiplication by a constant, which scale_depth does not know."""

    def call(self, inputs):
        return 0.5 * inputs


class Wider(layers.Layer):
    """A layer that changes the shape."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 9))

    def call(self, inputs):
        return inputs @ self.kernel


class Join(layers.Layer):
    """Sum of two tensors, which scale_depth does not know."""

    def call(self, inputs):
        return inputs[0] + inputs[1]


def joined(x):
    return Join()([x, mlp()(x)])


def attention(x):
    inner = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 3)(inner, inner)
    return x + layers.Dropout(0.5)(mlp()(layers.LayerNormalization()(x)))


def parallel(x):
    return x + mlp()(x) + layers.Dense(6)(x)


def convolutions(x):
    inner = layers.Conv2D(6, 3, padding="same")(layers.ReLU()(layers.Conv2D(6, 3, padding="same")(x)))
    return layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(inner)]))


def gated(x):
    inner = layers.Dense(6)(x)
    return x + layers.Multiply()([inner, layers.Dense(6, "sigmoid")(inner)])


def chained(x):
    """Return x + a * V a, which is proportional to V only."""
    a = layers.Dense(6)(x)
    return x + a * layers.Dense(6)(a)


def handwritten(x):
    """Return x + V gelu(U x) with an activation that contains a sum of its own."""
    u = layers.Dense(8)(x)
    return x + layers.Dense(6)(0.5 * u * (1 + ops.tanh(0.8 * (u + 0.044715 * u**3))))


def two_stages():
    """Return blocks with a normalization between the second and the third one."""
    x = inputs = keras.Input((6,))
    for number in range(4):
        x = layers.LayerNormalization()(x) if number == 2 else x
        x = x + mlp()(x)
    return keras.Model(inputs, layers.Dense(2)(x))


def used_twice():
    """Return a sum (x + f(x)) + g(x) whose first addition is also an output."""
    x = keras.Input((6,))
    first = x + mlp()(x)
    return keras.Model(x, [layers.Dense(2)(first + mlp()(x)), first])


def nested():
    """Return a model with two inputs that contains one with two inputs."""

    def inner():
        inputs = {"a": keras.Input((6,)), "b": keras.Input((6,))}
        return keras.Model(inputs, inputs["a"] + layers.Dense(6)(inputs["a"] * inputs["b"]))

    inputs = [keras.Input((6,)) for _ in range(2)]
    x = inputs[0]
    for _ in range(3):
        x = inner()({"a": x, "b": inputs[1]})
    return keras.Model(inputs, layers.Dense(2)(x))


def projected(x):
    """Return P x + f(x), whose skip is not x."""
    return layers.Add()([layers.Dense(6)(x), mlp()(x)])


KERNEL, NORM = ["kernel", "bias"], ["gamma", "beta"]
SUMS = {
    "dense": (lambda: stack(lambda x: x + mlp()(x)), 2, KERNEL, 2),
    "attention": (lambda: stack(attention, shape=(4, 6)), 4, KERNEL, 8),
    "convolutions": (lambda: stack(convolutions, shape=(4, 4, 6)), 2, NORM, 4),
    "parallel": (lambda: stack(parallel), 2, 2 * KERNEL, 2),
    "two stages": (two_stages, 4, KERNEL, 2),
    "used twice": (used_twice, 1, 2 * KERNEL, 4),
    "product of a chain": (lambda: stack(chained), 2, KERNEL, 2),
    "handwritten activation": (lambda: stack(handwritten), 2, KERNEL, 2),
    "x - f(x)": (lambda: stack(lambda x: x - mlp()(x)), 2, KERNEL, 2),
    "Subtract": (lambda: stack(lambda x: layers.Subtract()([x, mlp()(x)])), 2, KERNEL, 2),
    "long tail": (
        lambda: stack(branch(layers.ReLU, lambda: layers.Dropout(0.5), lambda: layers.Reshape((6,)), layers.PReLU)),
        *(2, KERNEL, 1),
    ),
    "operations": (lambda: stack(lambda x: x + 0.5 * ops.reshape(-mlp()(x) / 3, (-1, 6))), 2, KERNEL, 2),
    "nested models": (nested, 3, KERNEL, 0),
}


def last_paths(scaling):
    """Return the name of the first block with last weights, and the paths of these weights."""
    block = next(weight.block for weight in scaling.weights if weight.use == "last")
    return block, [weight.path for weight in scaling.weights if weight.block == block and weight.use == "last"]


def check(scaling, sums, ends):
    block, paths = last_paths(scaling)
    assert (scaling.sums, len(paths)) == (sums, len(ends))
    assert all(path.endswith(end) for path, end in zip(paths, ends, strict=True))
    return sum(weight.use == "inner" for weight in scaling.weights if weight.block == block)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.filterwarnings("error:scale_depth")
def test_last_weights_of_each_sum_are_scaled(name):
    make, sums, ends, inner = SUMS[name]
    model = make()
    scaling = scale_branches(model, 1)
    assert check(scaling, sums, ends) == inner
    assert {weight.path for weight in scaling.weights} >= {variable.path for variable in model.trainable_variables}


NAMED = {
    "one sum, by attribute": (lambda x: Block()(x), {Block: "last"}, 2, KERNEL),
    "one sum, by name": (lambda x: Block()(x), {Block: "end"}, 2, KERNEL),
    "own bias": (lambda x: Block("shift")(x), {Block: ("last", "shift")}, 2, ["shift", *KERNEL]),
    "trained factor": (lambda x: Block("factor")(x), {Block: "factor"}, 2, ["factor"]),
    "two sums": (lambda x: Block("two")(x), {Block: ["last", "other"]}, 4, 2 * KERNEL),
    "no sum": (lambda x: x + layers.Dense(6)(Block()(x)), {}, 2, KERNEL),
    "layer that passes a factor": (branch(Times), {Times: ()}, 2, KERNEL),
    "layer with weights at the end": (branch(layers.PReLU), {layers.PReLU: "alpha"}, 2, ["alpha"]),
    "own addition": (joined, {Join: "last"}, None, None),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_user_names_last_weights(name):
    block, last, sums, ends = NAMED[name]
    model = stack(block)
    if sums is None:
        names = [layer.name for layer in model.layers if isinstance(layer, Join)]
        dense = [layer.name for layer in model.layers if isinstance(layer, layers.Dense)]
        last, sums, ends = {names[0]: dense[1], names[1]: dense[3]}, 2, KERNEL
    check(scale_branches(model, 1, last=last), sums, ends)


def test_layers_named_without_sums_are_not_counted():
    model = stack(lambda x: Block()(x + layers.Dense(6)(x)))
    assert scale_branches(model, 1, last={Block: None}).sums == 2
    model = stack(lambda x: layers.Add(name=f"sum{len(x.shape)}")([x, layers.Dense(6)(x)]), 1)
    with pytest.raises(ValueError, match="has no residual blocks"):
        scale_branches(model, 1, last={"sum2": None})


NOT_COUNTED = {
    "own addition": joined,
    "Lambda": lambda x: layers.Lambda(lambda pair: pair[0] + pair[1])([x, mlp()(x)]),
    "Average": lambda x: layers.Average()([x, mlp()(x)]),
    "projection": projected,
    "no weights": lambda x: x + layers.Activation("tanh")(x),
    "branch that is used elsewhere": lambda x: layers.Concatenate()([x + (z := layers.Dense(6)(x)), z])[:, :6],
    "own layer of another shape": lambda x: layers.Dense(6)(Wider()(x)),
}


@pytest.mark.parametrize("name", NOT_COUNTED)
def test_sums_that_are_not_counted_are_in_one_warning(name):
    model = stack(lambda x: NOT_COUNTED[name](x + layers.Dense(6)(x)), 3)
    with pytest.warns(UserWarning, match="not counted 3 possible residual sums.*last=") as record:
        assert scale_branches(model, 1).sums == 3
    assert len([warning for warning in record if "scale_depth" in str(warning.message)]) == 1


def shared():
    dense = layers.Dense(6)
    return stack(lambda x: x + dense(x))


def shared_outside():
    inputs, dense = keras.Input((6,)), layers.Dense(6)
    x = dense(inputs)
    return keras.Model(inputs, x + dense(layers.Activation("tanh")(x)))


def shared_sum():
    add = layers.Add()
    return stack(lambda x: add([x, layers.Dense(6)(x)]))


def shared_model():
    inputs = keras.Input((6,))
    return stack(keras.Model(inputs, inputs + layers.Dense(6)(inputs)))


def long_skip(x):
    inner = layers.Dense(6)(x)
    return x + layers.Dense(6)(inner + layers.Dense(6)(inner))


def also_output():
    x = keras.Input((6,))
    last = layers.Dense(6)(x)
    return keras.Model(x, [layers.Dense(2)(x + (last + layers.Dense(6)(x))), last])


def normed(x):
    return layers.LayerNormalization()(x + mlp()(x))


REFUSED = {
    "activation": (lambda: stack(lambda x: x + mlp("tanh")(x)), "Dense with activation tanh.*End the branch"),
    "gate of the branch": (lambda: stack(gated), "last weights .* are unknown"),
    "square": (lambda: stack(lambda x: x + ops.square(mlp()(x))), "Square.* does not pass a factor on"),
    "product with itself": (lambda: stack(lambda x: x + (z := layers.Dense(6)(x)) * z), "multiplies the branch by it"),
    "constant": (lambda: stack(lambda x: x + (mlp()(x) + 1.0)), "Add.* does not pass a factor on"),
    "inverse": (lambda: stack(lambda x: x + 1.0 / mlp()(x)), "unknown"),
    "own tail": (lambda: stack(branch(Times)), "Times.*name its last weights as last={'add"),
    "own layer": (lambda: stack(lambda x: Block()(x)), "may compute residual sums.*last={Block: attribute or name}"),
    "used elsewhere": (also_output, "used for something else"),
    "inner sum": (lambda: stack(long_skip, 1), "share .*exclude one of them"),
    "input in the branch": (lambda: stack(lambda x: x + (x + mlp()(x))), "contains its input without weights"),
    "activity penalty": (
        lambda: stack(lambda x: x + mlp(activity_regularizer="l2")(x)),
        "no `activity_regularizer`.*Received: L2",
    ),
    "no weights": (lambda: stack(lambda x: x + layers.Activation("tanh")(x)), "has no residual blocks"),
    "no sums": (lambda: stack(mlp()), "has no residual blocks"),
    "normalization after sums": (lambda: stack(normed), "followed by the normalization"),
    "shared layer": (shared, "called several times with the same weights"),
    "shared with the stem": (shared_outside, "called several times with the same weights"),
    "shared addition": (shared_sum, "called several times.*`Add`"),
    "shared model": (shared_model, "contains sums, and is called several times"),
    "constraint": (lambda: stack(lambda x: x + mlp(kernel_constraint="unit_norm")(x)), "no constraint.*UnitNorm"),
    "penalty": (lambda: stack(lambda x: x + mlp(kernel_regularizer="l1")(x)), "other than L2.*Received: L1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_be_scaled_are_refused(name):
    make, message = REFUSED[name]
    model = make()
    values = model.get_weights()
    with pytest.raises(ValueError, match=message):
        scale_depth(model, 1, "adam")
    for old, new in zip(values, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({Block: "nothing"}, "name one layer with weights.*'nothing', which 0 have. Its layers with weights: "),
        ({Block: "last", "elsewhere": "last"}, "must name layers .*Received: 'elsewhere'"),
        ({Block: "last", Times: ()}, "Received: Times"),
    ],
)
def test_wrong_names_are_refused(last, message):
    with pytest.raises(ValueError, match=message):
        scale_depth(stack(lambda x: Block()(x)), 1, "adam", last=last)
