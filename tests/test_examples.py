import json
import os
import signal
import subprocess
import sys

from tests.conftest import ROOT
from tests.support.programs import run_script

EXAMPLES = ROOT / "examples"


def test_draw_shapes(tmp_path):
    command = [sys.executable, "examples/draw_shapes.py", "--out", tmp_path / "shapes.png"]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=True)
    assert (tmp_path / "shapes.png").read_bytes()[:4] == b"\x89PNG"


def test_layers_in_your_model(tmp_path):
    options = ["--out", tmp_path, "--epochs", 1, "--images", 300]
    said = run_script(EXAMPLES / "layers_in_your_model.py", *options)
    assert "the reloaded and the exported model give the same logits" in said
    assert "ResidualConv2D" in said
    assert {path.name for path in tmp_path.iterdir()} >= {"best.keras", "model.keras", "saved_model"}


def test_factorize_a_matrix(tmp_path):
    (tmp_path / "R.txt").write_text("2 1\n-1 1\n")
    command = [sys.executable, "examples/factorize_a_matrix.py", tmp_path / "R.txt", "--depths", "4", "50"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    norm, lower, theorem, error = (float(word) for word in result.stdout.splitlines()[-1].split()[1:])
    assert lower <= norm < theorem
    assert error < 1e-13


def test_certificate_along_descent():
    command = [sys.executable, "examples/certificate_along_descent.py", "--steps", "20"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    for line in result.stdout.splitlines()[1:]:
        _, _, tau, squared_gradient, certified = (float(word) for word in line.split())
        assert tau < 1
        assert certified <= squared_gradient


def test_curvature_of_your_model(tmp_path):
    said = run_script(EXAMPLES / "curvature_of_your_model.py", "--out", tmp_path, "--epochs", 1, "--images", 60)
    assert "exactly: Summary(max_abs=" in said
    assert (tmp_path / "density.png").read_bytes()[:4] == b"\x89PNG"


def test_deepen_a_trained_model(tmp_path):
    said = run_script(EXAMPLES / "deepen_a_trained_model.py", "--out", tmp_path, "--epochs", 1, "--images", 100)
    trained, deepened, *_ = said.splitlines()
    assert trained.split(",")[-2:] == deepened.split(",")[-2:]
    assert "without " in said
    assert (tmp_path / "deeper.keras").exists()


def test_edge_of_stability(tmp_path):
    options = ["--out", tmp_path, "--images", 20, "--every", 2, "--networks", "identity"]
    first = run_script(EXAMPLES / "edge_of_stability.py", *options, "--steps", 2)
    assert "identity       step     2: loss" in first
    # The same command with more steps goes on where that one ended.
    second = run_script(EXAMPLES / "edge_of_stability.py", *options, "--steps", 4)
    assert "identity       step     4: loss" in second
    assert "identity       step     2: loss" not in second
    assert "identity, end: " in second
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"coupling-identity-start.png", "coupling-identity-end.png", "couplings.png", "sharpness.png"}
    table = (tmp_path / "sharpness-identity.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table] == ["step", "0", "2", "4"]


def test_first_steps_notebook(tmp_path):
    """Its cells one after the other, without Jupyter."""
    notebook = json.loads((ROOT / "examples" / "first_steps.ipynb").read_text())
    assert notebook["nbformat"] == 4
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    code += "\nassert history.history['val_accuracy'][-1] > 0.2"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr


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
    # The second time everything is there.
    assert {path.name for path in tmp_path.iterdir()} == {"fixup-1.json", "isometry-blocks.png", "results.md"}


def test_resume_your_fit(tmp_path):
    options = ["--out", str(tmp_path), "--epochs", "2", "--images", "1500"]
    command = [sys.executable, "examples/resume_your_fit.py", *options]
    killed = subprocess.run([*command, "--kill-after", "30"], cwd=ROOT, capture_output=True, timeout=240, check=False)
    assert killed.returncode == -signal.SIGKILL
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert "began at batch 20; weights, optimizer and history: " in result.stdout
