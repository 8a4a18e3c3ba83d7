"""The table of layers, compared with probes: outputs at scaled weights or inputs, in training and in inference."""

import importlib
import re

import keras
import numpy as np
import pytest
from keras import layers, ops

from idmatters_tf._keras_internals import hub
from idmatters_tf.branches import last_weights as _last_weights
from idmatters_tf.branches.search import find_branches
from idmatters_tf.layers import (
    BasicBlock2D,
    LinearResidual,
    ResidualConv2D,
    ResidualDense,
    ScaledConv2D,
    ScaledResidualConv2D,
    ShortcutUnit,
)

FACTOR = 0.25
SHAPES = {1: (2, 8, 4), 2: (2, 8, 8, 4), 3: (2, 4, 4, 4, 4)}


def values(rank=1):
    return np.random.default_rng(0).normal(size=SHAPES[rank]).astype("float32")


def randomize(layer):
    rng = np.random.default_rng(1)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(0.3, 0.5, variable.shape))


def run(layer, inputs, training):
    """Return the first output of a layer, with random numbers that depend on nothing but their seed."""
    keras.utils.set_random_seed(0)
    for part in layer._flatten_layers():
        if getattr(part, "seed_generator", None) is not None:
            part.seed_generator.state.assign([0, 1])
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    options = {"training": training} if layer._call_has_training_arg else {}
    return np.array(keras.tree.flatten(layer(*arguments, **options))[0])


def is_proportional(layer, inputs, weights):
    """Return True if the outputs of a layer are proportional to weights, in training and in inference."""
    found = []
    for training in (True, False):
        start = [np.array(variable) for variable in weights]
        before = run(layer, inputs, training)
        for variable, value in zip(weights, start, strict=True):
            variable.assign(FACTOR * value)
        after = run(layer, inputs, training)
        for variable, value in zip(weights, start, strict=True):
            variable.assign(value)
        found.append(np.abs(before).max() > 0 and np.allclose(after, FACTOR * before, rtol=1e-4, atol=1e-5))
    return all(found)


WITH_WEIGHTS = {
    "Dense": (layers.Dense(3, "relu"), 1),
    "EinsumDense": (layers.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"), 1),
    **{f"Conv{n}D": (getattr(layers, f"Conv{n}D")(3, 3, activation="leaky_relu"), n) for n in (1, 2, 3)},
    **{f"Conv{n}DTranspose": (getattr(layers, f"Conv{n}DTranspose")(3, 3), n) for n in (1, 2, 3)},
    **{f"DepthwiseConv{n}D": (getattr(layers, f"DepthwiseConv{n}D")(3), n) for n in (1, 2)},
    **{f"SeparableConv{n}D": (getattr(layers, f"SeparableConv{n}D")(3, 3), n) for n in (1, 2)},
    "BatchNormalization": (layers.BatchNormalization(), 2),
    "LayerNormalization": (layers.LayerNormalization(), 1),
    "LayerNormalization(center=False)": (layers.LayerNormalization(center=False), 1),
    "GroupNormalization": (layers.GroupNormalization(2), 2),
    "RMSNormalization": (layers.RMSNormalization(), 1),
    "ScaledConv2D": (ScaledConv2D(3, 3), 2),
    "MultiHeadAttention": (layers.MultiHeadAttention(2, 3), 1),
    "GroupQueryAttention": (layers.GroupQueryAttention(4, 2, 1), 1),
}
UNKNOWN_WEIGHTS = {
    "Dense(tanh)": (layers.Dense(3, "tanh"), 1),
    "BatchNormalization(scale=False)": (layers.BatchNormalization(scale=False), 2),
    "LayerNormalization(scale=False)": (layers.LayerNormalization(scale=False), 1),
    "GRU": (layers.GRU(3), 1),
    "SpectralNormalization": (layers.SpectralNormalization(layers.Dense(3)), 1),
}


@pytest.mark.parametrize("name", [*WITH_WEIGHTS, *UNKNOWN_WEIGHTS])
def test_layers_of_the_table_are_proportional_to_their_last_weights(name):
    layer, rank = (WITH_WEIGHTS | UNKNOWN_WEIGHTS)[name]
    inputs = (values(rank),) * 2 if "Attention" in name else values(rank)
    run(layer, inputs, False)
    randomize(layer)
    weights = _last_weights.last_weights(layer)
    assert bool(weights) == (name in WITH_WEIGHTS)
    assert is_proportional(layer, inputs, weights or layer.trainable_variables) == bool(weights)


def test_every_layer_with_weights_has_a_case():
    known = {*_last_weights._DENSE, *_last_weights._CONVOLUTIONS, *_last_weights._NORMALIZATIONS}
    assert known <= {type(layer) for layer, _ in WITH_WEIGHTS.values()}


class DenseOfTheUser(layers.Dense):
    """A layer that derives from one of the table."""

    def call(self, inputs):
        return super().call(inputs) + 1


def test_derived_and_adapted_layers_are_not_in_the_table():
    layer = DenseOfTheUser(3)
    layer.build((2, 4))
    assert not _last_weights.last_weights(layer)
    layer = layers.Dense(3)
    layer.build((2, 4))
    assert _last_weights.last_weights(layer)
    layer.enable_lora(1)
    assert not _last_weights.last_weights(layer)


# Layers with arguments, and the rank of the images; sums and joins have two inputs.
OF_SEVERAL = (layers.Add, layers.Subtract, layers.Average, layers.Concatenate, layers.Maximum, layers.Minimum)
PASSING = {
    **dict.fromkeys((*OF_SEVERAL, layers.Identity, layers.LeakyReLU, layers.PReLU), ((), 1)),
    **dict.fromkeys((layers.Dropout, layers.GaussianDropout), ((0.5,), 1)),
    layers.Flatten: ((), 2),
    layers.Permute: (((2, 1),), 1),
    layers.Reshape: (((4, 8),), 1),
    layers.RepeatVector: ((3,), 0),
    **{getattr(layers, f"SpatialDropout{n}D"): ((0.5,), n) for n in (1, 2, 3)},
    **{
        getattr(layers, f"{kind}{n}D"): ((), n) for n in (1, 2, 3) for kind in ("Cropping", "UpSampling", "ZeroPadding")
    },
    **{getattr(layers, f"{way}Pooling{n}D"): ((2,), n) for n in (1, 2, 3) for way in ("Average", "Max")},
    **{getattr(layers, f"Global{way}Pooling{n}D"): ((), n) for n in (1, 2, 3) for way in ("Average", "Max")},
}
CONDITIONAL = [
    (lambda: layers.Activation("relu"), True),
    (lambda: layers.Activation("leaky_relu"), True),
    (lambda: layers.Activation("tanh"), False),
    (lambda: layers.Activation("gelu"), False),
    (lambda: layers.ReLU(negative_slope=0.1), True),
    (lambda: layers.ReLU(1.0), False),
    (lambda: layers.ReLU(threshold=0.5), False),
    (lambda: layers.Rescaling(0.5), True),
    (lambda: layers.Rescaling(0.5, 1.0), False),
    (layers.ELU, False),
    (layers.Softmax, False),
    (lambda: layers.GaussianNoise(0.5), False),
    (lambda: layers.AlphaDropout(0.5), False),
    (layers.UnitNormalization, False),
    (lambda: layers.BatchNormalization(scale=False), False),
]


def is_homogeneous(layer, inputs):
    """Return True if f(c x) = c f(x) in training and in inference."""
    scaled = keras.tree.map_structure(lambda x: FACTOR * x, inputs)
    return all(
        np.allclose(run(layer, scaled, training), FACTOR * run(layer, inputs, training), rtol=1e-5, atol=1e-6)
        for training in (True, False)
    )


def step_of(layer, inputs):
    tensors = keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape), inputs)
    outputs = layer(tensors)
    return _last_weights.Step(layer.name, layer, tuple(keras.tree.flatten(tensors)), (outputs,))


def test_layers_that_pass_a_factor_on_do_so():
    assert set(PASSING) == set(_last_weights._PASSING)
    for kind, (arguments, rank) in PASSING.items():
        layer = kind(*arguments, **({"seed": 0} if "Dropout" in kind.__name__ else {}))
        inputs = values(rank) if rank else values()[:, 0]
        inputs = [inputs, inputs[::-1]] if kind in OF_SEVERAL else inputs
        assert _last_weights.passes_factor(step_of(layer, inputs)), kind
        assert is_homogeneous(layer, inputs), kind


@pytest.mark.parametrize(("make", "passes"), CONDITIONAL)
def test_conditions_on_layers_that_pass_a_factor_on(make, passes):
    layer = make()
    assert _last_weights.passes_factor(step_of(layer, values())) == passes
    assert is_homogeneous(layer, values()) == passes


# Operations of two tensors, and further arguments of the others.
OF_TWO = ("Add", "Subtract", "Maximum", "Minimum")
ARGUMENTS = {
    **dict.fromkeys(("AveragePool", "MaxPool"), ((2,),)),
    **dict.fromkeys(("Amax", "ExpandDims", "Max", "Min"), (1,)),
    **dict.fromkeys(("Moveaxis", "Swapaxes"), (1, 2)),
    "BroadcastTo": ((3, 2, 8, 4),),
    "Cast": ("float16",),
    "Repeat": (2, 1),
    "Reshape": ((2, -1),),
    "Roll": (1, 1),
    "Slice": ((0, 0, 0), (1, 2, 2)),
    "Split": (2, 1),
    "Squeeze": (1,),
    "Tile": ((1, 2, 1),),
    "Unstack": (None, 1),
}


def operate(name, x, y):
    """Return the first output of an operation of Keras."""
    if name == "GetItem":
        return x[:, :2]
    function = getattr(ops, re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())
    first = {"Concatenate": [x, y], "Stack": [x, y], "Squeeze": x[:, :1]}.get(name, x)
    return keras.tree.flatten(function(first, *((y,) if name in OF_TWO else ARGUMENTS.get(name, ()))))[0]


@pytest.mark.parametrize("name", _last_weights._PASSING_OPERATIONS)
def test_operations_that_pass_a_factor_on_do_so(name):
    x, y = (ops.convert_to_tensor(part) for part in (values(), values()[::-1].copy()))
    result = operate(name, *(keras.KerasTensor(part.shape) for part in (x, y)))
    assert type(result._keras_history.operation).__name__ == name
    before, after = (np.array(operate(name, factor * x, factor * y)) for factor in (1, FACTOR))
    tolerance = 1e-3 if name == "Cast" else 1e-6
    np.testing.assert_allclose(after, FACTOR * before, rtol=tolerance, atol=tolerance)


def check_blocks(model, layer, inputs, modes=(True, False)):
    """Compare the last weights of a layer with residual sums with probes, in training or in inference."""
    (found,) = find_branches(model)
    randomize(layer)
    start = {id(variable): np.array(variable) for variable in found.variables}

    def branch(factors, training):
        for group, factor in zip(found.last, factors, strict=True):
            for variable in group:
                variable.assign(factor * start[id(variable)])
        return run(layer, inputs, training)

    for training in modes:
        skip = branch([0.0] * len(found.last), training)
        for index in range(len(found.last)):
            terms = [
                branch([size * (number == index) for number in range(len(found.last))], training) - skip
                for size in (1.0, FACTOR)
            ]
            assert np.abs(terms[0]).max() > 1e-3
            np.testing.assert_allclose(terms[1], FACTOR * terms[0], rtol=1e-3, atol=1e-4)
    return found, skip


PACKAGE = {
    "ResidualConv2D": lambda: ResidualConv2D(4),
    "ResidualConv2D, bias": lambda: ResidualConv2D(6, use_bias=True),
    "ResidualConv2D, projection": lambda: ResidualConv2D(6, strides=2, shortcut="projection"),
    "ResidualConv2D, norm": lambda: ResidualConv2D(4, norm="batch"),
    "ResidualConv2D, norm first": lambda: ResidualConv2D(4, norm="batch", norm_first=True),
    "ResidualConv2D, factor": lambda: ResidualConv2D(4, branch_scale=0.0),
    "BasicBlock2D, branch": lambda: BasicBlock2D(4, preactivation="branch"),
    "BasicBlock2D, both": lambda: BasicBlock2D(6, 2, preactivation="both"),
    "ScaledResidualConv2D": lambda: ScaledResidualConv2D(4),
    "LinearResidual": LinearResidual,
    "ResidualDense": lambda: ResidualDense(5),
    "ShortcutUnit": lambda: ShortcutUnit(2, post="relu"),
}


@pytest.mark.parametrize("name", PACKAGE)
def test_last_weights_of_the_layers_of_this_package(name):
    layer = PACKAGE[name]()
    inputs = values(1 if isinstance(layer, (LinearResidual, ResidualDense, ShortcutUnit)) else 2)
    model = keras.Sequential([keras.Input(inputs.shape[1:]), layer])
    assert len(check_blocks(model, layer, inputs)[0].last) == 1


HUB = {
    "TransformerEncoder": ("layers.modeling.transformer_encoder", (8, 2), {"normalize_first": True}, 2),
    "TransformerDecoder": ("layers.modeling.transformer_decoder", (8, 2), {"normalize_first": True}, 2),
    "LlamaTransformerDecoder": ("models.llama.llama_decoder", (8, 2, 1), {}, 2),
    "MistralTransformerDecoder": ("models.mistral.mistral_transformer_decoder", (8, 2, 1), {}, 2),
    "QwenTransformerDecoder": ("models.qwen.qwen_decoder", (8, 2, 1), {}, 2),
    "Qwen3TransformerDecoder": ("models.qwen3.qwen3_decoder", (8, 2, 1, 4), {}, 2),
    "Phi3Decoder": ("models.phi3.phi3_decoder", (4, 8, 2, 1), {}, 2),
    "GemmaDecoderBlock": ("models.gemma.gemma_decoder_block", (4, 8, 2, 2, 1), {}, 2),
    "Gemma3DecoderBlock": ("models.gemma3.gemma3_decoder_block", (4, 8, 2, 2, 1), {}, 2),
    "BloomDecoder": ("models.bloom.bloom_decoder", (2, 8), {}, 2),
    "SmolLM3DecoderLayer": (
        "models.smollm3.smollm3_layers",
        (4, 2, 1, False, 0.0, [True], ["attention"], 0, 8, False, 1e-6),
        {},
        2,
    ),
    "FalconTransformerDecoder": ("models.falcon.falcon_transformer_decoder", (2, 8), {}, 2),
    "GPTNeoXDecoder": ("models.gpt_neo_x.gpt_neo_x_decoder", (8, 2), {"rotary_percentage": 1.0}, 1),
    "T5TransformerLayer": ("models.t5.t5_transformer_layer", (False, 4, 8, 2, 0.0, "relu", 1e-6, 2), {}, 2),
    "ViTEncoderBlock": ("models.vit.vit_layers", (2, 4, 8), {}, 2),
    "CLIPEncoderLayer": ("models.clip.clip_layers", (4, 2, 8), {}, 2),
    "SigLIPEncoderLayer": ("models.siglip.siglip_layers", (4, 2, 8), {}, 2),
    "DINOV2Layer": ("models.dinov2.dinov2_layers", (4, 2, 8), {}, 2),
}


@pytest.mark.parametrize("name", HUB)
def test_last_weights_of_the_blocks_of_keras_hub(name):
    pytest.importorskip("keras_hub")
    module, arguments, options, sums = HUB[name]
    layer = getattr(importlib.import_module(f"keras_hub.src.{module}"), name)(*arguments, **options)
    x = keras.Input((8, 4))
    model = keras.Model(x, keras.tree.flatten(layer(x))[0])
    # Without dropout, training is inference.
    found, skip = check_blocks(model, layer, values(), (False,))
    assert len(found.last) == sums
    np.testing.assert_allclose(skip, values(), rtol=1e-5, atol=1e-6)


def test_every_block_of_keras_hub_has_a_case():
    assert set(HUB) == set(hub._HUB_BLOCKS)
