import keras
import numpy as np
import pytest
from keras import layers, ops

from idmatters_tf.layers import ResidualConv2D, ResidualDense
from idmatters_tf.optimizers import Muon
from idmatters_tf.surgery import deepen, remove_identities
from tests.surgery.cases import APPLICATIONS, CASES, TwoLayerBlock, inputs_for, sequential

# Cases whose inserted blocks are removed again.
REMOVED = ("transformer", "nested", "shared", "several", *APPLICATIONS)


def arrays(tensors):
    return [ops.convert_to_numpy(tensor) for tensor in keras.tree.flatten(tensors)]


def weights_by_path(model):
    return {weight.path: ops.convert_to_numpy(weight) for weight in model.weights}


def inserted(model):
    """Return the inserted blocks at any depth."""
    return [layer for layer in model._flatten_layers() if "_deeper" in layer.name]


def gradient_steps(model, x, steps=2, rate=1e-2):
    """Run plain gradient descent on the sum of the squared outputs, independently of the package."""
    import tensorflow as tf

    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = sum(ops.mean(ops.square(ops.cast(part, "float32") - 1)) for part in keras.tree.flatten(model(x)))
        for variable, gradient in zip(
            model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
        ):
            if gradient is not None:
                variable.assign_sub(rate * tf.convert_to_tensor(gradient))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in APPLICATIONS)) for name in CASES]
)
def test_outputs_are_equal_and_blocks_train(name, tmp_path):
    keras.utils.set_random_seed(0)
    model, after, block = CASES[name]()
    x, old = inputs_for(model), weights_by_path(model)
    trainable = [weight.path for weight in model.trainable_weights]
    before = arrays(model(x))

    deeper = deepen(model, after, block)

    assert type(deeper) is type(model)
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays(deeper(x)), strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays(model(x)), strict=True))
    new = weights_by_path(deeper)
    assert set(old) < set(new)
    assert all(np.array_equal(old[path], new[path]) for path in old)
    assert [weight.path for weight in deeper.trainable_weights if "_deeper" not in weight.path] == trainable
    blocks = inserted(deeper)
    assert len(blocks) == (1 if isinstance(after, str) else len(after))
    if name == "transformer":
        check_transformer(deeper, x, tmp_path / "deeper.keras")
    if name in REMOVED:
        check_removal(model, deeper, x)
    if name in APPLICATIONS:
        # Two steps are too few for their small gradients, which `deepen` has checked.
        return
    start = [arrays(block.trainable_weights) for block in blocks]
    gradient_steps(deeper, x)
    for inserted_block, values in zip(blocks, start, strict=True):
        # The zero kernels change in the first step, all other weights of a block in the second.
        for weight, value in zip(inserted_block.trainable_weights, values, strict=True):
            if "bias" not in weight.path:
                assert not np.array_equal(ops.convert_to_numpy(weight), value), weight.path
    # The original model does not change.
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays(model(x)), strict=True))


def check_transformer(deeper, x, path):
    """Check that LLaMA Pro's kernels are zero, and that the model is saved and loaded."""
    for block in inserted(deeper):
        kernels = {path.partition("/")[2]: value for path, value in weights_by_path(block).items() if value.ndim > 1}
        zero = {path for path, value in kernels.items() if "bias" not in path and not value.any()}
        assert zero == {"self_attention_layer/attention_output/kernel", "feedforward_output_dense/kernel"}
    deeper.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(np.asarray(loaded(x)), np.asarray(deeper(x)))
    assert [layer.name for layer in loaded.layers] == [layer.name for layer in deeper.layers]


def check_removal(model, deeper, x):
    """Check that the removal of the inserted blocks is the inverse of their insertion."""
    result = remove_identities(deeper, 0.0, (x,))
    assert len(result.removed) == len(inserted(deeper))
    assert all("_deeper1" in path for path in result.removed)
    assert [(w.path, w.shape) for w in result.model.weights] == [(w.path, w.shape) for w in model.weights]
    for before, now in zip(arrays(model(x)), arrays(result.model(x)), strict=True):
        np.testing.assert_array_equal(before, now)


def test_positions_of_blocks():
    deeper = deepen(sequential()[0], "hidden", count=2)
    assert [layer.name for layer in deeper.layers][:3] == ["hidden", "hidden_deeper1", "hidden_deeper2"]
    names = [layer.name.removeprefix("hidden") for layer in deepen(deeper, ["hidden", "hidden_deeper2"]).layers]
    assert names[:5] == ["", "_deeper3", "_deeper1", "_deeper2", "_deeper2_deeper1"]


def test_default_blocks_follow_the_shape():
    model, after, _ = CASES["several"]()
    deeper = deepen(model, after)
    conv, dense = deeper.get_layer("conv_deeper1"), deeper.get_layer("joined_deeper1")
    assert isinstance(conv, ResidualConv2D)
    assert conv.filters == 2
    assert isinstance(dense, ResidualDense)
    assert dense.units == 6
    # He et al. (2015): variance 2 / fan_in before the kernel of zeros.
    wide = keras.Sequential([keras.Input((400,)), layers.Dense(400, name="wide")])
    block = deepen(wide, "wide").layers[1]
    np.testing.assert_allclose(np.std(block.U), np.sqrt(2 / 400), rtol=0.02)
    assert not np.any(block.V)


def test_block_without_a_differentiable_path_raises():
    inputs = keras.Input((4,))
    x = layers.Dense(4, name="dense")(inputs)
    model = keras.Model(inputs, layers.Dense(2)(ops.stop_gradient(x)))
    with pytest.raises(ValueError, match="'dense_deeper1' has no gradient from the model's outputs"):
        deepen(model, "dense")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"after": "hiden"}, "no layer 'hiden'. Did you mean hidden"),
        ({"count": 0}, "`count` must be a positive integer"),
        ({"tolerance": -1}, "`tolerance` must be 0 or more"),
        ({"optimizer": "adam"}, "`optimizer` must be a keras optimizer"),
        ({"block": TwoLayerBlock(first="zeros", second="zeros")}, "has no gradient from the model's outputs"),
        # The case of LLaMA Pro: the gain of the normalization before the kernels.
        ({"block": TwoLayerBlock()}, "branches of 'hidden_deeper1' .TwoLayerBlock. are unknown.*last='attribute'"),
        ({"block": TwoLayerBlock(), "last": "third"}, "`last` must name one layer with weights, or one variable"),
        ({"block": TwoLayerBlock(), "last": "first_of"}, "`last` must name one layer with weights, or one variable"),
        ({"block": layers.Dense(6)}, "branches of 'hidden_deeper1' .Dense. are unknown"),
        ({"block": layers.Dense(6), "last": "kernel"}, "not the identity if the last weights of its branches are zero"),
        ({"block": layers.Dense(7)}, r"of its input's shape \(None, 6\). Received: shape \(None, 7\)"),
        ({"block": layers.Dropout(0.0)}, "has no trainable weights"),
        ({"block": ResidualConv2D(6)}, "cannot be called on the output of 'hidden', of shape"),
        ({"block": lambda shape: 3}, "a function of a shape that returns one, or None. Received: 3"),
    ],
)
def test_arguments_that_do_not_fit_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        deepen(sequential()[0], **{"after": "hidden"} | arguments)


@pytest.mark.parametrize(
    ("last", "after"),
    [
        ([layers.Dense(3, "softmax", name="last")], "last"),
        (
            [layers.Dense(3), layers.Activation("sigmoid"), layers.Dropout(0.1), layers.Reshape((1, 3), name="last")],
            "last",
        ),
        ([keras.Sequential([layers.Dense(3, layers.Softmax(), name="last")], name="head")], "head"),
        ([layers.Dense(3, "tanh", name="last")], ["hidden", "last"]),
    ],
)
def test_outputs_with_a_range_raise(last, after):
    """A block after the last layer would return values that are no probabilities."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "sigmoid", name="hidden"), *last])
    before = last[0].name if len(last) > 1 else "hidden"  # the layer that returns logits, or the one before the last
    with pytest.raises(ValueError, match=f"in the range of .* Insert blocks after '{before}'"):
        deepen(model, after)
    deepen(model, "hidden")


def test_models_that_cannot_be_copied_raise():
    class Subclassed(keras.Model):
        def call(self, inputs):
            return inputs

    class Fixed(keras.Model):
        def __init__(self, width):
            inputs = keras.Input((width,))
            super().__init__(inputs, layers.Dense(2, name="dense")(inputs))

    class Scaled(layers.Layer):
        factor = 1.0

        def call(self, inputs):
            return self.factor * inputs

    class Tied(layers.Layer):
        def __init__(self, source=None, **kwargs):
            super().__init__(**kwargs)
            self.source = source

        def build(self, input_shape):
            self.kernel = self.add_weight(shape=(3, 3)) if self.source is None else self.source.kernel

        def call(self, inputs):
            return ops.matmul(inputs, self.kernel)

        def get_config(self):
            return {**super().get_config(), "source": None}

    dense = layers.Dense(3, use_bias=False, name="dense")
    scaled = Scaled(name="scaled")
    incomplete = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="dense"), scaled])
    scaled.factor = 2.0
    inputs = keras.Input((6, 4))
    states = layers.LSTM(3, return_state=True, name="dense")(inputs)
    quantized = keras.Sequential([keras.Input((8,)), layers.Dense(8, name="dense"), layers.Dense(2)])
    quantized.layers[0].quantize("int8")
    for model, message in (
        (quantized, "must not be quantized. Received: layer 'dense' in int8. Change the depth"),
        (Subclassed(), "functional or Sequential model"),
        (keras.Sequential([layers.Dense(2, name="dense")]), "must be built"),
        (Fixed(3), "Pass keras.Model"),
        (incomplete, "check that every `get_config` is complete"),
        (keras.Model(inputs, states), "'dense' must have a single output"),
        (keras.Sequential([keras.Input((3,)), dense, Tied(dense)]), "dense/kernel belongs to two layers"),
    ):
        with pytest.raises(ValueError, match=message):
            deepen(model, "dense")


def test_ambiguous_names_in_nested_models():
    def tower(name):
        return keras.Sequential([keras.Input((3,)), layers.Dense(3, name="a")], name=name)

    model = keras.Sequential([keras.Input((3,)), tower("left"), tower("right")])
    with pytest.raises(ValueError, match="several layers 'a'. Pass one of left/a, right/a"):
        deepen(model, "a")
    assert [layer.name for layer in deepen(model, "right/a").get_layer("right").layers] == ["a", "a_deeper1"]


def test_block_that_drops_the_mask_raises():
    model, after, _ = CASES["masked_recurrent"]()
    with pytest.warns(UserWarning, match="mask"), pytest.raises(ValueError, match="`supports_masking = True`"):
        deepen(model, after, TwoLayerBlock())


def test_small_initial_weights_within_the_tolerance():
    keras.utils.set_random_seed(0)
    model, after, _ = CASES["identity_network"]()
    x = inputs_for(model)
    before = np.asarray(model(x))
    deeper = deepen(model, after, tolerance=0.1)
    block = deeper.get_layer(f"{after}_deeper1")
    # 1/(k^2 c) with k = 3 and c = 8.
    np.testing.assert_allclose(np.std(block.conv2.kernel), 1 / 72, rtol=0.15)
    difference = np.abs(np.asarray(deeper(x)) - before).max() / np.abs(before).max()
    assert 0 < difference < 0.1
    with pytest.raises(ValueError, match="more than tolerance=0.001"):
        deepen(model, after, ResidualConv2D(8, kernel_initializer="he_normal"), tolerance=1e-3)


def test_blocks_from_functions_and_layers_with_weights():
    model, after, _ = CASES["several"]()
    shapes = []

    def make(shape):
        shapes.append(shape)
        return ResidualDense(3) if len(shape) == 2 else ResidualConv2D(shape[-1], 1)

    deepen(model, after, make)
    assert shapes == [(None, 3, 3, 2), (None, 6), (None, 3)]
    for reverse in (False, True):
        trained = TwoLayerBlock(reverse=reverse)
        trained.build((None, 6))
        trained.first.assign(np.eye(6))
        block = deepen(sequential()[0], "hidden", trained, last="second").get_layer("hidden_deeper1")
        np.testing.assert_array_equal(block.first, np.eye(6))
        assert [bool(np.any(weight)) for weight in (block.gain, block.second, trained.second)] == [True, False, True]


def test_blocks_have_the_dtype_of_the_model():
    policy = "mixed_bfloat16"
    keras.config.set_dtype_policy(policy)
    model, after, _ = CASES["identity_network"]()
    x = inputs_for(model)
    deeper = deepen(model, after)
    assert deeper.get_layer(f"{after}_deeper1").dtype_policy.name == policy
    np.testing.assert_array_equal(np.asarray(model(x)), np.asarray(deeper(x)))


def test_muon_with_a_zero_kernel_raises():
    model, after, _ = CASES["convolutional"]()
    model.compile(Muon(0.1), "mse")
    with pytest.raises(ValueError, match="Muon preserves the norm of each kernel"):
        deepen(model, after, optimizer=model.optimizer)
    gated = deepen(
        model, after, ResidualConv2D(4, branch_scale=0.0, kernel_initializer="he_normal"), optimizer=model.optimizer
    )
    assert isinstance(gated.optimizer, Muon)
