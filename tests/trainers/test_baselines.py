"""Tests of the paper's baseline networks in `trainers.cifar`, and of the error messages for options."""

import dataclasses
import json

import keras
import numpy as np
import pytest

import idmatters_tf.layers  # noqa: F401 - registers the layers
from idmatters_tf.data import shapes
from idmatters_tf.models.all_cnn import all_cnn_c
from idmatters_tf.models.densenet import densenet
from idmatters_tf.models.layout import CIFAR
from idmatters_tf.models.resnet import preresnet, resnet
from tests.support.programs import run_here
from trainers import networks
from trainers.cifar import PROGRAM, parser
from trainers.cli.settings import as_dict, make
from trainers.training.settings import TrainingSettings

SHORT = ["--dataset", "shapes", "--train-images", 300, "--test-images", 60, "--batch-size", 8, "--steps", 8]
SHORT += ["--log-every", 1, "--evaluate-every", 8, "--checkpoint-every", 4]
SHAPE = (32, 32, 3)


def test_the_fast_preset_trains_and_exports_its_preprocessing(tmp_path, without_saved_model):
    options = ["--preset", "fast", "--precision", "float32", "--blocks", 1, "--stem", 8, "--widths", 16, 16]
    options += ["--cutout", 4, "--warm-up-steps", 2, "--learning-rate", 0.1, *SHORT]
    run_here("trainers.cifar", *options, "--out", tmp_path, code=0)
    data = shapes.load(300, 60)
    logits = keras.saving.load_model(tmp_path / "model.keras").predict(data.test_images, verbose=0)
    losses = keras.losses.sparse_categorical_crossentropy(data.test_labels, logits, from_logits=True)
    assert np.mean(losses) == pytest.approx(json.loads((tmp_path / "result.json").read_text())["last_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "build"),
    [
        (["resnet", "--depth", "8", "--shortcut", "projection"], lambda: resnet(SHAPE, 7, 8, "projection")),
        (["preresnet", "--depth", "14"], lambda: preresnet(SHAPE, 7, 14)),
        (["densenet", "--depth", "10"], lambda: densenet(SHAPE, 7, 10, 24)),
        (["all-cnn"], lambda: all_cnn_c(SHAPE, 7)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_options_of_a_network_define_its_layers(options, build):
    settings = PROGRAM.resolve(typed=parser().parse(["--model", *options]))
    assert networks.describe(settings.model, settings.network).startswith(options[0])
    arguments = {"weight_decay": 0.0, "seed": 0}
    network = networks.build(settings.model, settings.network, SHAPE, 7, replicas=2, **arguments)
    expected = build()
    assert [layer.output.shape for layer in network.layers] == [layer.output.shape for layer in expected.layers]
    assert network.count_params() == expected.count_params()
    for layer in network.layers:
        assert getattr(layer, "synchronized", True), layer.name


def resolved(*typed, preset="paper"):
    """Return the settings of a new run by name."""
    return as_dict(PROGRAM.resolve(preset, parser().parse([str(word) for word in typed])))


def test_recipes_of_the_baselines():
    resnet = resolved("--model", "resnet")
    assert (resnet["depth"], resnet["steps"], resnet["learning_rate"]) == (110, 64_000, 0.1)
    assert (resnet["warm_up_steps"], "blocks" in resnet, "norm" in resnet) == (400, False, False)
    densenet = resolved("--model", "densenet", "--steps", 10)
    assert (densenet["depth"], densenet["batch_size"], densenet["optimizer"]) == (100, 64, "nesterov")
    assert densenet["steps"] == 10
    assert resolved("--model", "all-cnn")["preprocess"] == "pixels"
    identity = resolved()
    assert (identity["steps"], identity["blocks"], "depth" in identity) == (60_000, [9, 9, 9], False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], CIFAR),
        (["--strides", "2"], dataclasses.replace(CIFAR, stem_strides=2, strides=(2, 2, 2))),
        (["--strides", "4", "1", "3", "2"], dataclasses.replace(CIFAR, stem_strides=4, strides=(1, 3, 2))),
        (["--initializer", "skipinit"], dataclasses.replace(CIFAR, initializer="standard", branch_scale=0.0)),
        (["--initializer", "fixup"], dataclasses.replace(CIFAR, initializer="fixup")),
    ],
)
def test_the_options_of_the_papers_network_define_its_layout(options, expected):
    settings = PROGRAM.resolve(typed=parser().parse(options))
    assert settings.network.layout() == expected
    # Also after a round trip through config.json.
    assert make(TrainingSettings, as_dict(settings)).network.layout() == expected
