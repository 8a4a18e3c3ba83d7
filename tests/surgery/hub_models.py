"""Small random models of KerasHub and checks of deepened ones; as a program, the checks on KERAS_BACKEND=jax."""

from typing import Any

import keras
import numpy as np
from keras_hub import models as hub

from idmatters_tf.surgery import deepen

TEXTS = ["a b c a", "b c"]
WORDS = ["!", "<|endoftext|>", "a", "b", "c", "Ġ", "Ġa", "Ġb", "Ġc"]
OUTPUTS = {"self_attention/attention_output", "feedforward_output_dense"}
GEMMA_OUTPUTS = {"attention/attention_output", "ffw_linear"}


def randomized(model) -> Any:
    """Return a model with random weights everywhere, also where initial weights are zeros or ones."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        values = rng.normal(0, 0.3, weight.shape)
        weight.assign(np.abs(values) if weight.name.endswith("variance") else values)
    return model


def gpt2(layers=2):
    tokenizer = hub.GPT2Tokenizer({word: place for place, word in enumerate(WORDS)}, ["Ġ a", "Ġ b", "Ġ c"])
    preprocessor = hub.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
    backbone = hub.GPT2Backbone(len(WORDS), layers, 2, 8, 16, max_sequence_length=12)
    return randomized(hub.GPT2CausalLM(backbone, preprocessor))


def gemma3():
    backbone = hub.Gemma3Backbone(
        20, 16, 2, 2, 1, 8, 16, 4, use_post_ffw_norm=True, use_post_attention_norm=True, dtype="float32"
    )
    return randomized(hub.Gemma3CausalLM(preprocessor=None, backbone=backbone))


def vit():
    return randomized(hub.ViTImageClassifier(hub.ViTBackbone((8, 8, 3), 4, 2, 2, 8, 16), 3))


def resnet(pre=True):
    backbone = hub.ResNetBackbone([64], [3], [64, 8], [2, 2], [1, 2], "basic_block", pre, image_shape=(16, 16, 3))
    return randomized(hub.ResNetImageClassifier(backbone, 3))


def bert():
    return randomized(hub.BertTextClassifier(hub.BertBackbone(9, 2, 2, 8, 16, max_sequence_length=12), 2))


def inputs_for(model):
    """Return random images, or tokens with padding at the end, at the start, and nowhere."""
    rng = np.random.default_rng(1)
    if not isinstance(model.input, dict):
        return rng.normal(size=(2, *model.input.shape[1:])).astype("float32")
    mask = np.array([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    inputs = {"token_ids": rng.integers(1, 9, mask.shape), "padding_mask": mask}
    return inputs | ({"segment_ids": 0 * mask} if "segment_ids" in model.input else {})


def arrays(model, prefix=""):
    """Return the weights below a prefix by the rest of their paths."""
    return {w.path[len(prefix) :]: np.array(w) for w in model.weights if w.path.startswith(prefix)}


def check_layers(model, deeper, prefix, sources, zeros=(), first=0):
    """Check all weights of a deepened model, whose layers are called `prefix` and a number from `first` on.

    `sources` contains the place of the old layer of each layer; those that occur again are new. `zeros` are layers
    inside of new layers that must be zero, other than in the old layer.
    """
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


def check_training_continues():
    """Check that a trained language model keeps its tokens, compile arguments and optimizer's state."""
    model = trained()
    tokens = model.generate(["a b", "c"], max_length=8)
    deeper = deepen(model, [0], optimizer=model.optimizer)
    assert deeper.preprocessor is model.preprocessor
    assert deeper.sampler is model.sampler
    assert deeper.loss is model.loss
    assert deeper.run_eagerly == model.run_eagerly
    assert deeper.get_compile_config()["weighted_metrics"] == ["sparse_categorical_accuracy"]
    assert deeper.generate(["a b", "c"], max_length=8) == tokens

    assert int(deeper.optimizer.iterations) == int(model.optimizer.iterations) == 2
    old, new = ({v.path.split("/", 1)[1]: np.array(v) for v in m.optimizer.variables} for m in (model, deeper))
    for path, value in old.items():
        np.testing.assert_array_equal(new[path.replace("layer_1", "layer_2")], value, err_msg=path)
    assert not any(np.any(value) for path, value in new.items() if "layer_1" in path)

    held = arrays(model)
    deeper.fit(TEXTS, batch_size=1, verbose=0)
    assert int(deeper.optimizer.iterations) == 4
    assert np.any(arrays(deeper)["transformer_layer_1/feedforward_output_dense/kernel"])
    assert all(np.array_equal(value, held[path]) for path, value in arrays(model).items())


def main():
    check_training_continues()
    model = resnet()
    x = inputs_for(model)
    np.testing.assert_array_equal(model(x), deepen(model, "stack1_block1")(x))
    print(keras.backend.backend())


if __name__ == "__main__":
    main()
