import json
import re
import signal
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support.processes import run_steps
from tests.support.programs import run_script

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("layers_in_your_model", "--epochs 1 --images 300", "the reloaded and the exported model give the same logits"),
        ("curvature_of_your_model", "--epochs 1 --images 60", "exactly: Summary(max_abs="),
        ("depth_of_your_model", "--depths 1 --images 4", "near_identity       1 "),
        ("deepen_a_trained_model", "--epochs 1 --images 100", "without "),
        ("edge_of_stability", "--images 20 --every 2 --networks identity --steps 2", "identity       step     2: loss"),
        ("watch_training", "--epochs 1 --images 128", "\n    1 "),
    ],
)
def test_examples_run(name, options, expected, tmp_path):
    out = [] if name == "depth_of_your_model" else ["--out", tmp_path]
    assert expected in run_script(EXAMPLES / f"{name}.py", *options.split(), *out)
    assert any(tmp_path.iterdir()) == bool(out)


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
def test_resume_your_fit(tmp_path):
    options = ["--out", str(tmp_path), "--epochs", "4", "--images", "640"]
    command = [sys.executable, "examples/resume_your_fit.py", *options]
    killed = subprocess.run([*command, "--kill-after", "30"], cwd=ROOT, capture_output=True, timeout=900, check=False)
    assert killed.returncode == -signal.SIGKILL
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    assert "began at batch 20; weights, optimizer and history: " in result.stdout


TINY_TEXT = "--every 2 --batch-size 2 --sequences 2 --width 8"


def test_compare_optimizers_on_text_adds_missing_runs(tmp_path):
    script = EXAMPLES / "compare_optimizers_on_text.py"
    options = f"{TINY_TEXT} --steps 4 --layers 1 --seeds 0 --optimizers muon --out {tmp_path} --rates 0.001".split()
    run_script(script, *options)
    first = (tmp_path / "runs.csv").read_text()
    said = run_script(script, *options, "0.002")
    assert re.findall(r"muon +rate (\S+), seed 0: validation loss 5\.\d+ after 4 steps", said) == ["0.002"]
    both = (tmp_path / "runs.csv").read_text()
    assert both.startswith(first)
    assert len(both.splitlines()) == 1 + 2 * 2
    assert (tmp_path / "optimizers-on-text.png").exists()


def test_compare_optimizers_on_text_table(tmp_path):
    """Finished runs give the best rate, and the steps and the loss in AdamW's time."""
    # Optimizer, rate, seed, steps, final seconds and loss. The run of 50 steps has a schedule of its own.
    runs = [
        ("adamw", 0.001, 0, 100, 40, 2.25),
        ("muon", 0.001, 0, 100, 50, 2.0),
        ("muon", 0.003, 0, 100, 72, 1.5),
        ("muon", 0.003, 1, 100, 72, 1.75),
        ("muon", 0.01, 0, 100, 72, "nan"),
        ("muon", 0.003, 0, 50, 36, 2.5),
    ]
    lines = ["header"]
    for name, rate, seed, steps, seconds, loss in runs:
        run = f"{name},{rate},{seed},{steps},32"
        lines += [f"{run},25,10,5,5", f"{run},{steps},{seconds},2,{loss}"]
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    said = run_script(EXAMPLES / "compare_optimizers_on_text.py", *f"--plot-only --steps 100 --out {tmp_path}".split())
    assert "| AdamW | 0.001 | 2.250 (2.250) | 400 | 100 | 2.250 (2.250) |" in said
    assert "| Muon of this package | 0.003 | 1.625 (1.500, 1.750) | 720 | 50 | 2.500 (2.500) |" in said
    assert "| Muon of this package | 0.01 | inf (inf) |" in said


@pytest.mark.slow
def test_grow_a_language_model(tmp_path):
    script = EXAMPLES / "grow_a_language_model.py"
    options = f"{TINY_TEXT} --steps 2 2 2 --further 2 --out {tmp_path}".split()
    said = run_script(script, *options)
    table = np.genfromtxt(tmp_path / "influence.csv", delimiter=",", skip_header=1, usecols=(1, 4, 5), dtype=str)
    removed = table[:, 2] == "True"
    assert len(table) == 8
    assert removed.sum() == 2
    sizes = table[:, 0].astype(float)
    assert sizes[removed].max() < sizes[~removed].min()
    assert re.search(r"\n8 layers +5\.\d+ +5\.\d+\n6 layers +5\.\d+ +5\.\d+\n", said)
    assert (tmp_path / "grown-gpt.png").exists()
    # The second call reads all trainings with their durations, and trains no step.
    assert run_script(script, *options) == said


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


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
def test_cifar_with_fit(backend, tmp_path):
    if backend == "jax":
        pytest.importorskip("jax")
    options = "--dataset shapes --blocks 1 --widths 16 16 --batch-size 16 --steps 4 --every 2"
    words = [str(EXAMPLES / "cifar_with_fit.py"), *options.split(), "--out", str(tmp_path / "run")]
    said = run_steps([["script", f"import sys\nsys.argv = {words}\n{CIFAR_WITH_FIT}"]], tmp_path, backend)
    losses = [float(loss) for loss in re.findall(r" loss: (\S+)", said)]
    assert len(losses) == 2
    # The last layer is random, so that the initial loss is near that of a random guess.
    assert losses[0] == pytest.approx(np.log(10), rel=0.1)
    assert re.search(r"test error \d+\.\d\d % after 4 steps", said)
