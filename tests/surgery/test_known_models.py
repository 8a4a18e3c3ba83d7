"""Twelve known models, deepened and reduced again: bits, slots of the optimizer and further training."""

import keras
import numpy as np
import pytest
from keras import ops

from idmatters_tf.surgery import deepen, remove_identities
from tests.support import hub_models


def application(name, after, **options):
    """Return a function that builds a small network of `keras.applications` and names the layer in front of a block."""

    def build():
        options_of_all = {"weights": None, "classes": 3, "input_shape": (32, 32, 3), "classifier_activation": None}
        return getattr(keras.applications, name)(**options_of_all, **options), after

    return build


def with_dropout(build, after=0, **options):
    return lambda: (build(**options), after)


CASES = {
    "GPT-2": with_dropout(hub_models.gpt2, dropout=0.3),
    "BERT": with_dropout(hub_models.bert, dropout=0.3),
    "Gemma, all attention global": with_dropout(hub_models.gemma3),
    "SmolLM3": with_dropout(hub_models.smollm3),
    "ViT": with_dropout(hub_models.vit, dropout_rate=0.3),
    "ResNet of KerasHub": with_dropout(hub_models.resnet, after=[1, 2]),
    "MobileNetV2": application("MobileNetV2", "block_3_project_BN", alpha=0.35),
    "MobileNetV3Small": application("MobileNetV3Small", "expanded_conv_3_project_bn", minimalistic=True),
    "EfficientNetV2B0": application("EfficientNetV2B0", "block2a_project_bn", include_preprocessing=False),
    "DenseNet121": application("DenseNet121", "conv2_block3_concat"),
    "ResNet50V2": application("ResNet50V2", "conv2_block1_out"),
    "ConvNeXtTiny": application("ConvNeXtTiny", "convnext_tiny_stage_0_block_0_identity"),
}
# The others have nearly all layers of these.
FAST = ("GPT-2", "BERT", "SmolLM3", "ViT", "ResNet of KerasHub")


def arrays(variables):
    return [ops.convert_to_numpy(variable) for variable in variables]


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_bits_slots_and_further_training(name):
    keras.utils.set_random_seed(0)
    model, after = CASES[name]()
    x = hub_models.inputs_for(model)
    outputs = model(x)
    loss = keras.tree.map_structure(lambda _: "mse", outputs)
    named = keras.tree.map_structure(lambda _: ["mse"], outputs)
    metrics = {name: named if isinstance(named, dict) else ["mse"] for name in ("metrics", "weighted_metrics")}
    options = {**metrics, "run_eagerly": keras.backend.backend() == "tensorflow"}
    model.compile(keras.optimizers.Adam(1e-3), loss, **options)
    rng = np.random.default_rng(2)
    y = keras.tree.map_structure(lambda part: rng.normal(size=part.shape).astype("float32"), outputs)

    def train(network):
        # The `fit` of a task would preprocess the inputs.
        keras.Model.fit(network, x, y, batch_size=2, epochs=1, shuffle=False, verbose=0)

    train(model)
    init = "copy" if name == "BERT" else "zero"
    deeper = deepen(model, after, optimizer=model.optimizer, init=init)
    assert len(deeper.weights) > len(model.weights)
    if init == "copy":
        return
    for old, new in zip(keras.tree.flatten(model(x)), keras.tree.flatten(deeper(x)), strict=True):
        np.testing.assert_array_equal(old, new)
    result = remove_identities(deeper, 0.0, (x,), optimizer=deeper.optimizer)
    assert result.removed
    for old, new in zip(arrays(model.optimizer.variables), arrays(result.model.optimizer.variables), strict=True):
        np.testing.assert_array_equal(old, new)
    # Dropout continues as in the original, and batch normalization.
    train(model)
    train(result.model)
    for variable, old, new in zip(
        model.variables, arrays(model.variables), arrays(result.model.variables), strict=True
    ):
        np.testing.assert_array_equal(old, new, err_msg=variable.path)
