# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false, reportOptionalMemberAccess=false
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
from tests.support.processes import assert_same_run, cut_back, records, run_forked
from tests.support.programs import run_here
from trainers import networks
from trainers.cifar import PROGRAM, parser
from trainers.cli.settings import as_dict, make
from trainers.training.settings import TrainingSettings

SHORT = ["--dataset", "shapes", "--train-images", 300, "--test-images", 60, "--batch-size", 8, "--steps", 8]
SHORT += ["--drop-steps", 6, "--log-every", 1, "--evaluate-every", 8, "--checkpoint-every", 4]
SHAPE = (32, 32, 3)
NETWORKS = {"all-cnn": [], "preresnet": ["--depth", 8, "--warm-up-steps", 2], "densenet": ["--depth", 7]}


@pytest.mark.slow
@pytest.mark.parametrize("model", NETWORKS)
def test_a_network_trains_exports_and_resumes(model, tmp_path):
    command = ["trainers.cifar", "--model", model, *NETWORKS[model], *SHORT]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    done = run_here(*command, "--out", whole)
    assert done.returncode == 0, done.stderr
    rates = [record["learning_rate"] for record in records(whole) if record["kind"] == "train"]
    if model == "preresnet":
        np.testing.assert_allclose(rates, [0.01] * 2 + [0.1] * 4 + [0.01] * 2, rtol=1e-6)
    # The exported network contains its preprocessing.
    data = shapes.load(300, 60)
    logits = keras.saving.load_model(whole / "model.keras").predict(data.test_images, verbose=0)
    error = np.mean(np.argmax(logits, axis=1) != data.test_labels)
    assert error == pytest.approx(json.loads((whole / "result.json").read_text())["last_error"])

    cut_back(whole, resumed)
    done = run_forked(*command, "--out", resumed)
    assert done.returncode == 0, done.stderr
    assert "resuming from step 4" in done.stderr
    assert_same_run(whole, resumed)


@pytest.mark.parametrize(
    ("options", "build"),
    [
        (["resnet", "--depth", "8", "--shortcut", "projection"], lambda: resnet(SHAPE, 7, 8, "projection")),
        (["preresnet", "--depth", "14"], lambda: preresnet(SHAPE, 7, 14)),
        (["densenet", "--depth", "10"], lambda: densenet(SHAPE, 7, 10, 24)),
        (["all-cnn", "--strides", "2"], lambda: all_cnn_c(SHAPE, 7, 2)),
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
    # He et al. (2015) use a warm-up only at depth 110.
    assert resolved("--model", "resnet", "--depth", 20)["warm_up_steps"] == 0
    assert resolved("--model", "resnet", "--depth", 20, "--warm-up-steps", 7)["warm_up_steps"] == 7
    densenet = resolved("--model", "densenet", "--steps", 10)
    assert (densenet["depth"], densenet["batch_size"], densenet["optimizer"]) == (100, 64, "nesterov")
    assert densenet["steps"] == 10
    assert PROGRAM.resolve(typed={"model": "densenet", "depth": 121}).network.bottleneck
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


def test_the_short_preset_has_the_network_of_the_paper():
    assert PROGRAM.resolve("short").network.layout() == CIFAR
