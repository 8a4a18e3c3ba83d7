"""Tests of `trainers.shortcuts` on small cases, and of the numbers of its experiments."""

import csv
import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf import linear
from idmatters_tf.curvature import dense_hessian
from idmatters_tf.models.linear import assign_weights, get_weights, shortcut_network
from tests.support.programs import run_here, run_in_process
from trainers.shortcuts import conditions, norms, sweep, training, trajectory
from trainers.shortcuts.__main__ import main
from trainers.shortcuts.settings import RegressionSettings, Theorem1
from trainers.shortcuts.theorem1 import by_differentiation, closed_form, half_squares, stationary_order
from trainers.shortcuts.training import LINEAR_NETWORKS, RELU_NETWORKS, best_rate, linear_descent, record, relu_descent
from trainers.shortcuts.trajectory import TrajectoryRow

PROBLEM = training.load(RegressionSettings("digits-like"))
SMALL = ("--dataset", "digits-like", "--starts", 2)
DESCENT = ("--epochs", 40, "--samples", 60, "--rates", 0.03, 0.3)


@pytest.mark.parametrize(
    ("command", "options", "figures"),
    [
        ("conditions", ("--depths", 2, 4), 1),
        ("sweep", ("--depths", 4, *DESCENT), 1),
        ("norms", ("--depths", 2, 4, *DESCENT), 1),
        ("trajectory", ("--depth", 2, "--records", 2, *DESCENT), 2),
        pytest.param("trajectory", ("--depth", 6, "--records", 2, *DESCENT), 2, marks=pytest.mark.slow),
    ],
)
def test_every_command_writes_its_table_figure_and_verdict(tmp_path, monkeypatch, command, options, figures):
    monkeypatch.setattr(trajectory, "KINDS", ("orthogonal", "1-shortcut", "2-shortcut", "3-shortcut"))
    out = tmp_path / "run"
    result = run_here("trainers.shortcuts", "--experiment", command, *SMALL, *options, "--out", out, code=0)
    assert len(list(out.glob("*.png"))) == figures
    with open(out / f"{command}.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    kinds = {(row.get("activation"), row.get("kind", "2-shortcut")) for row in rows}
    activations = [None] if command == "conditions" else ["linear", "relu"]
    for activation in activations:
        assert (activation, "2-shortcut") in kinds
        # Units of three layers do not divide the other depths.
        assert ((activation, "3-shortcut") in kinds) == (6 in options)
    verdicts = json.loads((out / "result.json").read_text())["verdicts"]
    assert len(verdicts) == {"conditions": 1, "trajectory": 5}.get(command, 2)
    for verdict in verdicts:
        assert verdict.split(":")[0] in ("SEEN", "NOT SEEN", "OPEN")
        assert verdict in result.stdout


def test_theorem1_compares_the_spectra_and_the_order(tmp_path):
    options = ("--dataset", "digits-like", "--units", 1, "--mid", "tanh")
    run_here("trainers.shortcuts", "--experiment", "theorem1", *options, "--out", tmp_path / "run", code=0)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["verdicts"][0].startswith("SEEN: 1 units of 2 layers")
    numbers = result["numbers"]["zero"]
    assert (numbers["order"], numbers["by Theorem 1"]) == (1, 1)
    assert numbers["smallest eigenvalue"] == pytest.approx(-1.2, 0.1)
    assert numbers["largest difference"] < 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trajectory --depth 5", "--depth must be even"),
        ("theorem1 --shortcut-depth 1 --mid tanh", "--post require a --shortcut-depth of at least 2"),
        ("sweep --data-dir nowhere", "as `data_dir`. (option --data-dir or --download)"),
    ],
)
def test_invalid_input_exits_with_code_2_and_one_line(tmp_path, arguments, message):
    code, stderr = run_in_process(main, "--experiment", *arguments.split(), "--out", tmp_path / "run")
    assert code == 2
    assert message in stderr
    assert len(stderr.strip().splitlines()) <= 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["xavier", "2-shortcut", "3-shortcut"])
def test_relu_descent_of_many_is_that_of_each_keras_model(kind):
    keras.config.set_dtype_policy("float64")
    network = RELU_NETWORKS[kind]
    problem = PROBLEM.first(30)
    n = network.shortcut_depth
    W = network.starts(2 * n, 2, seed=1) * (30 if network.shortcut else 1)
    rates = np.array([0.1, 0.02])
    records = list(record(relu_descent(problem, W.shape, rates, network.shortcut), W, 5, 2))
    assert [epoch for epoch, *_ in records] == [0, 2, 4, 5]
    for run, rate in enumerate(rates):
        model = shortcut_network(10, 2, n, mid="relu", shortcut=network.shortcut)
        assign_weights(model, W[run])
        for epoch in range(6):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(half_squares(problem.Y.T, model(problem.X.T)))
            gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
            for at, weights, losses, gradient_norms in records:
                if at == epoch:
                    assert losses[run] == pytest.approx(float(loss), rel=1e-10)
                    assert gradient_norms[run] == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-10)
                    np.testing.assert_allclose(weights[run], get_weights(model), atol=1e-12)
            for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
                variable.assign_sub(rate * gradient)


def test_linear_descent_in_pieces_is_that_in_one():
    network = LINEAR_NETWORKS["2-shortcut"]
    statistics = PROBLEM.statistics
    W = network.starts(4, 2)
    rates = np.full(2, 0.3)
    records = list(record(linear_descent(PROBLEM, rates, True), W, 25, 10))
    whole = linear.gradient_descent(W, statistics.sxx, statistics.syx, rates, 25)
    for epoch, _, loss, norm in records:
        np.testing.assert_allclose(loss, whole.excess_risk[:, epoch], rtol=1e-10)
        np.testing.assert_allclose(norm, whole.gradient_norm[:, epoch], rtol=1e-9)
    np.testing.assert_allclose(records[-1].weights, whole.weights, atol=1e-12)
    # Rates at which networks diverge end the records.
    assert len(list(record(linear_descent(PROBLEM, [0.3, 1e6], True), W, 25, 10))) == 1


def test_conditions_at_the_zero_point_are_those_of_the_theorem():
    """Test that 2-shortcut networks at Xavier x 0.01 have the condition number of the singular values of G at zero."""
    statistics = PROBLEM.statistics
    cases = [(kind, depth) for kind in LINEAR_NETWORKS for depth in (2, 4) if kind != "3-shortcut"]
    rows = [row for case in cases for row in conditions.measure(statistics, *case, 1)]
    singular_values = np.linalg.svd(statistics.sxx - statistics.syx, compute_uv=False)
    expected = np.log10(singular_values.max() / np.percentile(np.repeat(singular_values, 20), 10))
    by_case = {(row.kind, row.depth): row for row in rows}
    for depth in (2, 4):
        assert by_case["2-shortcut", depth].lg_condition == pytest.approx(expected, abs=0.02)
        assert by_case["2-shortcut", depth].index == pytest.approx(0.5, abs=0.01)
    assert conditions.verdict(rows).seen is True


def test_verdicts_are_positive_and_negative():
    def row(kind, depth, loss):
        return sweep.SweepRow("relu", kind, depth, 0.1, True, loss, 0, 1, 0.0)

    good = [row("2-shortcut", 8, 0.1), row("xavier", 8, 0.4), row("orthogonal", 8, 0.2)]
    assert sweep.verdict(good).seen is True
    assert sweep.verdict([row("2-shortcut", 8, 0.3), *good[1:]]).seen is False
    assert sweep.verdict(good[:1]).seen is None
    # All kinds count, and the text names the depths.
    assert sweep.verdict([*good, row("1-shortcut", 8, 0.05)]).seen is False
    shallow = [row("2-shortcut", 4, 0.3), row("1-shortcut", 4, 0.2)]
    assert sweep.verdict(shallow + good).numbers["depths"] == {"of": 2, "lowest loss": 1, "highest rate": 0}
    # The best rate leaves out diverged runs.
    assert best_rate(np.array([[3.0, 1.0, np.nan], [3.0, 2.0, 0.1]]), [0.1, 0.2, 0.3]) == 0.2

    def falling(norm_of_depth):
        return [
            norms.NormsRow("relu", depth, 0, 0.1, 0, loss, norm_of_depth(depth))
            for depth in (2, 4)
            for loss in (1, 0.1)
        ]

    assert norms.verdict(falling(lambda depth: 6.0 / depth)).seen is True
    assert norms.verdict(falling(lambda depth: float(depth))).seen is False


def moment(loss, index=0.0, max_abs=1.0, p10_abs=1.0, kind="2-shortcut"):
    return TrajectoryRow("linear", kind, 2, 0, 0.1, 0, loss, max_abs, p10_abs, index, 0.0)


def test_verdicts_on_trajectories_compare_every_kind_at_common_losses():
    ours = [moment(loss, index=0.5) for loss in (1.0, 0.01)]
    # Below 2-shortcuts in the lower half of the losses, and in half of the range for the index.
    theirs = [moment(loss, 2 * size - 1, size, kind="orthogonal") for loss, size in ((1.0, 1.0), (0.01, 0.5))]
    alike, other = ([moment(loss, 1.0, size, kind="1-shortcut") for loss in (1.0, 0.01)] for size in (1.5, 0.75))
    assert list(trajectory.verdicts([*ours, *theirs, *other]))[2].seen is True
    assert [verdict.seen for verdict in trajectory.verdicts([*ours, *alike])] == [True, True]
    condition, index, near = trajectory.verdicts([*ours, *theirs, *alike])
    assert (condition.seen, index.seen, near.seen) == (False, False, False)
    assert "orthogonal (share 0, upper 0.8909, lower 0.5" in str(condition)
    assert ": orthogonal 50, 1-shortcut 100, start 0.5, " in str(index)
    assert near.numbers == pytest.approx(
        {"orthogonal": 2.15, "2-shortcut": 1.5, "largest to orthogonal": 3, "index": 1}, 0.05
    )
    assert [verdict.seen for verdict in trajectory.verdicts(ours)] == [None]


@pytest.mark.parametrize(
    ("units", "shortcut_depth", "activations"),
    [
        (2, 1, {}),
        (1, 3, {"pre": "tanh", "mid": "silu", "post": "gelu"}),
        (1, 2, {"pre": "relu", "mid": "gelu"}),
        (1, 2, {"pre": "silu", "post": "silu"}),
    ],
)
def test_theorem_1_by_closed_form_differentiation_and_growth(units, shortcut_depth, activations):
    keras.config.set_dtype_policy("float64")
    problem = PROBLEM.first(50)
    network = Theorem1(units, shortcut_depth, **activations)
    closed = closed_form(problem, network)
    assert (np.abs(closed).max() > 0.01) == (shortcut_depth < 3)
    np.testing.assert_allclose(by_differentiation(problem, network), closed, atol=1e-12)
    assert stationary_order(problem, network)[0] == shortcut_depth - 1


@pytest.mark.parametrize("shortcut_depth", [1, 2])
def test_theorem_1_blocks_of_the_hessian_with_activations_in_all_places(shortcut_depth):
    """Test Eqs. 11 and 13, and Lemma 2: all diagonal blocks are equal, and all blocks below the diagonal."""
    keras.config.set_dtype_policy("float64")
    model = shortcut_network(3, 3, shortcut_depth, "tanh", "silu", "gelu", kernel_initializer="zeros")
    data = np.random.default_rng(0).normal(size=(2, 20, 3))
    hessian = dense_hessian(model, half_squares, tuple(data))
    blocks = hessian.reshape(3, 9 * shortcut_depth, 3, 9 * shortcut_depth).swapaxes(1, 2)
    below = blocks[1, 0]
    for row, column in itertools.product(range(3), repeat=2):
        expected = blocks[0, 0] if row == column else below if row > column else below.T
        np.testing.assert_allclose(blocks[row, column], expected, atol=1e-14)
    assert np.abs(blocks[0, 0]).max() > 0.01
    assert (np.abs(below).max() > 0.01) == (shortcut_depth == 1)
    if shortcut_depth == 2:
        assert not blocks[0, 0][:9, :9].any()
        assert not blocks[0, 0][9:, 9:].any()
