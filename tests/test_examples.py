import argparse
import json
import re
import runpy
import signal
import subprocess
import sys
from unittest import mock

import matplotlib
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support.processes import run_steps
from tests.support.programs import run_script

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("name", "options", "expected", "files"),
    [
        ("draw_shapes", "--out OUT/shapes.png", "", ["shapes.png"]),
        pytest.param(
            "layers_in_your_model",
            "--out OUT --epochs 1 --images 300",
            "the reloaded and the exported model give the same logits",
            ["best.keras", "model.keras", "saved_model"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "curvature_of_your_model",
            "--out OUT --epochs 1 --images 60",
            "exactly: Summary(max_abs=",
            ["density.png"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "deepen_a_trained_model",
            "--out OUT --epochs 1 --images 100",
            "without ",
            ["deeper.keras"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "edge_of_stability",
            "--out OUT --images 20 --every 2 --networks identity --steps 2",
            "identity       step     2: loss",
            ["coupling-identity-start.png", "coupling-identity-end.png", "couplings.png", "sharpness.png"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "watch_training",
            "--out OUT --epochs 1 --images 128",
            "\n    1 ",
            ["distances.png"],
            marks=pytest.mark.slow,
        ),
        (
            "isometry_against_depth",
            "--out OUT --depths 1 --kinds fixup --widths 2 2 2 --images 64 --steps 2",
            "start: ||J - I|| 0.00e+00 to 0.00e+00",
            ["fixup-1.json", "isometry-blocks.png", "results.md"],
        ),
    ],
)
def test_examples_run(name, options, expected, files, tmp_path):
    output = run_script(EXAMPLES / f"{name}.py", *options.replace("OUT", str(tmp_path)).split())
    assert expected in output
    for file in files:
        assert (tmp_path / file).exists()


def test_factorize_a_matrix(tmp_path):
    (tmp_path / "R.txt").write_text("2 1\n-1 1\n")
    said = run_script(EXAMPLES / "factorize_a_matrix.py", tmp_path / "R.txt", "--depths", 4, 50)
    norm, lower, theorem, error = (float(word) for word in said.splitlines()[-1].split()[1:])
    assert lower <= norm < theorem
    assert error < 1e-13


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


# Run the example on little data, and on JAX without TensorFlow.
CIFAR_WITH_FIT = """
import functools, os, runpy, sys
class NoTensorFlow:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tensorflow"):
            raise ModuleNotFoundError(name, name=name)
if os.environ["KERAS_BACKEND"] == "jax":
    sys.meta_path.insert(0, NoTensorFlow())
from idmatters_tf.data import shapes
shapes.load = functools.partial(shapes.load, 200, 100)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("tensorflow", "--preset paper --precision bfloat16 --steps-per-execution 2 --drop-steps 2"),
        pytest.param("jax", "--preset fast --precision float32 --warm-up-steps 1", marks=pytest.mark.slow),
    ],
)
def test_cifar_with_fit(backend, options, tmp_path):
    if backend == "jax":
        pytest.importorskip("jax")
    options += " --dataset shapes --blocks 1 --stem 4 --widths 4 8 --batch-size 16 --steps 4 --evaluate-every 2"
    words = [str(EXAMPLES / "cifar_with_fit.py"), *options.split(), "--out", str(tmp_path / "run")]
    said = run_steps([["script", f"import sys\nsys.argv = {words}\n{CIFAR_WITH_FIT}"]], tmp_path, backend)
    losses = [float(loss) for loss in re.findall(r" loss: (\S+)", said)]
    assert len(losses) == 2
    # The last layer is random, so that the initial loss is near that of a random guess.
    assert losses[0] == pytest.approx(np.log(10), rel=0.1)
    assert re.search(r"test error \d+\.\d\d % after 4 steps", said)


def test_batches_of_cifar_with_fit():
    """Each batch is a function of the step, of crops and flips of the padded images."""
    with mock.patch.object(sys, "path", [str(EXAMPLES), *sys.path]):
        example = runpy.run_path(str(EXAMPLES / "cifar_with_fit.py"))
    rng = np.random.default_rng(0)
    images, targets = rng.integers(0, 256, (20, 12, 12, 3), np.uint8), np.eye(20, dtype="float32")
    options = argparse.Namespace(seed=1, batch_size=8, augment="alternating", cutout=0)
    batch = example["make_batch_function"](images, targets, options)
    seen = np.concatenate([batch(step)[1].argmax(1) for step in range(5)])
    np.testing.assert_array_equal(np.sort(seen.reshape(2, 20)), [np.arange(20)] * 2)
    flips = np.zeros(20)
    for step in range(5):
        chosen, labels = batch(step)
        np.testing.assert_array_equal(chosen, batch(step)[0])
        for image, label in zip(chosen, labels.argmax(1), strict=True):
            padded = np.pad(images[label].astype("float32"), ((4, 4), (4, 4), (0, 0)), "reflect")
            windows = {
                (i, j, flip): padded[i : i + 12, j : j + 12][:, ::flip] for i, j in np.ndindex(9, 9) for flip in (1, -1)
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
