import argparse
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from unittest import mock

import keras
import matplotlib
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support.processes import run_steps
from tests.support.programs import run_script

EXAMPLES = ROOT / "examples"


def test_draw_shapes(tmp_path):
    run_script(EXAMPLES / "draw_shapes.py", "--out", tmp_path / "shapes.png")
    assert (tmp_path / "shapes.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_layers_in_your_model(tmp_path):
    options = ["--out", tmp_path, "--epochs", 1, "--images", 300]
    said = run_script(EXAMPLES / "layers_in_your_model.py", *options)
    assert "the reloaded and the exported model give the same logits" in said
    assert "ResidualConv2D" in said
    assert {path.name for path in tmp_path.iterdir()} >= {"best.keras", "model.keras", "saved_model"}


def test_factorize_a_matrix(tmp_path):
    (tmp_path / "R.txt").write_text("2 1\n-1 1\n")
    said = run_script(EXAMPLES / "factorize_a_matrix.py", tmp_path / "R.txt", "--depths", 4, 50)
    norm, lower, theorem, error = (float(word) for word in said.splitlines()[-1].split()[1:])
    assert lower <= norm < theorem
    assert error < 1e-13


@pytest.mark.slow
def test_curvature_of_your_model(tmp_path):
    said = run_script(EXAMPLES / "curvature_of_your_model.py", "--out", tmp_path, "--epochs", 1, "--images", 60)
    assert "exactly: Summary(max_abs=" in said
    assert (tmp_path / "density.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_deepen_a_trained_model(tmp_path):
    said = run_script(EXAMPLES / "deepen_a_trained_model.py", "--out", tmp_path, "--epochs", 1, "--images", 100)
    trained, deepened, *_ = said.splitlines()
    assert trained.split(",")[-2:] == deepened.split(",")[-2:]
    assert "without " in said
    assert (tmp_path / "deeper.keras").exists()


@pytest.mark.slow
def test_edge_of_stability(tmp_path):
    options = ["--out", tmp_path, "--images", 20, "--every", 2, "--networks", "identity"]
    first = run_script(EXAMPLES / "edge_of_stability.py", *options, "--steps", 2)
    assert "identity       step     2: loss" in first
    # The same command with more steps resumes the run.
    second = run_script(EXAMPLES / "edge_of_stability.py", *options, "--steps", 4)
    assert "identity       step     4: loss" in second
    assert "identity       step     2: loss" not in second
    assert "identity, end: " in second
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"coupling-identity-start.png", "coupling-identity-end.png", "couplings.png", "sharpness.png"}
    table = (tmp_path / "sharpness-identity.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table] == ["step", "0", "2", "4"]


@pytest.mark.slow
def test_first_steps_notebook(tmp_path, monkeypatch):
    """Run the cells one after the other, without Jupyter."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "first_steps.ipynb").read_text())
    assert notebook["nbformat"] == 4
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    matplotlib.use("agg")
    namespace = {}
    exec(compile(code, "first_steps.ipynb", "exec"), namespace)
    assert namespace["history"].history["val_accuracy"][-1] > 0.2


@pytest.mark.slow
def test_watch_training(tmp_path):
    said = run_script(EXAMPLES / "watch_training.py", "--out", tmp_path, "--epochs", 1, "--images", 128)
    assert said.splitlines()[2].startswith("    1 ")
    assert (tmp_path / "distances.png").read_bytes()[:4] == b"\x89PNG"


def test_isometry_against_depth(tmp_path):
    options = ["--out", tmp_path, "--depths", 1, "--kinds", "fixup", "--widths", 2, 2, 2, "--images", 64, "--steps", 2]
    for _ in range(2):
        lines = run_script(EXAMPLES / "isometry_against_depth.py", *options).splitlines()
        assert "start: ||J - I|| 0.00e+00 to 0.00e+00" in lines[0]
        assert "after: ||J - I||" in lines[1]
    # The second run reads the saved results.
    assert {path.name for path in tmp_path.iterdir()} == {"fixup-1.json", "isometry-blocks.png", "results.md"}


def test_encoding_of_columns(tmp_path):
    """Compare the features of a table with text with those encoded by hand."""
    with mock.patch.object(sys, "path", [str(EXAMPLES), *sys.path]):
        example = runpy.run_path(str(EXAMPLES / "memorize_your_data.py"))
    path = tmp_path / "table.csv"
    path.write_text('size,colour,kind\n1.5,red,a\n-2,"dark, blue",b\n1e1,red,a\n')
    x, labels, names = example["read_csv"](path, None)
    np.testing.assert_array_equal(x, [[1.5, 0, 1], [-2, 1, 0], [10, 0, 1]])
    assert list(names[labels]) == ["a", "b", "a"]
    x, labels, names = example["read_csv"](path, "size")
    np.testing.assert_array_equal(x, [[0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]])
    for text, message in {
        "a,b\n1,x\n,y\n": "column a has both numbers and text, such as ''",
        "a,b\n1,x\n2\n": "row 3 has 1 cells, the header has 2",
    }.items():
        path.write_text(text)
        with pytest.raises(SystemExit, match=message):
            example["read_csv"](path, None)


@pytest.mark.slow
def test_resume_your_fit(tmp_path):
    options = ["--out", str(tmp_path), "--epochs", "4", "--images", "640"]
    command = [sys.executable, "examples/resume_your_fit.py", *options]
    killed = subprocess.run([*command, "--kill-after", "30"], cwd=ROOT, capture_output=True, timeout=240, check=False)
    assert killed.returncode == -signal.SIGKILL
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert "began at batch 20; weights, optimizer and history: " in result.stdout


# Run the example without TensorFlow on JAX, and end the process by SIGKILL before a given training step.
CIFAR_WITH_FIT = """
import functools, os, runpy, signal, sys
_, kill_at, *sys.argv = sys.argv
class NoTensorFlow:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tensorflow"):
            raise ModuleNotFoundError(name, name=name)
if os.environ["KERAS_BACKEND"] == "jax":
    sys.meta_path.insert(0, NoTensorFlow())
from idmatters_tf.callbacks import FunctionBatches
from idmatters_tf.data import shapes
shapes.load = functools.partial(shapes.load, 200, 100)
uninterrupted = FunctionBatches.batch
def batch(self, step):
    if step == int(kill_at):
        os.kill(os.getpid(), signal.SIGKILL)
    return uninterrupted(self, step)
FunctionBatches.batch = batch
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def cifar_with_fit(backend, folder, *options, kill_at=-1):
    example = str(EXAMPLES / "cifar_with_fit.py")
    small = ["--dataset", "shapes", "--blocks", "1", "--stem", "4", "--widths", "4", "8", "--batch-size", "16"]
    words = ["-c", str(kill_at), example, *small, *map(str, options)]
    if backend == "tensorflow":
        return run_steps([["script", f"import sys\nsys.argv = {words}\n{CIFAR_WITH_FIT}"]], folder)
    command = [sys.executable, "-c", CIFAR_WITH_FIT, *words[1:]]
    env = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == (-signal.SIGKILL if kill_at >= 0 else 0), done.stderr
    return done.stdout


def test_cifar_with_fit_on_tensorflow(tmp_path):
    """Train with the paper's recipe and two steps per execution."""
    steps = ["--steps", 4, "--evaluate-every", 2, "--steps-per-execution", 2, "--drop-steps", 2]
    options = ["--preset", "paper", "--precision", "bfloat16", *steps, "--out", tmp_path / "run"]
    said = cifar_with_fit("tensorflow", tmp_path, *options)
    losses = [float(loss) for loss in re.findall(r" loss: (\S+)", said)]
    assert len(losses) == 2
    # The last layer is random, so that the initial loss is near that of a random guess.
    assert losses[0] == pytest.approx(np.log(10), rel=0.1)
    assert re.search(r"test error \d+\.\d\d % after 4 steps", said)


@pytest.mark.slow
def test_cifar_with_fit_resumes_bit_for_bit_on_jax(tmp_path):
    """Train the fast preset without TensorFlow."""
    pytest.importorskip("jax")
    options = ["--preset", "fast", "--precision", "float32", "--steps", 6, "--evaluate-every", 6, "--warm-up-steps", 1]
    options += ["--checkpoint-every", 2]
    whole = cifar_with_fit("jax", tmp_path, *options, "--out", tmp_path / "whole")
    cifar_with_fit("jax", tmp_path, *options, "--out", tmp_path / "resumed", kill_at=5)
    assert [path.name for path in (tmp_path / "resumed" / "checkpoints").glob("step-*4")] == ["step-00000004"]
    resumed = cifar_with_fit("jax", tmp_path, *options, "--out", tmp_path / "resumed")
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]
    expected, found = (keras.saving.load_model(tmp_path / run / "model.keras") for run in ("whole", "resumed"))
    assert any(np.any(weight) for weight in expected.get_weights())
    for one, other in zip(expected.get_weights(), found.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_batches_of_cifar_with_fit():
    """Each batch is a function of the step, of crops and flips of the padded images."""
    with mock.patch.object(sys, "path", [str(EXAMPLES), *sys.path]):
        example = runpy.run_path(str(EXAMPLES / "cifar_with_fit.py"))
    rng = np.random.default_rng(0)
    images, targets = rng.integers(0, 256, (20, 8, 8, 3), np.uint8), np.eye(20, dtype="float32")
    options = argparse.Namespace(
        seed=1, batch_size=8, augment="paper", padding_mode="zero", flips="alternate", cutout=0
    )
    batch = example["make_batch_function"](images, targets, options)
    seen = np.concatenate([batch(step)[1].argmax(1) for step in range(5)])
    np.testing.assert_array_equal(np.sort(seen.reshape(2, 20)), [np.arange(20)] * 2)
    flips = np.zeros(20)
    for step in range(5):
        chosen, labels = batch(step)
        np.testing.assert_array_equal(chosen, batch(step)[0])
        for image, label in zip(chosen, labels.argmax(1), strict=True):
            padded = np.pad(images[label].astype("float32"), ((2, 2), (2, 2), (0, 0)))
            windows = {
                (i, j, flip): padded[i : i + 8, j : j + 8][:, ::flip] for i, j in np.ndindex(5, 5) for flip in (1, -1)
            }
            matching = [
                place
                for place, window in windows.items()
                if np.allclose(image, (window - window.mean()) / window.std(), atol=1e-4)
            ]
            assert len(matching) == 1
            flips[label] += matching[0][2]
    # One of each image's two epochs is flipped.
    np.testing.assert_array_equal(flips, 0)
    options.cutout = 4
    erased = (example["make_batch_function"](images, targets, options)(0)[0] == 0).all(-1).sum((1, 2))
    assert erased.min() >= 4
    assert erased.max() == 16
