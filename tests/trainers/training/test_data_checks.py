"""Tests that runs are continued, evaluated and published only with their own data."""

import dataclasses
import pathlib
import shutil

import pytest

from idmatters_tf.data import shapes
from tests.support.occupants import tree
from tests.support.programs import run_here
from tests.trainers.conftest import TINY
from trainers import cifar, imagenet
from trainers.datasets.memory import Shapes
from trainers.run.folder import Run
from trainers.training.train import holds_out_differently


@pytest.mark.parametrize(
    "command", [("trainers.cifar", "--resume", "--out"), ("trainers.cifar", "--evaluate"), ("trainers.card",)]
)
def test_other_data_are_refused(finished, tmp_path, monkeypatch, command):
    run = pathlib.Path(shutil.copytree(finished, tmp_path / "run"))
    if "--resume" in command:
        (run / "result.json").unlink()
    data = shapes.load(64, 48)
    other = dataclasses.replace(data, test_images=255 - data.test_images)
    monkeypatch.setattr(Shapes, "load", lambda self: other)
    before = tree(tmp_path)
    ended = run_here(*command, run)
    assert ended.returncode == 2
    assert "run was trained on other data (" in ended.stderr
    assert tree(tmp_path) == before


def test_initial_weights_that_may_know_the_held_out_images_are_recognized(finished):
    run = Run(finished)
    data, same = {"dataset": "shapes"}, run.data().digest
    for options, digest, expected in (
        ({**data, "held_out": 10}, "other", True),
        ({**data, "held_out": 10}, same, False),
        (data, "other", False),
        ({"dataset": "cifar10", "held_out": 10}, "other", False),
    ):
        assert holds_out_differently(cifar.PROGRAM.resolve(typed=options), digest, run) == expected
    folder = imagenet.PROGRAM.resolve(typed={"val": "train", "val_fraction": 0.1})
    assert not holds_out_differently(folder, "other", run)


def test_a_warning_names_such_weights(finished, tmp_path):
    held_out = ("--steps", 1, "--held-out", 8, "--init-from", finished)
    ended = run_here("trainers.cifar", *TINY.split(), *held_out, "--out", tmp_path / "run")
    assert ended.returncode == 0
    assert f"warning: {finished} may have been trained on the held-out images" in ended.stderr
