"""The frame of experiments: folder of the run, cases, tables, figures, verdicts; and `trainers.expressivity`."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

import idmatters_tf.expressivity  # noqa: F401 - registers what the loaded model is made of
from idmatters_tf.data import shapes
from tests.support.programs import run_here, run_in_process
from trainers.cli.arguments import UsageError
from trainers.cli.settings import group, setting
from trainers.experiments.panels import line, panel_for_each
from trainers.experiments.program import ExperimentProgram, RunSettings, Verdict, is_finished
from trainers.run.folder import Run

DATA = {"origin": "", "digest": "1"}


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    size: int
    value: float | None


@dataclasses.dataclass(frozen=True)
class SizeSettings:
    sizes: tuple[int, ...] = setting(help="sizes", may_be_empty=True)


@dataclasses.dataclass(frozen=True)
class Settings:
    sizes: SizeSettings = group(SizeSettings, "sizes")
    run: RunSettings = group(RunSettings, "run", out="runs/x")


ROWS = [Row("a", 1, 0.5), Row("a", 2, None), Row("b", 1, 1e-9)]


def panel(axes, rows):
    line(axes, rows, "size", "value", label="value")


def measure(settings, results):
    results.start("made", np.arange(3.0))
    figures = {"first": lambda rows: panel_for_each(rows, "name", panel, label="value", most=2)}
    results.report(
        "measured",
        lambda size: [row for row in ROWS if row.size == size],
        zip(settings.sizes.sizes),
        figures,
        lambda rows: [Verdict(rows[0].name, len(rows) > 1, "rows", {"count": len(rows)})],
        by="name",
    )
    results.add(Verdict("x", None, "in words"))


def test_a_program_measures_its_cases_and_writes_its_results(tmp_path, capsys):
    def run(*words):
        code, stderr = run_in_process(
            ExperimentProgram("x y", "", "", Settings, measure).main, *words, "--out", tmp_path / "run"
        )
        return code, capsys.readouterr().out + stderr

    code, output = run("--sizes", 1, 2, "--format", "svg")
    verdicts = ["SEEN: rows: count 2.", "NOT SEEN: rows: count 1.", "OPEN: in words."]
    assert code == 0
    assert "\n".join(verdicts) in output
    # The fields of the rows are the columns, and cells for None are empty.
    assert (tmp_path / "run/measured.csv").read_text() == "name,size,value\na,1,0.5\nb,1,1e-09\na,2,\n"
    assert "<svg" in (tmp_path / "run/first.svg").read_text()
    numbers = {"a": {"count": 2}, "b": {"count": 1}}
    expected = {"verdicts": verdicts, "tables": {"measured": 3}, "numbers": numbers}
    assert json.loads((tmp_path / "run/result.json").read_text()) == expected
    assert f"is finished. {' '.join(verdicts)} Use another --out" in run("--sizes", 1, 2)[1]
    code, output = run("--sizes", 1)
    assert code == 2
    assert "sizes was [1, 2], now [1]" in output
    shutil.rmtree(tmp_path / "run")
    assert "measured: skipped, no case applies" in run("--sizes", 7)[1]
    assert str(Verdict("x", None, "because")) == "OPEN: because."
    assert str(Verdict("x", True, "both", {"a": {"b": 1, "c": 2.0}})) == "SEEN: both: a (b 1, c 2)."


def test_a_stopped_run_is_resumed_with_its_settings(tmp_path):
    run = Run(tmp_path)
    assert not is_finished(run, {"depth": 3})
    run.start({"depth": 3}, DATA)
    assert not is_finished(run, {"depth": 3})
    with pytest.raises(UsageError, match="other settings: depth was 3, now 4"):
        is_finished(run, {"depth": 4})


def test_a_run_of_a_training_program_is_not_replaced(tmp_path):
    Run(tmp_path).start({}, DATA, "trainers.cifar")
    with pytest.raises(UsageError, match=r"is a run of trainers.cifar. Use another --out"):
        is_finished(Run(tmp_path), {})


def test_the_exported_memorizer_is_exact(monkeypatch, tmp_path):
    images = shapes.load(train=150, test=50)
    monkeypatch.setattr(shapes, "load", lambda *_: images)
    out = tmp_path / "run"
    options = ("--train-images", 120, "--labels", "random", "--width", 16)
    result = run_here("trainers.expressivity", *options, "--out", out, code=0)
    assert "SEEN: the network classifies all 120 rows" in result.stdout
    numbers = json.loads((out / "result.json").read_text())
    assert (numbers["loaded"]["correct"], numbers["blocks"]) == (120, 8)
    assert numbers["loaded"]["largest_error"] < 1e-6
    # Random labels do not generalize.
    assert numbers["test"]["accuracy"] < 0.2
    model = keras.saving.load_model(out / "model.keras")
    assert model.count_params() == numbers["parameters"]
    labels = np.random.default_rng(0).integers(0, 10, 120)
    x = images.train_images[:120].reshape(120, -1).astype(float)
    np.testing.assert_allclose(model(x), np.eye(10)[labels], atol=1e-6)

    rejected = run_here("trainers.expressivity", "--order", "paper", "--out", out, code=2)
    assert "argument --order: expected one of norm, ridge" in rejected.stderr
