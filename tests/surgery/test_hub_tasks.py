"""State of KerasHub tasks that `deepen` and `remove_identities` keep."""

from typing import Any

import keras
import numpy as np
import pytest
from keras_hub import models

from idmatters_tf.surgery import deepen
from tests.support.hub_models import gpt2, inputs_for

TEXTS = ["a b c a", "b c"]


@pytest.fixture
def trained():
    """Return a language model that has been trained for two steps."""
    keras.utils.set_random_seed(0)
    model = gpt2()
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        weighted_metrics=["sparse_categorical_accuracy"],
        sampler="greedy",
        run_eagerly=keras.backend.backend() == "tensorflow",
    )
    model.fit(TEXTS, batch_size=1, verbose=0)
    return model


def slots(model):
    return {variable.path.split("/", 1)[1]: np.array(variable) for variable in model.optimizer.variables}


def test_training_and_generation_continue(trained):
    tokens = trained.generate(["a b", "c"], max_length=8)
    deeper = deepen(trained, [0], optimizer=trained.optimizer)
    assert deeper.preprocessor is trained.preprocessor
    assert deeper.sampler is trained.sampler
    assert deeper.loss is trained.loss
    assert deeper.run_eagerly == trained.run_eagerly
    assert deeper.get_compile_config()["weighted_metrics"] == ["sparse_categorical_accuracy"]
    assert deeper.generate(["a b", "c"], max_length=8) == tokens

    new = slots(deeper)
    for path, value in slots(trained).items():
        np.testing.assert_array_equal(new[path.replace("layer_1", "layer_2")], value, err_msg=path)
    assert new["iteration"] == 2
    assert not any(np.any(value) for path, value in new.items() if "layer_1" in path)

    held = trained.get_weights()
    deeper.fit(TEXTS, batch_size=1, verbose=0)
    assert int(deeper.optimizer.iterations) == 4
    assert all(np.any(weight) for weight in deeper.backbone.transformer_layers[1].weights)
    for value, before in zip(trained.get_weights(), held, strict=True):
        np.testing.assert_array_equal(value, before)


def test_default_and_missing_compilation_are_kept():
    model = gpt2()
    model.compile("sgd", "mse", sampler="beam")
    deeper = deepen(model, 0, init="copy")
    assert isinstance(deeper.optimizer, keras.optimizers.SGD)
    assert (deeper.loss, deeper.sampler) == ("mse", model.sampler)
    uncompiled = models.GPT2CausalLM(model.backbone, compile=False)
    assert not deepen(uncompiled, 0, init="copy").compiled


def test_deepened_tasks_are_saved_and_loaded(tmp_path):
    model = gpt2()
    deeper = deepen(model, [0])
    deeper.save_to_preset(tmp_path / "preset")
    deeper.save(tmp_path / "deeper.keras")
    preset = models.CausalLM.from_preset(str(tmp_path / "preset"))
    loaded: list[Any] = [preset, keras.saving.load_model(tmp_path / "deeper.keras")]
    x = inputs_for(model)
    for again in loaded:
        assert type(again) is type(model)
        np.testing.assert_array_equal(again(x), model(x))
        assert again.preprocessor.tokenizer.vocabulary == model.preprocessor.tokenizer.vocabulary


def test_lora_of_single_layers_and_frozen_models():
    model = gpt2()
    model.backbone.transformer_layers[1].trainable = False
    model.backbone.token_embedding.enable_lora(2, lora_alpha=8)
    deeper = deepen(model, [1])
    embedding = deeper.backbone.token_embedding
    assert (embedding.lora_rank, embedding.lora_alpha) == (2, 8)
    assert [layer.trainable for layer in deeper.backbone.transformer_layers] == [True, False, True]
    model.trainable = False
    assert {w.path.split("/")[0] for w in deepen(model, [1]).trainable_weights} == {"transformer_layer_2"}
