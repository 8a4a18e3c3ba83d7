"""Tests of predictions for image files and of errors by class."""

import shutil
from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf.data import shapes
from trainers.cli.arguments import UsageError
from trainers.datasets import DATA_SETS
from trainers.predict import choose_window, describe, main


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


def test_errors_by_class_are_those_of_the_exported_model(finished, images, capsys):
    assert main([str(finished), str(images)]) == 0
    printed = capsys.readouterr()
    data = shapes.load(64, 48)
    model: Any = keras.saving.load_model(finished / "model.keras")
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


def test_the_table_lists_the_most_frequent_confusions():
    counts = np.array([[3, 1, 2], [0, 4, 0], [0, 0, 0]])
    first, second, third, total = (line.split() for line in describe(counts, ["cat", "dog", "owl"])[1:])
    assert first == ["cat", "6", "50.0", "%", "owl", "(2),", "dog", "(1)"]
    assert second == ["dog", "4", "0.0", "%"]
    assert third == ["owl", "0", "-"]
    assert total == ["all", "classes", "10", "30.0", "%"]


@pytest.mark.parametrize("is_folder", [True, False])
def test_the_most_probable_classes_of_files(finished, images, is_folder, capsys):
    folder = min(images.iterdir())
    files = sorted(map(str, folder.glob("*.png")))[: None if is_folder else 2]
    assert main([str(finished), *([str(folder)] if is_folder else files)]) == 0
    printed = capsys.readouterr()
    assert [line.partition(": ")[0] for line in printed.out.splitlines()] == files
    assert all(line.count("%") == 3 for line in printed.out.splitlines())
    assert ("notes.txt is not a" in printed.err) == is_folder


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("run/config.json", "none of the 1 files is a JPEG or PNG image. Convert"),
        ("empty", "none of the 0 files is a JPEG or PNG image"),
        ("labeled", "none of the 0 files is a JPEG or PNG image"),
        ("absent.png", "absent.png"),
        ("spaces", r"one subfolder .* such as 'disc'. Received: a folder 'disc '$"),
        ("damaged", "model.keras is damaged"),
        ("unfinished", "no model.keras"),
    ],
)
def test_invalid_input_raises_usage_errors(finished, tmp_path, monkeypatch, given, message):
    for name in ("empty", "damaged", "unfinished", "labeled/disc", "spaces/disc "):
        (tmp_path / name).mkdir(parents=True)
    shutil.copytree(finished, tmp_path / "run")
    model = tmp_path / "run" / "model.keras"
    model.write_bytes(model.read_bytes()[: 300 if given == "damaged" else None])
    if given == "unfinished":
        model.unlink()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        main(["run", given])


def test_images_are_cropped_as_in_the_evaluations_of_the_run():
    kinds = {(name, augment) for name, kind in DATA_SETS.items() for augment in kind.augmentations}
    cropped = {key for key in kinds if choose_window({"dataset": key[0], "augment": key[1]}) == "standard"}
    assert cropped == {("folder", "standard"), ("folder", "large-crops")}
