"""Tests of `trainers.landscape` on small cases, and of the numbers of its experiments."""

import json

import numpy as np
import pytest

from idmatters_tf import linear
from tests.support.programs import run_here
from trainers.experiments import program
from trainers.landscape import descent, factorization
from trainers.landscape.factorization import random_target

SMALL = ("--dim", 3, "--depths", 2, 8, "--steps", 12, "--seeds", 1, "--condition", 3)


def test_tables_figures_and_results_of_the_landscape(monkeypatch, tmp_path):
    # All figures are drawn. Rendering takes half of the time.
    monkeypatch.setattr(program, "save_figure", lambda figure, path: path)
    out = tmp_path / "run"
    result = run_here("trainers.landscape", *SMALL, "--out", out)
    assert result.returncode == 0, result.stderr
    assert json.loads((out / "result.json").read_text())["tables"] == {"factorization": 2, "descent": 156}
    for name in ("factorization", "descent"):
        assert f"{name}.csv, {out / name}.png" in result.stdout
        assert len((out / f"{name}.csv").read_text().splitlines()) > 2
    assert f"{out / 'certificate.png'}" in result.stdout
    rejected = run_here("trainers.landscape", *SMALL, "--dim", 0, "--out", out)
    assert rejected.returncode == 2
    assert "argument --dim: expected a whole number of at least 1 and at most 256, received '0'" in rejected.stderr


@pytest.mark.parametrize(("dim", "determinant"), [(1, -1), (5, 1), (5, -1)])
def test_random_targets_have_their_condition_number_and_determinant(dim, determinant):
    R = random_target(dim, 50.0, determinant, seed=3)
    assert np.sign(np.linalg.det(R)) == determinant
    assert np.linalg.cond(R) == pytest.approx(50.0 if dim > 1 else 1.0)
    # Singular values from 1 / sqrt(kappa) to sqrt(kappa).
    assert np.linalg.norm(R, 2) == pytest.approx(50.0**0.5 if dim > 1 else 1.0)


def test_factorisation_norms_lie_between_the_bounds_and_fall_as_one_over_depth():
    R = random_target(4, 10.0, 1, 0)
    rows = [row for depth in (2, 16, 1024) for row in factorization.measure("R", R, depth)]
    for row in rows:
        assert row.lower_bound <= row.polar <= row.polar_bound < row.theorem
    assert rows[0].paper is None
    assert rows[1].polar / rows[2].polar == pytest.approx(64, rel=0.1)


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
