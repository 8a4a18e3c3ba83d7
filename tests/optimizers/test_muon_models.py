"""Muon on whole models: layers found behind the variables, KerasHub, saved models and exact resume."""

import keras
import numpy as np
import pytest
from keras import layers

from idmatters_tf.optimizers import Muon
from tests.callbacks.test_exact_resume import Case, Killed, assert_same, dense, run, values, with_loss


class Subclassed(keras.Model):
    """A model without a graph whose last layer is inside of another model."""

    def __init__(self):
        super().__init__(name="own")
        self.blocks = [layers.Dense(4, name=f"block{place}") for place in range(2)]
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

    def found(variables):
        """Return the names of the layers without `compile`, as in a training loop."""
        optimizer = Muon(norm="free")
        optimizer.build(variables)
        return [variables[place].path.split("/")[-2] for place in sorted(optimizer._kernels)]

    assert found(other.trainable_variables) == found(trunk.trainable_variables) == ["shared"]
    for model in (one, both, keras.models.clone_model(one), loaded):
        assert found(model.trainable_variables) == ["shared", "own"]
    assert len(probe.outputs) == 3
    assert found(subclassed.trainable_variables) == ["block0", "block1", "hidden"]
    subclassed.head.layers[-1].trainable = False
    assert found(subclassed.trainable_variables) == ["block0", "block1", "hidden"]


def attention(query, value, output):
    return {"/query": query, "/key": value, "/value": value, "/attention_output": output}


# Model of KerasHub, arguments of Muon, and the matrices of each kernel by the end of its layer's path.
HUB = {
    "GPT-2": (
        lambda hub: hub.GPT2CausalLM(hub.GPT2Backbone(20, 1, 2, 8, 12, max_sequence_length=6)),
        {},
        {**attention("8 x 8", "8 x 8", "8 x 8"), "intermediate_dense": "8 x 12", "output_dense": "12 x 8"},
    ),
    "Gemma": (
        lambda hub: hub.GemmaCausalLM(hub.GemmaBackbone(20, 1, 4, 2, 8, 12, 6)),
        {},
        {
            **attention("8 x 24", "8 x 12", "24 x 8"),
            "ffw_gating": "8 x 6",
            "ffw_gating_2": "8 x 6",
            "ffw_linear": "6 x 8",
        },
    ),
    "Llama": (
        lambda hub: hub.LlamaCausalLM(hub.LlamaBackbone(20, 1, 4, 8, 12, num_key_value_heads=2)),
        {"per_head": True, "exclude": ["feedforward_output_dense"]},
        {
            **attention("4 of 8 x 2", "2 of 8 x 2", "4 of 2 x 8"),
            "intermediate_dense": "8 x 12",
            "gate_dense": "8 x 12",
        },
    ),
    "BERT": (
        lambda hub: hub.BertTextClassifier(hub.BertBackbone(20, 1, 2, 8, 12, max_sequence_length=6), num_classes=3),
        {"exclude": ["self_attention_layer"]},
        {"intermediate_dense": "8 x 12", "output_dense": "12 x 8", "pooled_dense": "8 x 8"},
    ),
    "ViT": (
        lambda hub: hub.ViTImageClassifier(hub.ViTBackbone((8, 8, 3), 4, 1, 2, 8, 12), 3, preprocessor=None),
        {},
        {**attention("8 x 8", "8 x 8", "8 x 8"), "patch_embedding": "48 x 8", "dense_1": "8 x 12", "dense_2": "12 x 8"},
    ),
}


@pytest.mark.parametrize("name", HUB)
def test_matrices_of_models_of_kerashub(name):
    """The last layer, a classifier's logits or an embedding, counts as another variable."""
    hub = pytest.importorskip("keras_hub").models
    build, arguments, expected = HUB[name]
    model = build(hub)
    table = Muon(norm="free", other="adamw", **arguments).describe(model)
    found = {line.split()[0]: line.split("  ")[-1].strip() for line in table.splitlines()}
    assert list(found) == [variable.path for variable in model.trainable_variables]
    wanted = {
        variable.path: use
        for variable in model.trainable_variables
        for end, use in expected.items()
        if variable.path.endswith(f"{end}/kernel")
    }
    assert len(wanted) == len(expected)
    assert found == {path: wanted.get(path, "adamw") for path in found}


def test_a_fit_with_muon_resumes_exactly(tmp_path):
    def parts():
        """Return an attention projection and a dense layer with dropout."""
        projection = layers.EinsumDense("abc,cde->abde", (6, 2, 3))
        return [layers.Reshape((6, 6)), projection, layers.Flatten(), layers.Dropout(0.3), *dense()]

    def compiled():
        optimizer = Muon(0.1, norm="free", scale="rms", other="adamw", use_ema=True, gradient_accumulation_steps=2)
        return with_loss(optimizer, jit_compile=False)

    case = Case(parts, compiled, epochs=3)
    whole, _, history, _ = run(case, tmp_path / "whole")
    assert len(whole.optimizer._kernels) == 2
    with pytest.raises(Killed):
        run(case, tmp_path / "stopped", lambda *now: now == ("batch", 1, 6))
    resumed, _, again, resumed_at = run(case, tmp_path / "stopped")
    assert resumed_at == 12
    assert_same((values(whole), history), (values(resumed), again))
