"""End-to-end tests of `trainers.cifar`: kills, signals, resuming, divergence, export."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.callbacks import load_weights
from idmatters_tf.checkpointing import list_steps
from idmatters_tf.data import shapes
from tests.conftest import ROOT
from tests.support.processes import Forked, assert_same_run, records, run_forked, wait_until
from tests.support.programs import run_here
from trainers.cifar import PROGRAM
from trainers.run.folder import Run
from trainers.training.settings import Task, recorded_settings

# Enough that a signal arrives before the end of a run.
STEPS = 360
TINY = ["--dataset", "shapes", "--train-images", 500, "--test-images", 100, "--blocks", 1, "--stem", 4]
TINY += ["--widths", 4, "--batch-size", 16, "--initializer", "standard", "--steps", STEPS, "--drop-steps", 240]
TINY += ["--log-every", 5, "--evaluate-every", 180, "--checkpoint-every", 10]


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """Return the folder and the output of a run that diverges."""
    run = tmp_path_factory.mktemp("runs") / "diverged"
    other = ["--seed", 5, "--train-images", 30, "--learning-rate", 1e4, "--checkpoint-every", 100]
    other += ["--log-every", 10, "--evaluate-every", 10]
    return run, run_here("trainers.cifar", *TINY, *other, "--out", run)


@pytest.fixture(scope="module")
def whole(diverged, tmp_path_factory):
    """Return an uninterrupted run for comparison, the second one in this process, and its output."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    done = run_here("trainers.cifar", *TINY, "--out", run, code=0)
    return run, done.stdout + done.stderr


def test_a_diverged_run_reports_its_step_and_a_remedy(diverged):
    run, ended = diverged
    assert ended.returncode == 1
    assert "no longer finite at step" in ended.stderr
    assert "--clip-norm 1" in ended.stderr
    assert "Traceback" not in ended.stderr
    # Divergence is detected before the evaluation.
    assert not (run / "checkpoints").exists()
    assert all(np.isfinite(record["loss"]) for record in records(run) if record["kind"] == "test")


def test_files_and_records_of_a_run(whole):
    run, output = whole
    result = json.loads((run / "result.json").read_text())
    config = json.loads((run / "config.json").read_text())
    assert f"last {100 * result['last_error']:.2f} %" in output
    assert config["settings"]["steps"] == STEPS
    tests = [record for record in records(run) if record["kind"] == "test"]
    assert [record["step"] for record in tests] == [0, 180, 360]
    assert result["best_error"] == min(record["error"] for record in tests[1:])
    assert set(tests[0]["norms"]["blocks"]) == {"stage1_block1"}
    train = [record for record in records(run) if record["kind"] == "train"]
    assert train[0]["learning_rate"] == pytest.approx(0.05)
    assert train[-1]["learning_rate"] == pytest.approx(0.005)
    assert train[-1]["loss"] < train[0]["loss"]
    assert list_steps(run / "checkpoints") == [340, 350, 360]
    assert (run / "convergence.png").read_bytes()[:4] == b"\x89PNG"
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


def load_events(run):
    """Return the TensorBoard points of a run by the names of their folders."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return {name: EventAccumulator(str(run / "events" / name)).Reload() for name in ("", "train", "test")}


def test_tensorboard_shows_scalars_and_images(whole):
    loaded = load_events(whole[0])
    tags = {run: set(events.Tags()["tensors"]) for run, events in loaded.items()}
    assert tags["test"] == {"loss", "top1_error"}
    optimization = {"optimization/gradient_norm", "optimization/learning_rate"}
    assert tags["train"] == tags["test"] | optimization | {"speed/images_per_second"}
    expected = {"norms/mean_frobenius", "norms/largest_spectral", "norms_frobenius/stage1_block1"}
    expected |= {"norms_spectral/stage1_block1"}
    assert expected <= tags[""]
    assert [event.step for event in loaded["test"].Tensors("top1_error")] == [0, 180, 360]


def test_a_run_resumes_bit_for_bit_after_kills_and_signals(whole, tmp_path, without_exports):
    """Test kills, signals, damaged checkpoints and a second process with the same folder.

    The uninterrupted run was made in a process that had trained another network before.
    """
    run = tmp_path / "run"
    step = 0
    chance = random.Random(0)
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        process = Forked(["trainers.cifar", *(["--resume"] if number == signal.SIGKILL else TINY), "--out", run])
        # When the second checkpoint is due, the write of the first one in the background is complete.
        wait_until(process, run, step + 25)
        if number == signal.SIGKILL:
            time.sleep(0.1 * chance.random())
        process.send_signal(number)
        output, _ = process.communicate(timeout=900)
        # The checkpoint of SIGTERM.
        assert ("is damaged" in output) == (number == signal.SIGKILL)
        assert "Traceback" not in output
        newest = list_steps(run / "checkpoints")[-1]
        assert newest > step
        step = newest
        if number == signal.SIGKILL:
            assert process.returncode == -number, output
            continue
        assert process.returncode == 128 + number, output
        assert f"stopped by {number.name}; saved" in output
        data = run / "checkpoints" / f"step-{step:08d}" / "arrays.npy"
        data.write_bytes(data.read_bytes()[:100])
    process = Forked(["trainers.cifar", *TINY, "--out", run])
    wait_until(process, run, step + 5)
    # A second process on the same folder ends with an error, and the first continues.
    process.send_signal(signal.SIGSTOP)
    second = run_forked("trainers.cifar", "--resume", "--out", run)
    process.send_signal(signal.SIGCONT)
    assert second.returncode == 2, second.stderr
    assert "is in use by another process" in second.stderr
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert f"step-{step:08d} is damaged" in output
    assert "resuming from step" in output
    assert_same_run(run, whole[0])
    kept = [(r["kind"], r["step"], r["loss"], r["error"]) for r in records(run)]
    assert kept == [(r["kind"], r["step"], r["loss"], r["error"]) for r in records(whole[0])]
    assert not (run / ".lock").exists()


def test_evaluate_and_export_again(whole, tmp_path):
    run = whole[0]
    result = run_here("trainers.cifar", "--evaluate", run)
    last = json.loads((run / "result.json").read_text())["last_error"]
    assert result.returncode == 0, result.stderr
    assert f"step {STEPS}: test error {100 * last:.2f} %" in result.stdout
    before = shutil.move(run / "model.keras", tmp_path / "before.keras")
    done = run_here("trainers.cifar", "--export-only", run, code=0)
    assert f"{run}, step {STEPS}:" in done.stdout
    first, again = (keras.saving.load_model(path) for path in (before, run / "model.keras"))
    for one, other in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_killed_after_its_last_checkpoint_is_finished_by_resume(whole, tmp_path):
    run = tmp_path / "cut"
    shutil.copytree(whole[0], run)
    for name in ("result.json", "model.keras", "convergence.png"):
        (run / name).unlink()
    done = run_here("trainers.cifar", "--resume", "--out", run, code=0)
    assert "ExactResume" not in done.stderr
    assert (run / "result.json").read_text() == (whole[0] / "result.json").read_text()
    assert (run / "model.keras").exists()
    assert (run / "convergence.png").exists()


def test_exports_agree_in_a_new_process(whole, tmp_path):
    run = whole[0]
    images = np.random.default_rng(6).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    code = f"""
import sys, numpy as np
import tensorflow as tf
loaded = tf.saved_model.load({str(run / "saved_model")!r})
images = np.load('images.npy')
answers = loaded.signatures['serving_default'](images=tf.constant(images))
logits = loaded.signatures['logits'](images=tf.constant(images))
assert 'idmatters_tf.layers' not in sys.modules
names = answers.pop('name').numpy().astype('S')
np.savez('served.npz', other=list(logits.values())[0], name=names, **answers)

import keras, idmatters_tf.layers
model = keras.saving.load_model({str(run / "model.keras")!r}, safe_mode=True)
np.save('keras.npy', model.predict(np.load('images.npy'), verbose=0))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, timeout=900, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    served, from_keras = np.load(tmp_path / "served.npz"), np.load(tmp_path / "keras.npy")
    np.testing.assert_allclose(served["logits"], from_keras, atol=1e-5)
    np.testing.assert_allclose(served["other"], from_keras, atol=1e-5)
    np.testing.assert_allclose(served["probabilities"], tf.nn.softmax(from_keras), atol=1e-5)
    np.testing.assert_array_equal(served["label"], from_keras.argmax(axis=1))
    assert [name.decode() for name in served["name"]] == [list(shapes.CLASSES)[label] for label in served["label"]]
    # Compare with the trained network, with standardization by TensorFlow's function.
    task = Task(PROGRAM.name, recorded_settings(PROGRAM.name, Run(run)), Run(run))
    network = task.build_network((32, 32, 3), 10)
    load_weights(network, run / "checkpoints")
    standardized = tf.image.per_image_standardization(tf.cast(images, tf.float32))
    np.testing.assert_allclose(network.predict(standardized, verbose=0), from_keras, atol=1e-4)
