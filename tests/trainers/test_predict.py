"""Tests of predictions for image files and of errors by class."""

import json
import shutil
from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf.data import shapes
from tests.support.programs import run_here
from tests.trainers.conftest import TINY
from trainers import cifar
from trainers.cli.arguments import UsageError
from trainers.datasets import DATA_SETS
from trainers.predict import choose_window, describe, main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a finished run on the built-in images."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert cifar.main([*TINY.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Return a folder with one subfolder of images for each of two classes, and another file."""
    folder = tmp_path_factory.mktemp("images")
    data = shapes.load(64, 48)
    for number, (image, label) in enumerate(zip(data.test_images, data.test_labels, strict=True)):
        path = folder / data.class_names[label] / f"{number}.png"
        if label < 2:
            path.parent.mkdir(exist_ok=True)
            keras.utils.save_img(path, image, scale=False)
    (folder / data.class_names[0] / "notes.txt").write_text("mine")
    return folder


def test_errors_by_class_are_those_of_the_exported_model(run, images, capsys):
    assert main([str(run), str(images)]) == 0
    printed = capsys.readouterr()
    data = shapes.load(64, 48)
    model: Any = keras.saving.load_model(run / "model.keras")
    predicted = np.argmax(model(data.test_images), axis=1)
    names = data.class_names
    for label in (0, 1):
        of_class = predicted[data.test_labels == label]
        (line,) = [line for line in printed.out.splitlines() if line.startswith(f"{names[label]} ")]
        assert line.removeprefix(names[label]).split()[:2] == [
            str(len(of_class)),
            f"{100 * np.mean(of_class != label):.1f}",
        ]
    assert "notes.txt is not a" in printed.err


def test_the_most_probable_classes_of_files(run, images, capsys):
    files = sorted(images.glob("*/*.png"))[:2]
    assert main([str(run), *map(str, files)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == list(map(str, files))
    assert all(line.count("%") == 3 for line in lines)


def test_the_table_lists_the_most_frequent_confusions():
    counts = np.array([[3, 1, 2], [0, 4, 0], [0, 0, 0]])
    first, second, third, total = (line.split() for line in describe(counts, ["cat", "dog", "owl"])[1:])
    assert first == ["cat", "6", "50.0", "%", "owl", "(2),", "dog", "(1)"]
    assert second == ["dog", "4", "0.0", "%"]
    assert third == ["owl", "0", "-"]
    assert total == ["all", "classes", "10", "30.0", "%"]


def test_a_folder_of_images_without_labels(run, images, capsys):
    folder = min(images.iterdir())
    assert main([str(run), str(folder)]) == 0
    printed = capsys.readouterr()
    files = sorted(map(str, folder.glob("*.png")))
    assert [line.partition(": ")[0] for line in printed.out.splitlines()] == files
    assert "notes.txt is not a" in printed.err


@pytest.mark.parametrize("given", ["config.json", "empty", "labeled"])
def test_no_image_at_all(given, run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "labeled" / "disc").mkdir(parents=True)
    path = run / given if given == "config.json" else tmp_path / given
    done = run_here("trainers.predict", run, path)
    assert done.returncode == 2
    assert f"error: none of the {int(given == 'config.json')} files is a JPEG or PNG image. Convert" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("damage", ["model.keras", "config.json", "class_names"])
def test_damaged_runs(damage, run, images, tmp_path):
    damaged = tmp_path / "run"
    shutil.copytree(run, damaged)
    if damage == "class_names":
        config = json.loads((damaged / "config.json").read_text())
        config["data"]["class_names"] = ["one", "two"]
        (damaged / "config.json").write_text(json.dumps(config))
        done = run_here("trainers.cifar", "--export-only", damaged)
        message = "config.json, data: class_names must have one name for each of the 10 classes, or none. Received: 2"
    else:
        (damaged / damage).write_bytes((damaged / damage).read_bytes()[:300])
        done = run_here("trainers.predict", damaged, images)
        message = f"{damage} is damaged"
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [("absent.png", "absent.png"), (".", r"one subfolder .* such as 'disc'. Received: a folder 'disc '$")],
)
def test_invalid_paths_raise_usage_errors(run, tmp_path, monkeypatch, given, message):
    (tmp_path / "disc ").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        main([str(run), given])


def test_an_unfinished_run_raises_a_usage_error(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "model.keras").unlink()
    with pytest.raises(UsageError, match="no model.keras"):
        main([str(tmp_path / "run"), "1.png"])


def test_images_are_cropped_as_in_the_evaluations_of_the_run():
    kinds = {(name, augment) for name, kind in DATA_SETS.items() for augment in kind.augmentations}
    cropped = {key for key in kinds if choose_window({"dataset": key[0], "augment": key[1]}) == "standard"}
    assert cropped == {("folder", "standard"), ("folder", "large-crops")}
    # A run of an earlier version.
    assert choose_window({"dataset": "folder", "augment": "standard", "in_memory": True}) == "paper"
