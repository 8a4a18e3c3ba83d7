"""End-to-end tests of training on a folder of images, in separate processes."""

import json

import pytest
import tensorflow as tf

from tests.support.images import make_tree
from tests.support.processes import assert_same_run, cut_back, records, run_forked
from tests.support.programs import run_here
from trainers.datasets import Folder, FolderInMemory
from trainers.imagenet import PROGRAM
from trainers.training.settings import Recipe
from trainers.training.train import find_drop_steps

SMALL = ["--size", 24, "--blocks", 1, "--widths", 4, "--stem", 4, "--batch-size", 8, "--initializer", "standard"]
SMALL += ["--learning-rate", 0.05, "--clip-norm", 1, "--log-every", 5, "--augment", "standard"]
LONG = [*SMALL, "--steps", 15, "--evaluate-every", 15, "--checkpoint-every", 5]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Create a folder of 60 classes, so that the top-5 error is measured."""
    return make_tree(tmp_path_factory.mktemp("images"), classes=60, each=1)


def test_a_run_resumes_within_an_epoch_bit_for_bit(tree, tmp_path, without_exports):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    done = run_here("trainers.imagenet", "--data-dir", tree, *LONG, "--out", whole, code=0)
    assert "60 + 60 images of 60 classes" in done.stderr
    result = json.loads((whole / "result.json").read_text())
    (_, last) = [record for record in records(whole) if record["kind"] == "test"]
    assert last["count"] == 60
    assert last["top5_error"] == result["last_top5_error"] < last["error"]
    # 2 epochs of 60 images in batches of 8 are 15 steps: no decay; the rate is that of the first step.
    assert records(whole)[-2]["learning_rate"] == pytest.approx(0.05)
    assert cut_back(whole, resumed) * 8 % 60
    done = run_forked("trainers.imagenet", "--resume", "--out", resumed)
    assert done.returncode == 0, done.stderr
    assert_same_run(resumed, whole)


@pytest.mark.slow
def test_broken_files_are_reported_or_skipped(tree, tmp_path):
    short = [*SMALL, "--steps", 10, "--evaluate-every", 10, "--data-dir", tree]
    extra = tree / "train" / "n07" / "broken.JPEG"
    extra.write_bytes((tree / "train" / "n07" / "7_0.JPEG").read_bytes()[:150])
    try:
        named = run_here("trainers.imagenet", *short, "--out", tmp_path / "named", code=1)
        assert f"{extra} cannot be read as a JPEG or PNG image. Replace it, or skip" in named.stderr
        assert "Traceback" not in named.stderr
        one = run_here("trainers.imagenet", *short, "--skip-broken", "--out", tmp_path / "one", code=0)
        assert f"skipped: {extra}" in one.stderr
        assert "60 + 60 images of 60 classes, 1 broken image skipped" in one.stderr
    finally:
        extra.unlink()


def test_a_broken_image_in_memory_is_named(tree, tmp_path):
    extra = tree / "train" / "n07" / "broken.JPEG"
    extra.write_bytes(b"no image")
    arguments = ["--dataset", "folder-in-memory", "--data-dir", tree, "--augment", "none", "--out", tmp_path / "a"]
    try:
        done = run_here("trainers.imagenet", *SMALL, *arguments, code=2)
    finally:
        extra.unlink()
    remedy = "Replace it, or skip all broken images with --skip-broken and another --out."
    assert done.stderr == f"error: {extra} cannot be read as a JPEG or PNG image. {remedy}\n"


def test_files_that_are_not_read_are_named_also_in_memory(tmp_path):
    data = make_tree(tmp_path / "images", classes=2, each=4)
    (data / "train" / "n01" / "notes.txt").write_text("not an image")
    (data / "train" / "n01" / "broken.jpe").write_text("not an image")
    for kind in (Folder, FolderInMemory):
        options = kind(data_dir=str(data), size=24, skip_broken=True)
        assert options.counts == (8, 8)
        assert options.note == " of 2 classes, 1 broken image skipped, not read as images: 1 (n01/notes.txt)"


@pytest.mark.parametrize(("augment", "area"), [("standard", 0.08), ("large-crops", 0.35)])
def test_crops_of_images_in_files_have_a_least_area(augment, area, tree):
    options = Folder(data_dir=str(tree), size=24, augment=augment)
    batches = options.train_batches(4, 0)
    found = batches.augmentation, batches.smallest_area, options.test_batches(4).augmentation
    assert found == ("standard", area, "standard")


def test_images_that_are_moved_during_the_training(tmp_path):
    data = make_tree(tmp_path / "images", classes=2, each=4)
    options = Folder(dataset="folder", data_dir=str(data), size=24)
    batches = options.train_batches(4, 0)
    data.rename(tmp_path / "moved")
    with pytest.raises(tf.errors.NotFoundError) as raised:
        batches.batch(0)
    message = options.explain(raised.value)
    assert message.startswith(f"{data}/train/n0")
    assert message.endswith("was not found. Restore it, or pass the new folder of the data as --data-dir.")


def test_the_rate_decays_every_two_epochs_as_in_the_paper():
    drops = find_drop_steps(PROGRAM.resolve().recipe, 1_281_167)
    # A decay at the first step after 2, 4, ... epochs.
    assert (drops[0], drops[1], len(drops)) == (10_010, 20_019, 69)
    for steps, expected in ((10, (5,)), (5, ())):
        recipe = Recipe(steps=steps, batch_size=20, schedule="decay")
        assert find_drop_steps(recipe, 50) == expected
