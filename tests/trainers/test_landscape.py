"""Tests of `trainers.landscape` on small cases, and of the numbers of its experiments."""

import csv
import dataclasses
import itertools
import json
import re

import numpy as np
import pytest

from idmatters_tf import linear
from tests.support.programs import run_here, run_in_process
from trainers.experiments import results
from trainers.landscape import (
    augmentation,
    block_norms,
    certified,
    depth_laws,
    descent,
    exponents,
    factorization,
    flow,
    projected,
    promises,
    regularization,
    targets,
    update_laws,
    zero_asymmetric,
)
from trainers.landscape.__main__ import main
from trainers.landscape.experiments import EXPERIMENTS
from trainers.landscape.targets import random_target, read_target

SMALL = ("--dim", 3, "--depths", 2, 8, "--steps", 12, "--seeds", 1, "--condition", 3)


@pytest.fixture
def small(monkeypatch):
    """Reduce the size of experiments that have no option for it."""
    monkeypatch.setattr(depth_laws, "DEPTHS", (6, 12))
    monkeypatch.setattr(depth_laws, "SEEDS", 2)
    monkeypatch.setattr(update_laws, "DEPTHS", (4, 8))
    monkeypatch.setattr(update_laws, "WIDTH", 16)
    monkeypatch.setattr(block_norms, "DEPTHS", (8, 16))


def test_everything_is_written(small, monkeypatch, tmp_path):
    # All figures are drawn. Rendering takes half of the time, and a slow test below does it.
    monkeypatch.setattr(results, "save_figure", lambda figure, path: path)
    out = tmp_path / "run"
    result = run_here("trainers.landscape", *SMALL, "--out", out)
    assert result.returncode == 0, result.stderr
    experiments_written = {experiment.name for experiment in EXPERIMENTS}
    assert set(json.loads((out / "result.json").read_text())) == experiments_written
    for name in experiments_written:
        assert f"{name}.csv, {out / name}.png" in result.stdout
        with open(out / f"{name}.csv", newline="") as stream:
            assert list(csv.DictReader(stream))
    assert f"{out / 'certificate.png'}" in result.stdout
    assert len(list((out / "events").iterdir())) < 30

    again = run_here("trainers.landscape", *SMALL, "--out", out)
    assert (again.returncode, "is finished" in again.stdout) == (0, True)
    other = run_here("trainers.landscape", *SMALL, "--steps", 25, "--out", out)
    assert other.returncode == 2
    assert "steps was 12, now 25" in other.stderr


@pytest.mark.parametrize("suffix", [".npy", ".txt"])
def test_a_given_target(tmp_path, suffix):
    path = tmp_path / f"R{suffix}"
    R = np.array([[2.0, 1.0], [0.0, -1.0]])
    np.save(path, R) if suffix == ".npy" else np.savetxt(path, R)
    targets = read_target(str(path))
    assert targets.positive == {}
    np.testing.assert_array_equal(targets.negative[path.name], R)


# Names of files without a valid target, and the errors.
DAMAGED = {
    "singular": "must be non-singular",
    "words": "could not convert string",
    "empty": "Received: shape",
    "binary": "can't decode byte",
    "folder": "cannot be read: Is a directory",
    "empty.npy": "empty.npy: the file is empty",
    "tiny.npy": "must be between 1e-60 and 1e+60",
    "large.npy": "must be between 1e-60 and 1e+60",
    "nothing.npy": "Received: shape",
    "words.npy": "must hold real numbers",
    "promises.npy": "greater than file size",
}
INVALID = [
    (["--dim", "0"], "argument --dim: expected a whole number of at least 1 and at most 256, received '0'"),
    (["--depths", "4", "x"], "--depths: expected a whole number of at least 1 and at most 10000, received 'x'"),
    (["--condition", "0.5"], "argument --condition: expected a number of at least 1"),
    (["--condition", "1e308"], "argument --condition: expected a number of at least 1 and at most"),
    (["--determinant", "zero"], "argument --determinant: expected one of positive, negative, both"),
    (["--target", "nowhere.npy"], "--target nowhere.npy does not exist"),
    (["--target", "nowhere.npy", "--dim", "3"], "--target replaces --dim"),
    *((["--target", name], message) for name, message in DAMAGED.items()),
]


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    np.savetxt("singular", np.ones((2, 2)))
    (tmp_path / "words").write_text("no numbers here\n")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x93")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.npy").touch()
    np.save("tiny.npy", 1e-320 * np.eye(2))
    np.save("large.npy", 1e308 * np.eye(2))
    np.save("nothing.npy", np.zeros((0, 0)))
    np.save("words.npy", np.array([["a", "b"], ["c", "d"]]))
    with open("promises.npy", "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**8, 10**8)})
    for arguments, message in INVALID:
        code, stderr = run_in_process(main, *arguments, "--out", "run")
        assert code == 2, arguments
        assert message in stderr
        assert len(stderr.strip().splitlines()) == 1, stderr
        assert not (tmp_path / "run").exists()
    assert not recwarn.list


@pytest.mark.parametrize(("dim", "determinant"), [(1, -1), (5, 1), (5, -1)])
def test_random_targets_are_as_asked(dim, determinant):
    R = random_target(dim, 50.0, determinant, seed=3)
    assert np.sign(np.linalg.det(R)) == determinant
    assert np.linalg.cond(R) == pytest.approx(50.0 if dim > 1 else 1.0)
    np.testing.assert_allclose(R, linear.scale_to_smallest_gamma(R)[0])


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
    # A mark shows where a path leaves the ball.
    left = [dataclasses.replace(row, inside=row.step < 200) for row in by_network["residual from zero"]]
    (mark,) = (line for line in descent.draw(left).axes[0].lines if line.get_marker() == "x")
    assert mark.get_xdata() == [200]
    assert by_network["residual"][-1].risk < 1e-6 * by_network["residual"][0].risk
    assert by_network["standard"][-1].risk == pytest.approx(np.sum(R**2), rel=1e-6)
    # The first record is that of the risk itself.
    zero = linear.gradient_dominance(np.zeros((8, 3, 3)), R)
    assert by_network["residual from zero"][0].gradient == pytest.approx(zero.gradient_norm_squared)
    assert by_network["residual from zero"][0].bound == pytest.approx(zero.lower_bound)


def test_the_singular_maps_are_a_barrier_that_augmentation_removes():
    R = random_target(3, 2.0, -1, 0)
    stuck, free = (
        list(augmentation.measure("R", R, problem, 32, 2, 2000, 400)) for problem in ("as it is", "augmented")
    )
    # At this depth no path leaves the ball, and each ends just above the barrier.
    assert all(row.inside and row.risk >= row.barrier for row in stuck)
    assert all(row.risk < 1.02 * row.barrier for row in stuck if row.step == 2000)
    assert max(row.risk for row in free if row.step == 2000) < 1e-12


def test_weight_decay_finds_smaller_norms():
    R = random_target(3, 2.0, 1, 0)
    rows = list(regularization.measure("R", R, 8, [0.0, 0.1, 1.0], 3000))
    norms = [row.tau for row in rows]
    assert norms == sorted(norms, reverse=True)
    assert rows[0].lower_bound <= norms[0]
    assert rows[0].risk < 1e-6


@pytest.mark.filterwarnings("error")
def test_targets_at_which_nothing_is_to_be_learnt_are_drawn():
    rows = list(descent.measure("the identity", np.eye(1), 2, "residual from zero", 2, 1))
    figure = descent.draw_certificate(rows)
    assert figure.axes[0].get_ylim() == (1e-14, 1)


def test_the_zero_asymmetric_start_takes_as_many_steps_for_either_determinant():
    rows = [
        row
        for sign in (1, -1)
        for start in zero_asymmetric.COLORS
        for row in zero_asymmetric.measure(str(sign), random_target(3, 3.0, sign, 0), start, 6, 400, 5)
    ]
    curves = {
        sign: [row.risk for row in rows if row.target == str(sign) and row.start == "zero-asymmetric"]
        for sign in (1, -1)
    }
    np.testing.assert_allclose(curves[1], curves[-1], rtol=1e-9, atol=1e-15)
    reached = {(row.target, row.start): row.reached_at for row in rows}
    assert reached["1", "zero-asymmetric"] == reached["-1", "zero-asymmetric"] is not None
    assert reached["-1", "near the identity"] is None
    assert zero_asymmetric.verdict(rows).seen is True


def test_flow_conserves_and_descent_stays_closer_with_smaller_rates():
    R = random_target(2, 2.0, 1, 0)
    rows = [row for factor in flow.FACTORS for row in flow.measure("R", R, 3, factor, 80)]
    assert flow.verdict(rows).seen is True
    for row in rows:
        assert row.limit == pytest.approx(2 / row.rate)
        assert row.time == pytest.approx(row.step * row.rate)
    # The second part of the claim fails if the distances of the rates are exchanged.
    worse = [dataclasses.replace(row, factor=1 / row.factor) for row in rows]
    assert flow.verdict(worse).seen is False


def test_no_run_is_slower_than_a_theorem_promises():
    R = random_target(2, 2.0, 1, 0)
    rows = [row for path in certified.paths(R, 3, 100) for row in certified.measure(*path)]
    assert certified.verdict(rows).seen is True
    promised = {(row.run, row.theorem) for row in rows if row.promised is not None and row.scope == "run"}
    assert {theorem for _, theorem in promised} == {"positive definite", "zero-asymmetric"}
    for row in rows:
        assert bool(row.reason) != row.applies
        if row.promised_steps is not None and row.measured_steps is not None and row.scope == "run":
            assert row.measured_steps <= row.promised_steps
    slower = [dataclasses.replace(row, measured=row.measured / 10) for row in rows]
    assert certified.verdict(slower).seen is False
    # Runs too short to reach the goal.
    unfinished = [dataclasses.replace(row, measured_steps=None) for row in rows]
    promised = sum(row.promised is not None for row in rows)
    assert certified.verdict(unfinished).reason.startswith(f"{promised} of {promised} steps")
    # Theorems about single steps guarantee no number of steps, and their guarantees are part of the verdict.
    single = [row for row in rows if row.scope == "step"]
    assert {row.theorem for row in single if row.promised is not None} == {"jacobians", "dominance"}
    assert {row.promised_steps for row in single} == {None}
    assert certified.verdict(single).seen is True
    assert certified.verdict([row for row in rows if row.promised is None]).seen is None


def test_theorems_keep_their_promises_at_their_own_rates():
    chosen = [run for run in promises.runs() if run[0] == "positive definite"]
    chosen += [next(run for run in promises.runs() if run[0] == name) for name in ("balanced", "zero-asymmetric")]
    rows = [row for run in chosen for row in promises.measure(*run, 20_000)]
    assert promises.verdict(rows).seen is True
    for row in rows:
        assert 0 < row.measured <= row.promised < np.inf
    assert promises.verdict([dataclasses.replace(row, promised=1) for row in rows]).seen is False
    assert promises.verdict([dataclasses.replace(row, measured=None) for row in rows]).seen is False


def test_projection_and_balance_help_where_descent_alone_is_slow_or_stuck():
    cases = itertools.product(projected.CASES[1:3], projected.METHODS)
    rows = [row for case, method in cases for row in projected.measure(*case, method, 4, 120)]
    assert projected.verdict(rows).seen is True
    reached = {(row.start, row.method): row.reached_at for row in rows}
    assert reached["unbalanced", "balanced"] < reached["unbalanced", "descent"]
    assert reached["reversed", "descent"] is None
    assert reached["reversed", "balanced and projected"] is not None


def test_the_largest_stable_rate_falls_with_depth_for_layers_and_not_for_units_of_two():
    kinds = ("identity", "2-shortcut")
    rows = [row for kind in kinds for row in depth_laws.measure(kind, 2, 2.0, (6, 12, 24), 2, 150)]
    kinds = {row.kind: row for row in rows}
    assert kinds["identity"].slope == pytest.approx(-1, abs=0.3)
    assert kinds["2-shortcut"].slope == pytest.approx(0, abs=0.35)
    for row in rows:
        assert row.low <= row.slope <= row.high


def test_the_first_steps_change_is_that_of_a_small_step():
    rng = np.random.default_rng(0)
    W = update_laws.start("xavier", 5, 6, rng)
    rate = update_laws.constant_update_rate(W, np.random.default_rng(1), 1)
    x, error = np.random.default_rng(1).normal(size=(2, 6, 1))
    x, error = x / np.linalg.norm(x) * 6**0.5, error / np.linalg.norm(error)
    # One gradient step of <error, z> per input, done to all layers at once, with a step far below the rate.
    eta, hidden, changes = 1e-7, [x], []
    for layer in W:
        hidden.append(layer @ hidden[-1])
    updated = []
    for k in range(5):
        delta = error
        for layer in W[:k:-1]:
            delta = layer.T @ delta
        updated.append(W[k] - eta * delta @ hidden[k].T / 6)
    z = x
    for k, layer in enumerate(updated):
        z = layer @ z
        changes.append(np.sum((z - hidden[k + 1]) ** 2))
    assert rate * np.sqrt(np.mean(changes)) / eta == pytest.approx(1, rel=1e-5)


def test_orthogonal_layers_have_the_law_minus_one_exactly_and_gaussian_ones_fall_faster():
    rows = [row for kind in update_laws.KINDS for row in update_laws.measure(kind, (4, 8, 16), 48, 2, 2)]
    for row in rows:
        if row.kind in ("orthogonal", "identity"):
            squares = np.arange(1, row.depth + 1) ** 2
            assert row.rate == pytest.approx(np.mean(squares) ** -0.5, rel=1e-10)
            assert row.rate == pytest.approx(update_laws.wide_rate(row.kind, row.depth), rel=1e-10)
    # The sums of the argument, term by term.
    total = sum(min(m, k) + 1 for last in range(1, 6) for m in range(last) for k in range(last))
    assert update_laws.wide_rate("xavier", 5) == pytest.approx((5 / total) ** 0.5)
    slopes = {row.kind: row.slope for row in rows}
    assert slopes["xavier"] < slopes["orthogonal"] - 0.1
    assert update_laws.verdict([dataclasses.replace(row, slope=0.0) for row in rows]).seen is False


def test_branches_scale_with_depth_as_their_starts_allow():
    cases = itertools.product(block_norms.STARTS, (8, 32))
    rows = [row for start, depth in cases for row in block_norms.measure(start, depth, 3, 2.0, 2, 150)]
    trained, rough = (block_norms.exponents(rows, quantity) for quantity in ("trained", "roughness"))
    for start in ("zero", "smooth / l", "independent / l"):
        assert trained[start][0] == pytest.approx(-1, abs=0.25)
    assert trained["independent / sqrt(l)"][0] == pytest.approx(-0.5, abs=0.3)
    assert rough["smooth / l"][0] < rough["independent / l"][0] - 0.5 < rough["independent / sqrt(l)"][0] - 0.5
    # The paths of the branches, in a plain loop.
    row = rows[0]
    R = random_target(3, 2.0, 1, row.seed)
    A = np.zeros((row.depth, 3, 3))
    for _ in range(150):
        A = A - targets.learning_rate(R, row.depth) * linear.risk_gradient(A, R) / 2
    assert row.trained == row.moved == pytest.approx(np.median([np.linalg.norm(one, 2) for one in A]), rel=1e-9)
    differences = [np.sum((A[i + 1] - A[i]) ** 2) for i in range(row.depth - 1)]
    assert row.roughness == pytest.approx(np.sqrt(sum(differences)), rel=1e-6)


def test_an_exponent_and_its_interval():
    depths = (6, 12, 24)
    rates = np.array([[depth**-0.5, 2 * depth**-1.5] for depth in depths]).T
    mean, low, high = exponents.exponent(depths, rates)
    # Two slopes one apart: Student's quantile 12.706 times their standard error, one half.
    assert (mean, low, high) == pytest.approx((-1.0, -1 - 6.353, -1 + 6.353), abs=1e-3)


def test_tensorboard_shows_few_runs_of_distinct_names():
    targets = {f"κ = 2, det {sign} 0": random_target(2, 2.0, 1 if sign == ">" else -1, 0) for sign in "<>"}
    cases = itertools.product(targets.items(), (2, 4), descent.STYLES)
    rows = [row for target, depth, network in cases for row in descent.measure(*target, depth, network, 20, 10)]
    scalars = [descent.EXPERIMENT.scalars(row) for row in rows]
    names = {re.sub(r"[^A-Za-z0-9.]+", "-", each.run) for each in scalars}
    assert len(names) == len({each.run for each in scalars}) == 6
    # Targets of both signs have separate charts.
    assert {f"descent risk/{target}" for target in targets} <= {tag for each in scalars for tag in each.values}


@pytest.mark.slow
def test_the_smallest_problems_have_results_and_figures(small, tmp_path):
    arguments = ("--dim", 1, "--depths", 1, "--steps", 12, "--seeds", 1, "--out", tmp_path / "run")
    code, stderr = run_in_process(main, *arguments)
    assert code == 0, stderr
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {"zero_asymmetric", "certified", "flow", "depth_laws"} <= set(written)
    for experiment in EXPERIMENTS:
        for name in experiment.figures if experiment.name in written else ():
            assert (tmp_path / "run" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
