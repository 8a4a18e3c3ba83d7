"""`deepen` for the kinds of KerasHub models, its choice of layers, and the state of tasks that it keeps."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from keras_hub import models
from keras_hub.models import AlbertBackbone

from idmatters_tf.autodiff import gradient
from idmatters_tf.surgery import deepen, remove_identities
from tests.support.hub_models import bert, gemma, gemma3, gpt2, inputs_for, randomized, resnet, smollm3, vit

LAYER, VIT = "transformer_layer_", "vit_encoder/transformer_block_"
OUTPUTS = {"self_attention/attention_output", "feedforward_output_dense"}
# Model, arguments, beginning of the names of layers, index of the old layer of each layer, zeros of new layers.
CASES = {
    "backbone of GPT-2": (lambda: gpt2().backbone, {"after": 1}, LAYER, [0, 1, 1], OUTPUTS),
    "Gemma 3": (
        gemma3,
        {"after": 0, "count": 2},
        "decoder_block_",
        [0, 0, 0, 1],
        {"attention/attention_output", "ffw_linear"},
    ),
    "ViT": (vit, {"after": f"{VIT}1"}, VIT, [0, 0, 1], {"mha/attention_output", "mlp/dense_2"}),
}


def arrays(model, prefix=""):
    """Return the weights below a prefix by the rest of their paths."""
    return {w.path[len(prefix) :]: np.array(w) for w in model.weights if w.path.startswith(prefix)}


def check_layers(model, deeper, prefix, sources, zeros=()):
    """Check all outputs and weights of a deepened model, whose layers are called `prefix` and a number.

    `sources` contains the index of the old layer of each layer; those that occur again are new. `zeros` are layers
    inside of new layers that must be zero, other than in the old layer; without them the outputs may differ.
    """
    assert type(deeper) is type(model)
    assert getattr(deeper, "backbone", deeper).num_layers == len(sources)
    if zeros:
        x = keras.tree.map_structure(ops.convert_to_tensor, inputs_for(model))
        np.testing.assert_array_equal(model(x), deeper(x))
    first = int(prefix == VIT)
    for new, old in enumerate(sources):
        expected, found = (arrays(m, f"{prefix}{n + first}/") for m, n in ((model, old), (deeper, new)))
        assert expected
        assert expected.keys() == found.keys()
        changed = [path for path, value in expected.items() if not np.array_equal(value, found[path])]
        assert {path.rpartition("/")[0] for path in changed} == set(zeros if old in sources[:new] else ())
        assert not any(np.any(found[path]) for path in changed)
    found = arrays(deeper)
    others = {path: value for path, value in arrays(model).items() if not path.startswith(prefix)}
    assert all(np.array_equal(found[path], value) for path, value in others.items())


@pytest.mark.parametrize("name", CASES)
def test_new_layers_are_the_identity_with_gradients(name):
    build, arguments, prefix, sources, zeros = CASES[name]
    model = build()
    deeper = deepen(model, **arguments)
    check_layers(model, deeper, prefix, sources, zeros)
    variables = [weight for weight in deeper.trainable_weights if not np.any(weight)]
    assert len(variables) >= len(zeros)
    x = keras.tree.map_structure(ops.convert_to_tensor, inputs_for(model))
    for variable, slope in zip(variables, gradient(lambda _: ops.sum(deeper(x) ** 2), variables), strict=True):
        assert np.any(slope), variable.path


@pytest.mark.parametrize("pre", [True, False])
def test_residual_networks_for_images(pre):
    """A block can follow the first block of a stage, which is of another kind, and a copy of it cannot."""
    model = resnet(pre)
    deeper = deepen(model, [1, 2])
    assert deeper.backbone.stackwise_num_blocks == [3, 3]
    x = inputs_for(model)
    np.testing.assert_array_equal(model(x), deeper(x))
    found = arrays(deeper)
    for path, value in arrays(model).items():
        np.testing.assert_array_equal(found[path.replace("stack1_block1", "stack1_block2")], value)
    assert not np.any(found["stack0_block2_2_conv/kernel" if pre else "stack0_block2_2_bn/gamma"])
    with pytest.raises(ValueError, match="`init` must be 'zero' after stack1_block0"):
        deepen(model, [2], init="copy")


@pytest.fixture(scope="module")
def four_layers():
    return gpt2(num_layers=4)


@pytest.mark.parametrize(
    ("after", "sources"),
    [
        ([0, np.int64(3)], [0, 0, 1, 2, 3, 3]),
        ("every 2nd", [0, 1, 1, 2, 3, 3]),
        ("interleaved", [0, 0, 1, 1, 2, 2, 3, 3]),
        (["transformer_layer_2", 0], [0, 0, 1, 2, 2, 3]),
    ],
)
def test_copies_after_chosen_layers(four_layers, after, sources):
    model = four_layers
    check_layers(model, deepen(model, after, init="copy"), LAYER, sources)


def test_arguments_that_do_not_fit_raise():
    model = gpt2()
    for after in (2, -1, [], "every 0th", "every 3rd", "transformer", [0, None], ["transformer_layer_2"]):
        with pytest.raises(ValueError, match="`after` must be numbers or names of the 2 layers") as caught:
            deepen(model, after)
        assert len(str(caught.value)) < 220
    with pytest.raises(ValueError, match="`block` and `tolerance` must be left out"):
        deepen(model, 0, tolerance=0.1)
    with pytest.raises(ValueError, match="At least one layer"):
        remove_identities(model, 1e9, (inputs_for(model),))
    # Layers that share their weights.
    with pytest.raises(ValueError, match="The constructor of AlbertBackbone"):
        deepen(AlbertBackbone(9, 2, 2, 4, 8, 16), "embeddings_dropout")


def test_normalization_after_the_sum_requires_copies():
    model = bert()
    with pytest.raises(ValueError, match="normalization after the sum. Pass init='copy'"):
        deepen(model, "interleaved")
    check_layers(model, deepen(model, "interleaved", init="copy"), LAYER, [0, 0, 1, 1])


def test_lora_and_frozen_layers_are_kept(tmp_path):
    model = gpt2()
    model.backbone.enable_lora(2)
    model.backbone.layer_norm.trainable = True
    randomized(model)
    deeper = deepen(model, [0])
    check_layers(model, deeper, LAYER, [0, 0, 1], OUTPUTS)
    trainable = {w.path.replace("layer_1", "layer_2") for w in model.trainable_weights}
    assert {w.path for w in deeper.trainable_weights if "layer_1" not in w.path} == trainable
    assert any("lora" in path for path in trainable)
    new = [w for w in deeper.weights if "layer_1" in w.path]
    assert [w.path.split("/", 2)[2] for w in new if not w.trainable] == ["query/kernel", "value/kernel"]
    assert sum("lora" in w.path for w in new) == 4

    deeper.backbone.save_lora_weights(str(tmp_path / "adapter.lora.h5"))
    other = deepen(gpt2(), [0])
    other.backbone.load_lora_weights(str(tmp_path / "adapter.lora.h5"))
    name = "transformer_layer_2/self_attention/query/lora_kernel_a"
    np.testing.assert_array_equal(arrays(other)[name], arrays(deeper)[name])


def test_old_layers_keep_their_kind():
    """The window is shorter than the inputs, so that local and global attention differ."""
    model = gemma()
    x = inputs_for(model)
    for options in ({}, {"init": "copy"}):
        with pytest.raises(ValueError, match="index of 'decoder_block_1'. .* multiples of 2, as by `count=2`"):
            deepen(model, 0, **options)
    deeper = deepen(model, 0, count=2)
    np.testing.assert_array_equal(model(x), deeper(x))
    with pytest.raises(ValueError, match="`init` must be 'zero' after decoder_block_0: the next layer is of another"):
        deepen(model, 0, count=2, init="copy")
    shorter = remove_identities(deeper, 0.0, (x,)).model
    np.testing.assert_array_equal(model(x), shorter(x))
    for layer in (deeper.transformer_layers[2].attention.output_dense, deeper.transformer_layers[2].ffw_linear):
        randomized(layer)
    with pytest.raises(ValueError, match="index of 'decoder_block_2'. .* multiples of 2"):
        remove_identities(deeper, 0.0, (x,))


def test_entries_for_each_layer_are_repeated():
    model = smollm3()
    deeper = deepen(model, "interleaved")
    assert deeper.rope_layer_enabled_list == [True, True, False, False]
    assert deeper.layer_types == ["attention"] * 4
    x = inputs_for(model)
    np.testing.assert_array_equal(model(x), deeper(x))
    shorter = remove_identities(deeper, 0.0, (x,)).model
    assert shorter.rope_layer_enabled_list == [True, False]
    np.testing.assert_array_equal(model(x), shorter(x))


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
    tokens = trained.generate(["a b", "c"], max_length=5)
    deeper = deepen(trained, [0], optimizer=trained.optimizer)
    assert deeper.preprocessor is trained.preprocessor
    assert deeper.sampler is trained.sampler
    assert deeper.loss is trained.loss
    assert deeper.run_eagerly == trained.run_eagerly
    assert deeper.get_compile_config()["weighted_metrics"] == ["sparse_categorical_accuracy"]
    assert deeper.generate(["a b", "c"], max_length=5) == tokens

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
