"""Models of every structure that `deepen` supports, and custom blocks."""

import keras
import numpy as np
from keras import layers, ops
from keras_hub.layers import TransformerEncoder


def encoder(**options):
    """Return x + attention(norm x), then the same with a feed-forward network."""
    return TransformerEncoder(16, 2, activation="gelu", normalize_first=True, **options)


@keras.saving.register_keras_serializable(package="tests")
class TwoLayerBlock(layers.Layer):
    """x + second(relu(first(gain * x))), with a given order and given initializers of its weights."""

    def __init__(self, first="he_normal", second="he_normal", gain="ones", reverse=False, **kwargs):
        super().__init__(**kwargs)
        self.starts, self.reverse = {"gain": gain, "first": first, "second": second}, reverse

    def build(self, input_shape):
        dim = input_shape[-1]
        for name in reversed(self.starts) if self.reverse else self.starts:
            shape = (dim,) if name == "gain" else (dim, dim)
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer=self.starts[name]))

    def call(self, inputs):
        return inputs + ops.matmul(ops.relu(ops.matmul(self.gain * inputs, self.first)), self.second)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **self.starts, "reverse": self.reverse}


def sequential():
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(6, "relu", name="hidden"), layers.Dropout(0.5), layers.Dense(3)]
    )
    return model, "hidden", None


def convolutional():
    """Return a residual network as a graph, with batch normalization whose averages have changed."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False, name="stem")(inputs)
    branch = layers.ReLU()(layers.BatchNormalization(name="norm")(x))
    branch = layers.Conv2D(4, 3, padding="same", name="conv")(branch)
    x = layers.Add(name="sum")([x, branch])
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    model.get_layer("norm").moving_mean.assign([0.1, -0.2, 0.3, 0.4])
    return model, ["stem", "sum"], None


def transformer():
    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(11, 8, mask_zero=True, name="embedding")(tokens)
    x = layers.LayerNormalization(name="last")(encoder(name="block2")(encoder(name="block1")(x)))
    return keras.Model(tokens, layers.Dense(11)(x)), ["block1", "block2"], encoder()


def masked_recurrent():
    """Return a model with a block between layers that pass a mask on."""
    inputs = keras.Input((6, 4))
    x = layers.LSTM(5, return_sequences=True, name="first")(layers.Masking()(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.GRU(3)(x))), "first", None


def nested():
    inner = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, "tanh", name="a"), layers.Dense(4, name="b")], name="inner"
    )
    middle_in = keras.Input((4,))
    middle = keras.Model(middle_in, layers.Dense(4, name="c")(inner(middle_in)), name="middle")
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(2, name="a")(middle(inputs))), ["middle/inner/a", "middle", "c"], None


def shared():
    """Return a model with two inputs of one layer, which is also part of a nested model."""
    tower = keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu", name="features")], name="tower")
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    distance = layers.Subtract()([tower(left), tower(right)])
    direct = tower.get_layer("features")(left)
    return keras.Model([left, right], layers.Dense(1)(ops.abs(distance) + direct)), "features", None


def several():
    """Return a model with dictionaries of inputs and outputs, one of them the layer before a block."""
    inputs = {"image": keras.Input((8, 8, 1), name="image"), "age": keras.Input((1,), name="age")}
    x = layers.Flatten()(layers.Conv2D(2, 3, strides=2, name="conv")(inputs["image"]))
    x = layers.Dense(6, "relu", name="joined")(layers.Concatenate()([x, inputs["age"]]))
    outputs = {"label": layers.Dense(3, name="label")(x), "weight": layers.Dense(1, name="weight")(x)}
    return keras.Model(inputs, outputs), ["conv", "joined", "label"], None


def raw_operations():
    inputs = keras.Input((5,))
    x = layers.Dense(5, name="dense")(inputs)
    x = ops.concatenate([ops.relu(x) * 2.0, layers.Lambda(lambda t: ops.abs(t[:, :2]), output_shape=(2,))(x)], axis=-1)
    return keras.Model(inputs, layers.Dense(2)(x)), "dense", None


def frozen_base():
    """Return a model for transfer learning: a frozen base that is always called for inference."""
    base_in = keras.Input((6, 6, 3))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, name="conv")(base_in))
    base = keras.Model(base_in, layers.GlobalMaxPooling2D()(x), name="base")
    base.trainable = False
    inputs = keras.Input((6, 6, 3))
    return keras.Model(inputs, layers.Dense(2)(base(inputs, training=False))), "base/conv", None


def identity_network():
    """Return the network of this package with large branches."""
    from idmatters_tf.models.cifar import identity_resnet

    model = identity_resnet((16, 16, 3), blocks=1, widths=(4, 8), stem=4)
    for variable in model.trainable_variables:
        variable.assign(0.2 * np.random.default_rng(0).normal(size=variable.shape))
    return model, "stage2_block1", None


def application(name, after, **options):
    """Return a function that builds a small network of `keras.applications`."""

    def build():
        options_of_all = {"weights": None, "classes": 3, "input_shape": (32, 32, 3), "classifier_activation": None}
        return getattr(keras.applications, name)(**options_of_all, **options), after, None

    return build


APPLICATIONS = {
    "MobileNetV2": application("MobileNetV2", "block_3_project_BN", alpha=0.35),
    "MobileNetV3Small": application("MobileNetV3Small", "expanded_conv_3_project_bn", minimalistic=True),
    "EfficientNetV2B0": application("EfficientNetV2B0", "block2a_project_bn", include_preprocessing=False),
    "DenseNet121": application("DenseNet121", "conv2_block3_concat"),
    "ResNet50V2": application("ResNet50V2", "conv2_block1_out"),
    "ConvNeXtTiny": application("ConvNeXtTiny", "convnext_tiny_stage_0_block_0_identity"),
}
CASES = {
    function.__name__: function
    for function in (
        sequential,
        convolutional,
        transformer,
        masked_recurrent,
        nested,
        shared,
        several,
        raw_operations,
        frozen_base,
        identity_network,
    )
} | APPLICATIONS


def inputs_for(model, examples=3, seed=7):
    """Return inputs in the structure of the model, different from those that `deepen` checks."""
    rng = np.random.default_rng(seed)

    def draw(tensor):
        shape = [examples, *(9 if size is None else size for size in tensor.shape[1:])]
        if "float" in tensor.dtype:
            values = rng.normal(size=shape).astype("float32")
            if len(shape) == 3:
                values[1, 2:] = 0
            return values
        return rng.integers(0, 11, shape).astype(tensor.dtype)

    return keras.tree.map_structure(draw, model.inputs[0] if isinstance(model, keras.Sequential) else model.input)
