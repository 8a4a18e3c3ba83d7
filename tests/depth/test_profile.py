"""Profiles against closed forms of linear networks, dense matrices, data without padding, and the other backend."""

import functools
import gc
import importlib.util
import json
import weakref
from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf import HessianOperator, depth_profile, linear
from idmatters_tf.curvature import stability_threshold, summarize
from idmatters_tf.depth import QUANTITIES, measurement
from idmatters_tf.models.linear import get_weights, shortcut_network
from tests.support import depth_cases


@pytest.fixture(autouse=True)
def double(default_policy):
    keras.config.set_dtype_policy("float64")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_linear_networks_at_zero_have_the_spectrum_of_theorem_1(n):
    X, Y = depth_cases.units_data()
    sxx, syx, _ = linear.sufficient_statistics(X.T, Y.T)

    build = functools.partial(shortcut_network, 3, shortcut_depth=n, kernel_initializer="zeros")
    profile = depth_profile(build, (1, 2), (X, Y), depth_cases.half_squares, seeds=1)
    for m in profile.measurements:
        expected = summarize(linear.zero_hessian_spectrum(m.depth, n, sxx, syx))
        for name in ("largest", "smallest", "p10_abs", "condition"):
            value = m.values[f"hessian_{name.removesuffix('_abs')}"]
            assert value == pytest.approx(getattr(expected, name), rel=1e-12, abs=1e-12)
        assert m.order == min(2, linear.zero_stationary_order(n, sxx, syx))
    assert (profile.laws["hessian_largest"].state == "zero") == (n > 2)


def test_all_quantities_are_the_closed_forms_of_linear_networks():
    m = depth_cases.profiles()[0].measurements[1]
    X, Y = depth_cases.units_data()
    sxx, syx, syy = linear.sufficient_statistics(X.T, Y.T)
    W = get_weights(depth_cases.units(m.depth, 0))
    branches = W[:, 1] @ W[:, 0]
    blocks = np.linalg.norm(linear.shortcut_gradient(W, sxx, syx).reshape(m.depth, -1), axis=1)
    f = linear.shortcut_compose(W)
    distances, jacobian = np.linalg.norm(branches, 2, axis=(1, 2)), np.linalg.svd(f)[1]
    expected = {
        "loss": linear.shortcut_risk(W, sxx, syx, syy),
        "gradient_norm": np.linalg.norm(blocks),
        "block_gradient": np.sqrt(np.mean(blocks**2)),
        "block_gradient_ratio": blocks.max() / blocks.min(),
        "jacobian_largest": jacobian[0],
        "jacobian_smallest": jacobian[-1],
        "distance_mean": np.mean(distances),
        "distance_largest": max(distances),
    }
    # With targets that the network fits, the Hessian is the Gauss-Newton matrix, which does not depend on targets.
    for name, targets in (("gauss_newton", f @ sxx), ("hessian", syx)):
        summary = summarize(np.linalg.eigvalsh(linear.shortcut_hessian(W, sxx, targets)))
        expected |= {f"{name}_largest": summary.largest, f"{name}_smallest": summary.smallest}
        expected |= {f"{name}_p10": summary.p10_abs, f"{name}_condition": summary.condition}
    for name, value in expected.items():
        assert m.values[name] == pytest.approx(value, rel=1e-7, abs=1e-12), name
    assert set(QUANTITIES) == {*expected, "sgd_rate", "momentum_rate"}
    for name, momentum in (("sgd_rate", 0), ("momentum_rate", 0.9)):
        assert stability_threshold(m.values[name], momentum) == pytest.approx(expected["hessian_largest"])
    assert list(m.block_gradients.values()) == pytest.approx(list(blocks))
    assert list(m.block_distances.values()) == pytest.approx(list(distances))


@pytest.mark.parametrize("examples", [20, 2])
def test_iterations_agree_with_dense_matrices_within_the_errors(monkeypatch, examples):
    X, Y = depth_cases.units_data()
    arguments = depth_cases.units, (3, 6), (X[:examples], Y[:examples]), depth_cases.half_squares, 1
    dense = depth_profile(*arguments)
    monkeypatch.setattr(measurement, "DENSE", 0)
    found = depth_profile(*arguments)
    for exact, m in zip(dense.measurements, found.measurements, strict=True):
        scale = exact.values["hessian_largest"]
        for name in (f"{kind}_{end}" for kind in ("hessian", "gauss_newton") for end in ("largest", "smallest", "p10")):
            assert abs(m.values[name] - exact.values[name]) <= m.errors[name] + 1e-12 * scale, name
            assert m.errors[name] <= (np.inf if name.endswith("p10") else 0.05 * scale), name
    # With two examples, the Gauss-Newton matrix has rank 6 of 54 and 108. Two points have no interval.
    for profile in (dense, found) if examples == 2 else ():
        assert "not resolved at depth 3, 6. A tenth of the eigenvalues" in profile.verdicts["gauss_newton_condition"]
        assert [profile.laws[name].state for name in ("gauss_newton_p10", "loss")] == ["zero", "undetermined"]
        assert profile.predict(9)["loss"][1:] == (0, np.inf)


def test_padding_of_a_model_with_two_inputs_changes_nothing():
    profile = depth_profile(depth_cases.sequences, (1, 2), depth_cases.sequences_data(0), "mse", seeds=1)
    for row, padded in zip(profile.rows(), depth_cases.profiles()[1].rows(), strict=True):
        for name in QUANTITIES:
            # Jacobians do not support the masks of the sequences.
            if "distance" in name or "jacobian" in name:
                assert np.isnan([row[name], padded[name]]).all(), name
            else:
                assert np.isfinite(row[name]) or "condition" in name, name
                assert padded[name] == pytest.approx(row[name], rel=1e-6, abs=1e-9), name


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_measures_what_tensorflow_measures(program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    done = program("tests.support.depth_cases", env=env)
    assert done.returncode == 0, done.stderr
    ours = [row for profile in depth_cases.profiles() for row in profile.rows()]
    profiles, rates = json.loads(done.stdout)
    for row, theirs in zip(ours, profiles, strict=True):
        for name in QUANTITIES:
            # Keras rounds some operations to float32 on JAX.
            if not name.endswith(("smallest", "p10", "condition")):
                # Profiles of padded sequences have no distances and no Jacobians.
                assert theirs[name] == pytest.approx(row[name], rel=1e-4, nan_ok=True), name
    for row, theirs in zip(depth_cases.rates().rows(), rates, strict=True):
        assert theirs == pytest.approx(row, rel=1e-5)


def test_one_model_at_a_time_batch_normalization_and_a_loss_that_overflows(tmp_path):
    models = []

    def build(depth):
        assert not [model for model in models if model() is not None]
        scale: Any = keras.initializers.RandomNormal(stddev=1e90 if depth > 2 else 0.1)
        dense = [keras.layers.Dense(3, kernel_initializer=scale) for _ in range(depth)]
        model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), *dense])
        models.append(weakref.ref(model))
        return model

    gc.collect()
    profile = depth_profile(build, (3, 1), data := depth_cases.units_data(), "mse", seeds=2, batch_size=2)
    assert [(m.depth, m.seed) for m in profile.measurements] == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert set(profile.verdicts) == {*QUANTITIES, "stationary_order"}
    assert profile.verdicts["loss"] == "The loss has no power law: it is not defined at depth 3."
    assert "undefined" in profile.table()
    profile.plot(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000
    keras.utils.set_random_seed(0)
    expected, m = HessianOperator(build(1), "mse", data, training=True), profile.measurements[0]
    assert m.values["loss"] == pytest.approx(expected.loss())
    norms = [np.linalg.norm(expected.gradient()[layer]) for layer in expected.layers.values()]
    assert list(m.block_gradients.values()) == pytest.approx(norms)


def test_refusals():
    for depths, message in (((2, 2), "at least two different depths"), ((1, 2), "for the seeds 0 and 1")):
        with pytest.raises(ValueError, match=message):
            depth_profile(lambda depth: depth_cases.units(depth, 0), depths, depth_cases.units_data(), "mse")
    model: Any = depth_cases.units(1, 0)
    with pytest.raises(ValueError, match="`build` must be a function of a depth that returns a model. Received: "):
        depth_profile(model, (1, 2), depth_cases.units_data(), "mse")
