"""Profiles against closed forms of linear networks, dense matrices, data without padding, and the other backend."""

import gc
import importlib.util
import json
import weakref

import keras
import numpy as np
import pytest

from idmatters_tf import HessianOperator, depth_profile, linear
from idmatters_tf.curvature import stability_threshold, summarize
from idmatters_tf.depth import QUANTITIES, measurement
from idmatters_tf.models.linear import get_weights, shortcut_network
from tests.support import depth_cases


@pytest.mark.parametrize("n", [1, 2, 3])
def test_linear_networks_at_zero_have_the_spectrum_of_theorem_1(n):
    keras.config.set_dtype_policy("float64")
    X, Y = depth_cases.units_data()
    sxx, syx, _ = linear.sufficient_statistics(X.T, Y.T)

    def build(depth):
        return shortcut_network(3, depth, n, kernel_initializer="zeros")

    profile = depth_profile(build, (1, 4), (X, Y), depth_cases.half_squares, seeds=1)
    for m in profile.measurements:
        expected = summarize(linear.zero_hessian_spectrum(m.depth, n, sxx, syx))
        for name in ("largest", "smallest", "p10_abs", "condition"):
            value = m.values[f"hessian_{name.removesuffix('_abs')}"]
            assert value == pytest.approx(getattr(expected, name), rel=1e-12, abs=1e-12)
        assert m.order == min(2, linear.zero_stationary_order(n, sxx, syx))
    assert (profile.laws["gradient_norm"].state == "zero") == (n > 1)
    assert (profile.laws["hessian_largest"].state == "zero") == (n > 2)
    if n == 2:
        assert profile.laws["hessian_condition"].exponent == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("number", [0, 1], ids=["depth 1", "depth 3"])
def test_all_quantities_are_the_closed_forms_of_linear_networks(number):
    m = depth_cases.profiles()[0].measurements[number]
    X, Y = depth_cases.units_data()
    sxx, syx, syy = linear.sufficient_statistics(X.T, Y.T)
    keras.config.set_dtype_policy("float64")
    W = get_weights(depth_cases.units(m.depth, 0))
    products = [first_last[1] @ first_last[0] for first_last in W]
    gradient = linear.shortcut_gradient(W, sxx, syx)
    blocks = np.linalg.norm(gradient.reshape(m.depth, -1), axis=1)
    f = np.linalg.multi_dot([np.eye(3), *[np.eye(3) + product for product in products[::-1]]])
    # With targets that the network fits, the Hessian is the Gauss-Newton matrix, which does not depend on targets.
    hessian, gauss_newton = (summarize(np.linalg.eigvalsh(linear.shortcut_hessian(W, sxx, s))) for s in (syx, f @ sxx))
    distances, jacobian = [np.linalg.norm(product, 2) for product in products], np.linalg.svd(f)[1]
    expected = {
        "loss": linear.shortcut_risk(W, sxx, syx, syy),
        "gradient_norm": np.linalg.norm(gradient),
        "block_gradient": np.sqrt(np.mean(blocks**2)),
        "block_gradient_ratio": blocks.max() / blocks.min(),
        "jacobian_largest": jacobian[0],
        "jacobian_smallest": jacobian[-1],
        "distance_mean": np.mean(distances),
        "distance_largest": max(distances),
    }
    for name, summary in (("hessian", hessian), ("gauss_newton", gauss_newton)):
        expected |= {f"{name}_largest": summary.largest, f"{name}_smallest": summary.smallest}
        expected |= {f"{name}_p10": summary.p10_abs, f"{name}_condition": summary.condition}
    for name, value in expected.items():
        assert m.values[name] == pytest.approx(value, rel=1e-7, abs=1e-12), name
    assert set(QUANTITIES) == {*expected, "sgd_rate", "momentum_rate"}
    for name, momentum in (("sgd_rate", 0), ("momentum_rate", 0.9)):
        assert stability_threshold(m.values[name], momentum) == pytest.approx(hessian.largest)
    assert list(m.block_gradients.values()) == pytest.approx(list(blocks))
    assert list(m.block_distances.values()) == pytest.approx(distances)


def test_iterations_agree_with_dense_matrices_within_the_errors(monkeypatch):
    keras.config.set_dtype_policy("float64")
    X, Y = depth_cases.units_data()
    options = {"depths": (3, 6), "data": (X, Y), "loss": depth_cases.half_squares, "seeds": 1}
    dense = depth_profile(depth_cases.units, **options).measurements
    monkeypatch.setattr(measurement, "DENSE", 0)
    found = depth_profile(depth_cases.units, **options).measurements
    for exact, m in zip(dense, found, strict=True):
        for matrix in ("hessian", "gauss_newton"):
            scale = exact.values[f"{matrix}_largest"]
            for name in (f"{matrix}_largest", f"{matrix}_smallest", f"{matrix}_p10"):
                assert abs(m.values[name] - exact.values[name]) <= m.errors[name] + 1e-12 * scale, name
                assert 0 < m.errors[name] <= 0.05 * scale


@pytest.mark.parametrize("dense", [0, 1000])
def test_percentiles_of_singular_matrices_are_zero_and_condition_numbers_infinite(monkeypatch, dense):
    monkeypatch.setattr(measurement, "DENSE", dense)
    keras.config.set_dtype_policy("float64")
    X, Y = depth_cases.units_data()
    # Two examples: the Gauss-Newton matrix has rank 6 of 54 and 108.
    profile = depth_profile(depth_cases.units, (3, 6), (X[:2], Y[:2]), depth_cases.half_squares, seeds=1)
    assert profile.laws["gauss_newton_p10"].state == "zero"
    assert profile.laws["gauss_newton_largest"].state == "undetermined"
    verdict = profile.verdicts["gauss_newton_condition"]
    assert verdict.startswith(
        "The condition number of the Gauss-Newton matrix has no power law: it is infinite at depth 3, 6."
    )
    assert "few examples" in verdict


def test_padding_of_a_model_with_two_inputs_changes_nothing():
    padded = depth_cases.values(depth_cases.profiles()[1])
    keras.config.set_dtype_policy("float64")
    profile = depth_profile(depth_cases.sequences, (1, 2), depth_cases.sequences_data(0), "mse", seeds=1)
    for name, value in depth_cases.values(profile).items():
        assert np.isfinite(value) or "condition" in name, name
        # Attention also computes outputs at padded positions.
        if "distance" not in name:
            assert padded[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_measures_what_tensorflow_measures(program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    done = program("tests.support.depth_cases", env=env)
    assert done.returncode == 0, done.stderr
    for profile, theirs in zip(depth_cases.profiles(), json.loads(done.stdout), strict=True):
        for name, value in depth_cases.values(profile).items():
            # Keras rounds some operations to float32 on JAX.
            if "smallest" not in name and "p10" not in name and "condition" not in name:
                assert theirs[name] == pytest.approx(value, rel=1e-4), name


def test_batch_normalization_is_measured_in_training_mode_on_all_examples():
    def build(depth):
        dense = [keras.layers.Dense(3) for _ in range(depth)]
        return keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), *dense])

    x, y = np.random.default_rng(0).normal(3, 1, (2, 6, 4)).astype("float32")
    profile = depth_profile(build, (1, 2), (x, y[:, :3]), "mse", seeds=1, batch_size=2)
    keras.utils.set_random_seed(0)
    expected = HessianOperator(build(1), "mse", (x, y[:, :3]), training=True)
    assert profile.measurements[0].values["loss"] == pytest.approx(expected.loss())
    norms = [np.linalg.norm(expected.gradient()[layer]) for layer in expected.layers.values()]
    np.testing.assert_allclose(list(profile.measurements[0].block_gradients.values()), norms, rtol=1e-5)


def test_one_model_at_a_time_and_a_loss_that_overflows(tmp_path):
    models = []

    def build(depth):
        assert not [model for model in models if model() is not None]
        scale = keras.initializers.RandomNormal(stddev=1e15 if depth > 2 else 0.1)
        layers = [keras.layers.Dense(2, kernel_initializer=scale) for _ in range(depth)]
        model = keras.Sequential([keras.Input((2,)), *layers])
        models.append(weakref.ref(model))
        return model

    gc.collect()
    profile = depth_profile(build, (3, 1), (np.ones((3, 2), "float32"), np.ones((3, 2), "float32")), "mse", seeds=2)
    assert len(models) == 4
    assert [(m.depth, m.seed) for m in profile.measurements] == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert set(profile.verdicts) == {*QUANTITIES, "stationary_order"}
    assert profile.verdicts["loss"] == "The loss has no power law: it is not defined at depth 3."
    assert "undefined" in profile.table()
    assert np.isnan(profile.predict(4)["loss"].value)
    profile.plot(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("depths", "message"), [((2, 2), "at least two different depths"), ((1, 2), "for the seeds 0 and 1")]
)
def test_refusals(depths, message):
    with pytest.raises(ValueError, match=message):
        depth_profile(lambda depth: depth_cases.units(depth, 0), depths, depth_cases.units_data(), "mse")
