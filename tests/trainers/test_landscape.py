"""Tests of `trainers.landscape` on small cases, and of the numbers of its experiments."""

import dataclasses
import json

import numpy as np
import pytest

from idmatters_tf import linear
from tests.support.programs import run_here
from trainers.experiments import program
from trainers.landscape import critical, descent, identity, projections, starts
from trainers.landscape.factorization import random_target

SMALL = ("--dim", 3, "--depths", 2, 8, "--steps", 12, "--seeds", 1, "--condition", 3)


def test_tables_figures_and_results_of_the_landscape(monkeypatch, tmp_path):
    # All figures are drawn. Rendering takes half of the time.
    monkeypatch.setattr(program, "save_figure", lambda figure, path: path)
    out = tmp_path / "run"
    result = run_here("trainers.landscape", *SMALL, "--out", out, code=0)
    assert json.loads((out / "result.json").read_text())["tables"] == {"factorization": 2, "descent": 156}
    for name in ("factorization", "descent"):
        assert f"{name}.csv, {out / name}.png" in result.stdout
        assert len((out / f"{name}.csv").read_text().splitlines()) > 2
    assert f"{out / 'certificate.png'}" in result.stdout
    rejected = run_here("trainers.landscape", *SMALL, "--width", 8, "--out", out, code=2)
    assert "--width is not an option of --experiment optima, but of --experiment projections, starts" in rejected.stderr


def test_descent_certifies_its_path_and_the_standard_network_stays():
    R = random_target(3, 2.0, 1, 0)
    by_network = {kind: list(descent.measure("R", R, 8, kind, 400, 40)) for kind in descent.STYLES}
    for row in by_network["residual from zero"]:
        assert row.inside
        assert row.bound <= row.per_layer_bound * (1 + 1e-12)
        assert row.per_layer_bound <= row.gradient * (1 + 1e-7)
    assert by_network["residual"][-1].risk < 1e-6 * by_network["residual"][0].risk
    assert by_network["standard"][-1].risk == pytest.approx(np.sum(R**2), rel=1e-6)
    # The first record is that of the risk itself.
    zero = linear.gradient_dominance(np.zeros((8, 3, 3)), R)
    assert by_network["residual from zero"][0].gradient == pytest.approx(zero.gradient_norm_squared)
    assert by_network["residual from zero"][0].bound == pytest.approx(zero.lower_bound)


@pytest.mark.parametrize(
    ("words", "tables"),
    [
        ("identity --dim 4 --targets 6 --depths 3 8 --steps 300", {"identity": 12}),
        ("projections --dim 4 --targets 6 --depths 1 4 --width 8", {"projections": 6}),
        ("projections --dim 2 --targets 4 --depths 1 --width 32 --maps gaussian", {"projections": 2}),
        ("regularized --dim 4 --targets 6 --depths 2 8 --steps 100", {"regularized": 6}),
        ("critical --points 6", {"critical": 6}),
        ("starts --depths 4 64 --width 8 --networks 12", {"starts": 80}),
    ],
)
def test_experiments_of_later_papers(words, tables, monkeypatch, tmp_path):
    monkeypatch.setattr(program, "save_figure", lambda figure, path: path)
    run_here("trainers.landscape", "--experiment", *words.split(), "--out", tmp_path / "run", code=0)
    values = json.loads((tmp_path / "run" / "result.json").read_text())
    assert values["tables"] == tables
    if not {"starts", "regularized"} & {*words.split()}:
        assert not [verdict for verdict in values["verdicts"] if verdict.startswith("NOT SEEN")]


def test_verdicts_of_the_identity_start_notice_violations():
    targets = identity.symmetric_targets(4, (2.0,), 4)
    rows = list(identity.measure(targets, 3, 300, 30_000))
    assert all(verdict.seen is not False for verdict in identity.verdicts(rows))
    indefinite = next(row for row in rows if row.negative)
    for name, change in {
        "positive": {"negative": 0, "steps": None, "bound": 10},
        "indefinite": {"loss": 0.9 * indefinite.limit},
        "rounding": {"rotated": 0.9 * indefinite.limit, "escape": None},
        "recursion": {"difference": 1e-6},
    }.items():
        changed = [dataclasses.replace(row, **change) if row is indefinite else row for row in rows]
        assert [verdict.name for verdict in identity.verdicts(changed) if verdict.seen is False] == [name]


def test_verdicts_of_the_other_experiments_notice_violations():
    row = critical.CriticalRow("d", 0, 0, 0, 2.0, -0.1, -0.1, True, False, False, True)
    for change, seen in (({}, True), ({"saddle": False}, False), ({"better": True, "saddle": False}, True)):
        assert next(iter(critical.verdicts([dataclasses.replace(row, **change)]))).seen is seen
    assert not [*critical.verdicts([dataclasses.replace(row, operator=0.0)])][-1].seen
    row = projections.ProjectionRow("R", 4, 0.1, 40, 0.9, 0.8, 0.1)
    for change, seen in (
        ({}, [True, True]),
        ({"steps": None}, [False, True]),
        ({"largest_factor": 0.95}, [True, False]),
    ):
        assert [each.seen for each in projections.verdicts([dataclasses.replace(row, **change)])] == seen
    rows = [
        starts.StartRow("independent", 2, depth, beta, depth**growth, 0, 1, 0, None)
        for depth in (4, 16)
        for beta, growth in ((0.25, 0.5), (0.5, 0.0), (0.8, -0.5), (1.0, -1.0))
    ]
    assert [each.seen for each in starts.verdicts(rows)] == [True]
    grown = [dataclasses.replace(row, median=row.depth) if row.beta == 1 else row for row in rows]
    assert [each.seen for each in starts.verdicts(grown)] == [False]
