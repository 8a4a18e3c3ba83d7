"""Runs are continued and evaluated only with their own data."""

import dataclasses
import pathlib
import shutil

import pytest

from idmatters_tf.data import shapes
from tests.support.occupants import tree
from tests.support.programs import run_here
from trainers.datasets import Shapes


@pytest.mark.parametrize("command", [("trainers.cifar", "--resume", "--out"), ("trainers.cifar", "--evaluate")])
def test_resuming_with_other_data_is_rejected(finished, tmp_path, monkeypatch, command):
    run = pathlib.Path(shutil.copytree(finished, tmp_path / "run"))
    if "--resume" in command:
        (run / "result.json").unlink()
    data = shapes.load(64, 48)
    other = dataclasses.replace(data, test_images=255 - data.test_images)
    monkeypatch.setattr(Shapes, "load", lambda self: other)
    before = tree(tmp_path)
    ended = run_here(*command, run)
    assert ended.returncode == 2
    assert "is a checkpoint of another run: the checksum of the data was" in ended.stderr
    assert tree(tmp_path) == before
