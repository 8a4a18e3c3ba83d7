"""Muon on whole models: layers found behind the variables, and models of KerasHub."""

from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
from keras import layers

from idmatters_tf.optimizers import Muon
from tests.support import hub_models


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


def test_layers_are_found_in_models_of_every_kind(tmp_path):
    inputs = keras.Input((4,))
    shared, first, second = (layers.Dense(4, name=name) for name in ("shared", "first", "second"))
    one = keras.Model(inputs, first(layers.Dense(4, name="own")(shared(inputs))))
    other = keras.Model(inputs, second(shared(inputs)))
    both = keras.Model(inputs, [first.output, second.output])
    trunk = keras.Model(inputs, first.input)
    probe = keras.Model(inputs, [layer.output for layer in one.layers[1:]])
    subclassed = Subclassed()
    subclassed(np.zeros((1, 4)))
    one.compile("sgd", "mse")
    one.save(tmp_path / "one.keras")
    loaded = keras.saving.load_model(tmp_path / "one.keras")

    def found(variables, model=None):
        """Return the names of the layers without `compile`, as in a training loop."""
        optimizer = Muon(norm="free")
        optimizer.build(variables) if model is None else optimizer.build_for(model)
        return [variables[index].path.split("/")[-2] for index in sorted(optimizer._kernels)]

    assert found(other.trainable_variables) == found(trunk.trainable_variables) == ["shared"]
    for model in (both, keras.models.clone_model(one), loaded):
        assert found(model.trainable_variables) == found(model.trainable_variables, model) == ["shared", "own"]
    with pytest.raises(ValueError, match=r"several models .* different last layers: .*build_for\(model\)"):
        found(one.trainable_variables)
    assert found(one.trainable_variables, one) == ["shared", "own"]
    assert found(one.trainable_variables, probe) == []
    assert found(subclassed.trainable_variables) == ["block0", "block1", "hidden"]
    subclassed.head.layers[-1].trainable = False
    assert found(subclassed.trainable_variables) == ["block0", "block1", "hidden"]
    # A generator whose outputs are the inputs of a frozen discriminator.
    adversarial = keras.Sequential([subclassed, layers.Dense(2, trainable=False), layers.Dense(1, trainable=False)])
    subclassed.head.layers[-1].trainable = True
    adversarial(np.zeros((1, 4)))
    assert found(subclassed.trainable_variables) == ["block0", "block1", "hidden"]
    # An optimizer of a part of the variables, whose layers are also in larger models.
    muon, sgd = Muon(norm="free"), keras.optimizers.SGD()
    trunk.compile(keras.optimizers.MultiOptimizer(lambda variable: muon if "kernel" in variable.path else sgd))
    trunk.optimizer.build(trunk.trainable_variables)
    assert [muon._trainable_variables[index].path for index in muon._kernels] == ["shared/kernel"]


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
