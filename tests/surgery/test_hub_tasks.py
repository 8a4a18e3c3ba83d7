"""State of KerasHub tasks that `deepen` and `remove_identities` keep."""

from typing import Any

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub")

from idmatters_tf.surgery import deepen, remove_identities
from tests.surgery import hub_models as cases


def test_training_and_generation_continue():
    cases.check_training_continues()


def test_default_and_missing_compilation_are_kept():
    model = cases.gpt2()
    assert float(deepen(model, 0, init="copy").optimizer.learning_rate) == float(model.optimizer.learning_rate)
    model.compile("sgd", "mse", sampler="beam")
    deeper = deepen(model, 0, init="copy")
    assert isinstance(deeper.optimizer, keras.optimizers.SGD)
    assert (deeper.loss, deeper.sampler) == ("mse", model.sampler)
    uncompiled = cases.hub.GPT2CausalLM(model.backbone, compile=False)
    assert not deepen(uncompiled, 0, init="copy").compiled


def test_saved_and_loaded(tmp_path):
    model = cases.gpt2()
    deeper = deepen(model, [0])
    deeper.save_to_preset(tmp_path / "preset")
    deeper.save(tmp_path / "deeper.keras")
    preset = cases.hub.CausalLM.from_preset(str(tmp_path / "preset"))
    loaded: list[Any] = [preset, keras.saving.load_model(tmp_path / "deeper.keras")]
    x = cases.inputs_for(model)
    for again in loaded:
        assert type(again) is type(model)
        np.testing.assert_array_equal(again(x), model(x))
        assert again.preprocessor.tokenizer.vocabulary == model.preprocessor.tokenizer.vocabulary


def test_lora_and_frozen_layers_are_kept(tmp_path):
    model = cases.gpt2()
    model.backbone.enable_lora(2)
    model.backbone.layer_norm.trainable = True
    cases.randomized(model)
    deeper = deepen(model, [0])
    x = cases.inputs_for(model)
    np.testing.assert_array_equal(model(x), deeper(x))
    cases.check_layers(model, deeper, "transformer_layer_", [0, 0, 1], cases.OUTPUTS)
    trainable = {w.path.replace("layer_1", "layer_2") for w in model.trainable_weights}
    assert {w.path for w in deeper.trainable_weights if "layer_1" not in w.path} == trainable
    assert any("lora" in path for path in trainable)
    new = [w for w in deeper.weights if "layer_1" in w.path]
    assert [w.path.split("/", 2)[2] for w in new if not w.trainable] == ["query/kernel", "value/kernel"]
    assert sum("lora" in w.path for w in new) == 4

    deeper.backbone.save_lora_weights(str(tmp_path / "adapter.lora.h5"))
    other = deepen(cases.gpt2(), [0])
    other.backbone.load_lora_weights(str(tmp_path / "adapter.lora.h5"))
    name = "transformer_layer_2/self_attention/query/lora_kernel_a"
    np.testing.assert_array_equal(cases.arrays(other)[name], cases.arrays(deeper)[name])


def test_lora_of_single_layers_and_frozen_models():
    model = cases.gpt2()
    model.backbone.transformer_layers[1].trainable = False
    model.backbone.token_embedding.enable_lora(2, lora_alpha=8)
    deeper = deepen(model, [1])
    embedding = deeper.backbone.token_embedding
    assert (embedding.lora_rank, embedding.lora_alpha) == (2, 8)
    assert [layer.trainable for layer in deeper.backbone.transformer_layers] == [True, False, True]
    model.trainable = False
    assert {w.path.split("/")[0] for w in deepen(model, [1]).trainable_weights} == {"transformer_layer_2"}


def test_removal_reverses_insertion():
    model = cases.trained()
    x, y, weights = model.preprocessor(cases.TEXTS)
    deeper = deepen(model, "interleaved", optimizer=model.optimizer)
    removal = remove_identities(deeper, 0.0, (x, y, weights), optimizer=deeper.optimizer)
    assert removal.removed == ("transformer_layer_1", "transformer_layer_3")
    assert type(removal.model) is type(model)
    assert removal.model.sampler is model.sampler
    np.testing.assert_array_equal(removal.model(x), model(x))
    assert removal.before["loss"] == pytest.approx(removal.after["loss"])
    for old, new in zip(model.weights, removal.model.weights, strict=True):
        np.testing.assert_array_equal(old, new, err_msg=old.path)
    for old, new in zip(model.optimizer.variables, removal.model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(old, new, err_msg=old.path)
    with pytest.raises(ValueError, match="At least one layer"):
        remove_identities(model, 1e9, (x, y, weights))
