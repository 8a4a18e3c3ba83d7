"""Muon on whole models: matrices from layers or from ranks, and models of KerasHub."""

import json
from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
from keras import layers

from idmatters_tf.callbacks import ExactResume
from idmatters_tf.layers import LinearResidual, ResidualConv2D, ResidualDense, ShortcutUnit
from idmatters_tf.optimizers import KernelMatrices, Muon, layer_matrices
from idmatters_tf.surgery import deepen
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


def convolutional():
    images = keras.Input((8, 8, 3))
    x = layers.DepthwiseConv2D(3)(ResidualConv2D(4)(layers.Conv2D(4, 3, use_bias=False)(images)))
    x = ResidualDense(3)(ShortcutUnit(2)(LinearResidual()(layers.Flatten()(layers.BatchNormalization()(x)))))
    return keras.Model(images, layers.Dense(5)(x))


def single(*parts, size=(6, 8)):
    """Return a function that builds a model of layers and a last one."""
    return lambda: keras.Sequential([keras.Input(size), *parts, layers.Flatten(), layers.Dense(2)])


@pytest.mark.parametrize("build", [convolutional, Subclassed])
def test_ranks_give_the_matrices_of_dense_layers_and_convolutions(build):
    model = build()
    if build is Subclassed:
        model(np.zeros((1, 4)))
    by_rank, by_layer = Muon(norm="free"), Muon(norm="free").build_for(model)
    by_rank.build(model.trainable_variables)
    assert by_rank._kernels == by_layer._kernels
    assert len(by_rank._kernels) > 1


def test_ranks_alone_use_embeddings_and_all_gates_as_one_matrix():
    """The documented rule, which differs from that of the layers."""
    model = single(layers.Embedding(9, 4), layers.LSTM(4), size=(6,))()
    optimizer = Muon(norm="free")
    optimizer.build(model.trainable_variables)
    assert [matrices.size for matrices in optimizer._kernels.values()] == [(1, 9, 4), (1, 4, 16), (1, 4, 16)]
    assert [m.size for m in Muon(norm="free").build_for(model)._kernels.values()] == [(4, 4, 4), (4, 4, 4)]


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (single(layers.EinsumDense("abc,cde->abde", (6, 2, 3), bias_axes="e")), r"\(8, 2, 3\)"),
        (single(layers.Conv1D(4, 3)), r"\(3, 8, 4\)"),
        (multiheaded, r"\(8, 2, 4\)"),
    ],
)
def test_three_axes_without_a_layer_are_named(build, shape):
    model = build()
    optimizer = Muon(norm="free")
    with pytest.raises(ValueError, match=rf"'.*/kernel' of shape {shape}.*`optimizer.build_for\(model\)`"):
        optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"Muon needs the layers for `matrices`. Pass the model .*build_for\(model\)"):
        Muon(norm="free", matrices=lambda *_: None).build(model.trainable_variables)


def flat_heads(layer, variable):
    """Return one matrix of (all axes but the last) x (last axis)."""
    shape = tuple(variable.shape)
    return KernelMatrices(shape, tuple(range(len(shape) - 1)), (len(shape) - 1,)) if len(shape) > 2 else None


def chain():
    return keras.Sequential([keras.Input((6, 8)), layers.Conv1D(4, 3), layers.Flatten(), layers.Dense(3)])


@pytest.mark.parametrize("build", [multiheaded, chain])
def test_a_saved_model_keeps_the_matrices_of_its_layers(build, tmp_path):
    model: Any = build()
    optimizer = Muon(norm="free", other="adamw", matrices=flat_heads).build_for(model)
    model.compile(optimizer, "mse", jit_compile=False)
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer._kernels == optimizer._kernels
    assert loaded.optimizer.get_config() == optimizer.get_config()
    assert len(loaded.optimizer.variables) == len(optimizer.variables)
    rng = np.random.default_rng(3)
    data = rng.normal(size=(4, 6, 8)), rng.normal(size=(4, 3))
    for each in (model, loaded):
        each.fit(*data, shuffle=False, verbose=0)
    for one, other in zip(*(each.variables + each.optimizer.variables for each in (model, loaded)), strict=True):
        np.testing.assert_array_equal(one, other)
    # Those of another model are not its own.
    with pytest.raises(ValueError, match="has the matrices of other variables.*build_for"):
        Muon.from_config(optimizer.get_config()).build(build().trainable_variables[:-1])


def test_copies_keep_the_matrices_and_their_function():
    model: Any = keras.Sequential([keras.Input((4,)), *(layers.Dense(4, name=name) for name in ("a", "b", "c"))])
    optimizer = Muon(norm="free", matrices=lambda *given: layer_matrices(*given) if given[0].name == "b" else None)
    optimizer.build_for(model)
    assert names(optimizer) == ["b"]
    # By its configuration, which has no function, for the paths that it knows.
    copied = Muon.from_config(json.loads(json.dumps(optimizer.get_config())))
    assert names(copied.build_for(model)) == ["b"]
    # By its function, also for the new layer.
    deeper: Any = deepen(model, "b", optimizer=optimizer)
    assert len(deeper.trainable_variables) > len(model.trainable_variables)
    assert names(deeper.optimizer) == ["b"]


SIZES: dict[str, Any] = {"num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": 8}
EXPERTS: dict[str, Any] = {"vocabulary_size": 20, "num_experts": 3, "intermediate_dim": 6, **SIZES}
ATTENTION = dict.fromkeys(("query", "key", "value", "attention_output"), "8 x 8")


def experts(layer, variable):
    """Use banks of experts, (experts, inputs, outputs), and leave attention to AdamW."""
    if "attention" in layer.path:
        return None
    if len(variable.shape) == 3 and variable.shape[0] == 3:
        return KernelMatrices(tuple(variable.shape), (1,), (2,), (0,))
    return layer_matrices(layer, variable)


# Model, arguments of Muon, and the matrices of each kernel of a layer by the end of its path.
HUB = {
    "GPT-2": (hub_models.gpt2, {}, {**ATTENTION, "intermediate_dense": "8 x 16", "output_dense": "16 x 8"}),
    "Mixtral": (
        lambda: keras_hub.models.MixtralBackbone(**EXPERTS),
        {"matrices": experts},
        {
            "gate_dense": "8 x 3",
            "expert_feedforward_gate_dense": "3 of 8 x 6",
            "expert_feedforward_intermediate_dense": "3 of 8 x 6",
            "expert_feedforward_output_dense": "3 of 6 x 8",
        },
    ),
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


def test_a_run_resumes_in_the_same_process(tmp_path):
    """The names of layers count the models of a process."""
    resume = ExactResume(tmp_path)
    for epochs in (1, 2):
        model = single(layers.Dense(4), layers.Dense(4))()
        model.compile(Muon(0.1, norm="free").build_for(model), "mse")
        model.fit(np.ones((4, 6, 8)), np.ones((4, 2)), epochs=epochs, callbacks=[resume], verbose=0)
    assert resume.resumed_at == 1
