"""Tests of folders with weights and a model card."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from huggingface_hub import ModelCard

from idmatters_tf.data import shapes
from tests.trainers.conftest import TINY
from trainers import cifar
from trainers.card.__main__ import FILES, main
from trainers.cli.arguments import UsageError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a finished run with held-out images."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert cifar.main([*TINY.split(), "--held-out", "16", "--precision", "bfloat16", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def card(run):
    """Return a folder created from the run."""
    out = run.parent / "cards" / "tiny"
    # On a second call, a folder of this program is replaced, and other files are kept.
    out.mkdir(parents=True)
    for _ in range(2):
        # As if a process had been killed.
        (out / ".writing-123-abc").mkdir()
        (out / ".writing-123-abc" / "model.weights.h5").write_text("")
        assert main([str(run), "--out", str(out), "--repository", "me/tiny"]) == 0
        (out / "notes.txt").write_text("mine")
    return out


def test_a_model_card_loads_in_keras_with_its_error(run, card):
    assert {path.name for path in card.iterdir()} == {*FILES, "notes.txt"}
    loaded, trained = (keras.saving.load_model(path) for path in (card, run / "model.keras"))
    for before, after in zip(trained.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert loaded.get_layer("classes").class_names == trained.get_layer("classes").class_names
    data = shapes.load(64, 48).hold_out(16)
    wrong = float(np.mean(np.argmax(loaded(data.test_images), 1) != data.test_labels))
    assert json.loads((card / "training.json").read_text())["error"] == pytest.approx(wrong, abs=1e-7)


def test_a_model_card_has_metadata_and_documentation(run, card):
    text = (card / "README.md").read_text()
    for part in ('load_model("hf://me/tiny")', "logits of 10 classes: disc, ", "made 6 steps", '"widths": ['):
        assert part in text
    (use,) = re.findall("```python\n(.*?)```", text, re.DOTALL)
    variables = {"images": shapes.load(64, 48).test_images}
    exec(use.replace("hf://me/tiny", str(card)), variables)
    assert variables["logits"].shape == (48, 10)
    front = ModelCard(text).data.to_dict()
    (result,) = front["model-index"][0]["results"]
    error = json.loads((card / "training.json").read_text())["error"]
    assert result["metrics"][0]["value"] == pytest.approx(1 - error, abs=1e-6)
    assert f"{100 * error:.2f} %" in text
    assert (front["license"], front["library_name"]) == ("apache-2.0", "keras")
    # The held-out images are training images.
    assert result["dataset"] == {"name": "shapes", "type": "shapes", "split": "train"}


def test_a_card_requires_the_last_checkpoint(run, tmp_path):
    """Test that the number of steps belongs to the weights of the card."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    data = copy / "checkpoints" / "step-00000006" / "arrays.npz"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(UsageError, match="is that of step 4, not of its last step 6. Remove .*result.json, then train"):
        main([str(copy), "--out", str(tmp_path / "card")])
    assert not (tmp_path / "card").exists()


def test_invalid_input_raises_usage_errors(run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "README.md").write_text("mine")
    unfinished, other = tmp_path / "unfinished", tmp_path / "other"
    for folder, program in ((unfinished, "trainers.cifar"), (other, "trainers.landscape")):
        folder.mkdir()
        config = json.loads((run / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "program": program}))
    for arguments, message in (
        ([run, "--out", tmp_path / "thesis"], "contains something other than files of this program"),
        ([unfinished], "is not finished. Run: python -m trainers.cifar --resume --out"),
        ([other], "is not a run of trainers.cifar or trainers.imagenet"),
        ([run, "--repository", "name"], "--repository must be of the form USER/NAME. Received: 'name'"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            main(list(map(str, arguments)))
    assert (tmp_path / "thesis" / "README.md").read_text() == "mine"
