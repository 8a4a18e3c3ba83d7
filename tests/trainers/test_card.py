"""Tests of folders with weights and a model card."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from huggingface_hub import ModelCard

from idmatters_tf.checkpointing import saving
from idmatters_tf.data import shapes
from tests.conftest import ROOT
from trainers import cifar
from trainers.card.__main__ import main
from trainers.card.text import metadata
from trainers.card.weights import round_weights
from trainers.cli.arguments import RunError, UsageError
from trainers.reproduce.weights import weights_digest

TINY = "--dataset shapes --train-images 64 --test-images 48 --batch-size 8 --steps 6 --drop-steps 4 --evaluate-every 6 "
TINY += "--checkpoint-every 6 --blocks 1 --stem 8 --widths 48 --learning-rate 0.1 --clip-norm 1 --no-download"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert cifar.main([*TINY.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def card(run):
    """Return a folder created from the run, with weights rounded to bfloat16."""
    out = run.parent / "cards" / "tiny"
    assert main([str(run), "--out", str(out), "--round", "bfloat16", "--repository", "me/tiny"]) == 0
    return out


def test_keras_loads_the_rounded_weights_and_the_error_is_theirs(run, card):
    assert {path.name for path in card.iterdir()} >= {
        "README.md", "config.json", "metadata.json", "model.weights.h5", "training.json", "convergence.png",
    }  # fmt: skip
    loaded, trained = (keras.saving.load_model(path) for path in (card, run / "model.keras"))
    kernels = [weight for weight in trained.get_weights() if weight.ndim == 4]
    for before, after in zip(kernels, [w for w in loaded.get_weights() if w.ndim == 4], strict=True):
        assert after.dtype == np.float32
        assert not (after.view(np.uint32) & 0xFFFF).any()
        np.testing.assert_allclose(after, before, rtol=2**-8)
    assert any(
        (before != after).any() for before, after in zip(trained.get_weights(), loaded.get_weights(), strict=True)
    )
    assert loaded.get_layer("classes").class_names == trained.get_layer("classes").class_names
    data = shapes.load(64, 48)
    wrong = float(np.mean(np.argmax(loaded(data.test_images), 1) != data.test_labels))
    errors = json.loads((card / "training.json").read_text())["error"]
    assert errors["these, rounded to bfloat16, computed in float32"] == pytest.approx(wrong, abs=1e-7)
    assert errors["the run's own, as trained"] == json.loads((run / "result.json").read_text())["last_error"]


def test_the_card_says_what_hubs_and_people_need(run, card):
    text = (card / "README.md").read_text()
    for part in (
        'load_model("hf://me/tiny")',
        f"10 classes: {', '.join(shapes.load(1, 1).class_names)}\n",
        "hf upload me/tiny . .",
        "6 steps",
        "| `widths` | 48 |",
        "rounded to bfloat16",
        "| `steps` | 6 |",
    ):
        assert part in text
    # Its second block of Python measures the error.
    use, evaluate = re.findall("```python\n(.*?)```", text, re.DOTALL)
    data = shapes.load(64, 48)
    variables = {"images": data.test_images, "labels": data.test_labels}
    exec(use.replace("hf://me/tiny", str(card)), variables)
    exec(evaluate.replace("model.evaluate(", "result = model.evaluate("), variables)
    error = list(json.loads((card / "training.json").read_text())["error"].values())[-1]
    assert 1 - variables["result"][1] == pytest.approx(error, abs=1e-6)
    assert variables["names"][0] in data.class_names
    # Nothing of the machine that it was trained on.
    for path in (card / "README.md", card / "training.json"):
        assert str(run.parent) not in path.read_text()
    front = ModelCard(text).data.to_dict()
    (result,) = front["model-index"][0]["results"]
    errors = json.loads((card / "training.json").read_text())["error"]
    assert result["metrics"][0]["value"] == pytest.approx(1 - list(errors.values())[-1], abs=1e-6)
    assert (front["license"], front["library_name"]) == ("apache-2.0", "keras")
    assert "datasets" not in front


def test_the_metadata_are_those_of_the_published_card():
    card = ModelCard((ROOT / "model_cards" / "fast" / "README.md").read_text())
    name = "identity-matters-cifar10-fast"
    assert metadata(name, "apache-2.0", "cifar10", {"top-1 accuracy": 0.9364}).to_dict() == card.data.to_dict()


def test_rounding_makes_the_file_smaller_and_may_be_left_out(run, card, capsys):
    out = run.parent / "exact"
    # On a second call, a folder of this program is replaced.
    for _ in range(2):
        assert main([str(run), "--out", str(out), "--no-measure"]) == 0
    said = capsys.readouterr().out
    assert "nothing has been uploaded" in said
    assert f"hf upload USER/exact {out} ." in said
    for before, after in zip(
        keras.saving.load_model(run / "model.keras").get_weights(),
        keras.saving.load_model(out).get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(before, after)
    sizes = [(folder / "model.weights.h5").stat().st_size for folder in (card, out)]
    assert sizes[0] < 0.8 * sizes[1]
    assert list(json.loads((out / "training.json").read_text())["error"]) == ["the run's own, as trained"]


def test_weights_are_rounded_to_the_nearest_value():
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    # Round to nearest, ties to even, computed on the bits.
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    count = np.arange(3)
    found, same = round_weights([values, count], "bfloat16")
    np.testing.assert_array_equal(found, bits.astype(np.uint32).view(np.float32))
    assert same is count
    (near,) = round_weights([values], "float16")
    assert np.abs(near - values).max() < np.abs(found - values).max() / 4
    np.testing.assert_array_equal(near, near.astype(np.float16))
    assert round_weights([values], "none")[0] is values
    with pytest.raises(RunError, match="7e\\+04 is beyond float16. Use --round bfloat16"):
        round_weights([np.array([7e4], np.float32)], "float16")


def test_a_truncated_newest_checkpoint_is_not_replaced_by_an_earlier_one_silently(run, tmp_path, capsys):
    """Test that the error and the number of steps belong to the weights of the card."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    newest = copy / "checkpoints" / "step-00000006"
    shutil.copytree(newest, copy / "checkpoints" / "step-00000003")
    manifest = copy / "checkpoints" / "step-00000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 6', '"step": 3'))
    data = newest / "checkpoint.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(UsageError, match="is that of step 3, not of its last step 6. Remove .*result.json, then train"):
        main([str(copy), "--out", str(tmp_path / "card"), "--no-measure"])
    shutil.rmtree(copy / "checkpoints" / "step-00000003")
    with pytest.raises(UsageError, match="has no intact checkpoint"):
        main([str(copy), "--out", str(tmp_path / "card"), "--no-measure"])
    assert not (tmp_path / "card").exists()


def test_the_checksum_is_that_of_the_newest_intact_checkpoint(run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    expected = weights_digest(run)
    broken = copy / "checkpoints" / "step-00000009"
    shutil.copytree(copy / "checkpoints" / "step-00000006", broken)
    (broken / "checkpoint.index").write_bytes((broken / "checkpoint.index").read_bytes()[:50])
    assert weights_digest(copy) == expected
    assert "step-00000009 is damaged" in capsys.readouterr().err
    with saving(copy / "checkpoints", 9) as beside:
        (beside / "checkpoint.index").write_bytes(b"not TensorFlow's")
    with pytest.raises(UsageError, match="step-00000009 is not a TensorFlow checkpoint"):
        weights_digest(copy)
    shutil.rmtree(copy / "checkpoints")
    assert weights_digest(copy) is None


def test_bad_input_is_one_sentence(run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "README.md").write_text("mine")
    unfinished, other = tmp_path / "unfinished", tmp_path / "other"
    for folder, program in ((unfinished, "trainers.cifar"), (other, "trainers.landscape")):
        folder.mkdir()
        config = json.loads((run / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "program": program}))
    for arguments, message in (
        ([run, "--out", tmp_path / "thesis"], "exists and is not a folder of this program"),
        ([unfinished], "is not finished. Finish it: python -m trainers.cifar --resume --out"),
        ([other], "is not a run of trainers.cifar or trainers.imagenet"),
        ([tmp_path], "is not a run"),
        ([run, "--repository", "name"], "--repository must be USER/NAME of letters"),
        ([run, "--license", "mine\u202e"], "--license must be an identifier of letters"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            main(list(map(str, arguments)))
    assert (tmp_path / "thesis" / "README.md").read_text() == "mine"
