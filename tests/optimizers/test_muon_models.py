"""Muon on whole models: matrices from layers or from paths, and models of KerasHub."""

from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
from keras import layers

from idmatters_tf.expressivity import ResidualDenseStack
from idmatters_tf.layers import LinearResidual, ResidualConv2D, ResidualDense, ShortcutUnit
from idmatters_tf.optimizers import Muon
from tests.support import hub_models
from tests.support.versions import needs_several_optimizers


class Subclassed(keras.Model):
    """A model without a graph whose last layer is inside of another model."""

    def __init__(self):
        super().__init__(name="own")
        self.blocks = [layers.Dense(4, name=f"block{index}") for index in range(2)]
        self.head = keras.Sequential([layers.Dense(4, name="hidden"), layers.Dense(2, name="logits")], name="head")
        self.norm = layers.LayerNormalization()

    def call(self, x):
        for block in self.blocks:
            x = self.norm(block(x))
        return self.head(x)


def names(optimizer):
    """Return the names of the layers whose kernels an optimizer orthogonalizes."""
    variables = optimizer._trainable_variables
    return [variables[index].path.split("/")[-2] for index in sorted(optimizer._kernels)]


def test_the_last_layers_of_models_of_every_kind():
    inputs = keras.Input((4,))
    shared, first, second = (layers.Dense(4, name=name) for name in ("shared", "first", "second"))
    one = keras.Model(inputs, first(layers.Dense(4, name="own")(shared(inputs))))
    other = keras.Model(inputs, second(shared(inputs)))
    both = keras.Model(inputs, [first.output, second.output])
    trunk = keras.Model(inputs, first.input)
    probe = keras.Model(inputs, [layer.output for layer in one.layers[1:]])
    subclassed = Subclassed()
    subclassed(np.zeros((1, 4)))

    def found(model):
        return names(Muon(norm="free").build_for(model))

    assert found(other) == found(trunk) == ["shared"]
    assert found(one) == found(both) == ["shared", "own"]
    assert found(probe) == []
    assert found(subclassed) == ["block0", "block1", "hidden"]
    subclassed.head.layers[-1].trainable = False
    assert found(subclassed) == ["block0", "block1", "hidden"]
    # A generator whose outputs are the inputs of a frozen discriminator.
    adversarial = keras.Sequential([subclassed, layers.Dense(2, trainable=False), layers.Dense(1, trainable=False)])
    subclassed.head.layers[-1].trainable = True
    adversarial(np.zeros((1, 4)))
    assert found(adversarial) == ["block0", "block1", "hidden", "logits"]


@needs_several_optimizers
def test_an_optimizer_of_some_variables():
    model = keras.Sequential([keras.Input((4,)), *(layers.Dense(4, name=name) for name in ("shared", "own", "last"))])
    muon, sgd = Muon(norm="free"), keras.optimizers.SGD()
    muon.build_for(model, [variable for variable in model.trainable_variables if "kernel" in variable.path])
    model.compile(keras.optimizers.MultiOptimizer(lambda variable: muon if "kernel" in variable.path else sgd))
    model.optimizer.build(model.trainable_variables)
    assert names(muon) == ["shared", "own"]


def multiheaded():
    x = keras.Input((6, 8))
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(layers.MultiHeadAttention(2, 4, name="mha")(x, x))))


def recurrent():
    cells = [layers.LSTM(4, return_sequences=True), layers.GRU(4), layers.Dense(1)]
    return keras.Sequential([keras.Input((6, 8)), *cells])


def convolutional():
    images = keras.Input((8, 8, 3))
    x = layers.SeparableConv2D(4, 3)(layers.Conv2D(4, 3, use_bias=False)(images))
    x = layers.BatchNormalization()(ResidualConv2D(4)(layers.DepthwiseConv2D(3)(x)))
    return keras.Model(images, layers.Dense(5)(layers.Flatten()(x)))


def dense():
    parts = [ResidualDense(3), ShortcutUnit(2), LinearResidual(), ResidualDenseStack(2, 3)]
    return keras.Sequential([keras.Input((4,)), *parts, layers.Dense(5)])


def single(*parts, size=(6, 8)):
    """Return a function that builds a model of layers and a last one."""
    return lambda: keras.Sequential([keras.Input(size), *parts, layers.Flatten(), layers.Dense(2)])


@pytest.mark.parametrize("build", [multiheaded, recurrent, convolutional, dense, Subclassed])
def test_paths_and_shapes_give_the_matrices_of_the_layers(build):
    model = build()
    if build is Subclassed:
        model(np.zeros((1, 4)))
    by_path, by_layer = Muon(norm="free"), Muon(norm="free").build_for(model)
    by_path.build(model.trainable_variables)
    assert by_path._kernels == by_layer._kernels
    assert len(by_path._kernels) > 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (single(layers.EinsumDense("abc,cde->abde", (6, 2, 3))), r"einsum_dense.*/kernel, of shape \(8, 2, 3\)"),
        (single(layers.Conv1D(4, 3, use_bias=False)), r"conv1d.*/kernel, of shape \(3, 8, 4\)"),
        (single(layers.Conv2DTranspose(3, 3), size=(5, 5, 3)), "conv2d_transpose.*/kernel"),
        (single(layers.Conv2DTranspose(4, 3, name="up"), size=(5, 5, 3)), "up/kernel"),
        (single(layers.DepthwiseConv2D(3, depth_multiplier=2, name="spatial"), size=(5, 5, 3)), "spatial/kernel"),
        (single(layers.Embedding(9, 4), layers.Dense(4), size=(6,)), "embeddings' may be the last layer"),
    ],
)
def test_ambiguous_paths_raise(build, message):
    model = build()
    with pytest.raises(ValueError, match=rf"{message}.*`optimizer.build_for\(model\)`"):
        Muon(norm="free").build(model.trainable_variables)
    exclude = [variable.path for variable in model.trainable_variables if len(variable.shape) > 2]
    if exclude:
        Muon(norm="free", exclude=exclude).build(model.trainable_variables)


def test_a_saved_model_keeps_the_matrices_of_its_layers(tmp_path):
    model = multiheaded()
    optimizer = Muon(norm="free", other="adamw", per_head=True).build_for(model)
    model.compile(optimizer, "mse")
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer._kernels == optimizer._kernels
    assert loaded.optimizer.get_config() == optimizer.get_config()
    assert len(loaded.optimizer.variables) == len(optimizer.variables)
    # Those of another model are not its own.
    with pytest.raises(ValueError, match="build_for"):
        Muon.from_config(optimizer.get_config()).build(multiheaded().trainable_variables[:-1])


SIZES: dict[str, Any] = {"num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": 8}
EXPERTS: dict[str, Any] = {"vocabulary_size": 20, "num_experts": 3, "intermediate_dim": 6, **SIZES}
ATTENTION = dict.fromkeys(("query", "key", "value", "attention_output"), "8 x 8")
# Model, arguments of Muon, and the matrices of each kernel of a layer by the end of its path.
HUB = {
    "GPT-2": (hub_models.gpt2, {}, {**ATTENTION, "intermediate_dense": "8 x 16", "output_dense": "16 x 8"}),
    "Gemma 3": (
        hub_models.gemma3,
        {"per_head": True, "exclude": ["ffw_linear"]},
        {
            "/query": "2 of 8 x 4",
            "/key": "8 x 4",
            "/value": "8 x 4",
            "attention_output": "2 of 4 x 8",
            "gating": "8 x 16",
            "gating_2": "8 x 16",
        },
    ),
    "BERT": (
        hub_models.bert,
        {"exclude": ["self_attention_layer"]},
        {"intermediate_dense": "8 x 16", "output_dense": "16 x 8", "pooled_dense": "8 x 8"},
    ),
    "Mixtral": (
        lambda: keras_hub.models.MixtralBackbone(**EXPERTS),
        {},
        {
            **ATTENTION,
            "/key": "8 x 4",
            "/value": "8 x 4",
            "gate_dense": "8 x 3",
            "expert_feedforward_gate_dense": "3 of 8 x 6",
            "expert_feedforward_intermediate_dense": "3 of 8 x 6",
            "expert_feedforward_output_dense": "3 of 6 x 8",
        },
    ),
    "Gemma 4": (
        lambda: keras_hub.models.Gemma4Backbone(
            *(20, 16, 1, 2, 1, 8, 16, 4),
            enable_moe_block=True,
            num_experts=3,
            expert_intermediate_dim=6,
            num_experts_per_token=2,
        ),
        {"exclude": ["attention", "ffw_linear"]},
        {
            "ffw_gating": "8 x 16",
            "ffw_gating_2": "8 x 16",
            "moe_router/proj": "8 x 3",
            "gate_proj": "3 of 8 x 6",
            "up_proj": "3 of 8 x 6",
            "down_proj": "3 of 6 x 8",
        },
    ),
    "GPT-OSS": (
        lambda: keras_hub.models.GptOssBackbone(**EXPERTS),
        {"exclude": ["self_attention"]},
        {"router_dense": "8 x 3", "gate_up_proj": "3 of 8 x 12", "down_proj": "3 of 6 x 8"},
    ),
    "GPT-NeoX": (
        lambda: keras_hub.models.GPTNeoXBackbone(20, 1, 2, 8, 16),
        {"split": {"query_key_value": 3}},
        {
            "query_key_value": "3 of 8 x 8",
            "attention_output": "8 x 8",
            "intermediate_dense": "8 x 16",
            "output_dense": "16 x 8",
        },
    ),
    "ViT": (hub_models.vit, {}, {**ATTENTION, "embedding": "48 x 8", "dense_1": "8 x 16", "dense_2": "16 x 8"}),
}


@pytest.mark.parametrize("name", HUB)
def test_matrices_of_models_of_kerashub(name):
    """The last layer, a classifier's logits or an embedding, counts as another variable."""
    build, arguments, expected = HUB[name]
    model = build()
    table = Muon(norm="free", other="adamw", **arguments).describe(model)
    found = {line.split()[0]: line.split("  ")[-1].strip() for line in table.splitlines()[1:]}
    wanted = dict.fromkeys((variable.path for variable in model.trainable_variables), "adamw")
    for end, matrices in expected.items():
        paths = [path for path in wanted if path.removesuffix("/kernel").endswith(end)]
        assert paths
        wanted |= dict.fromkeys(paths, matrices)
    assert list(found.items()) == list(wanted.items())
