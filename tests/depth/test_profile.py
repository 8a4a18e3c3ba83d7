"""Profiles against closed forms of linear networks, dense matrices, data without padding, and the other backend."""

import gc
import importlib.util
import json
import weakref

import keras
import numpy as np
import pytest

from idmatters_tf import HessianOperator, depth_profile, linear
from idmatters_tf.curvature import GaussNewtonOperator, summarize
from idmatters_tf.depth import QUANTITIES, measurement
from idmatters_tf.isometry import jacobian
from idmatters_tf.models.linear import shortcut_network
from tests.support import depth_cases


def half_squares(y, outputs):
    return keras.ops.sum((y - outputs) ** 2, axis=-1) / 2


@pytest.mark.parametrize("n", [1, 2, 3])
def test_linear_networks_at_zero_have_the_spectrum_of_theorem_1(n):
    keras.config.set_dtype_policy("float64")
    X, Y = np.random.default_rng(0).normal(size=(2, 3, 20))
    sxx, syx, _ = linear.sufficient_statistics(X, Y)

    def build(depth):
        return shortcut_network(3, depth, n, kernel_initializer="zeros")

    profile = depth_profile(build, (1, 4), (X.T, Y.T), half_squares, seeds=1)
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
        assert profile.measurements[0].values["momentum_rate"] == pytest.approx(3.8 / expected.largest)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "Lanczos"])
def test_eigenvalues_are_those_of_the_dense_matrices(monkeypatch, dense):
    model, data = depth_cases.vectors(2, 0), depth_cases.vectors_data()
    monkeypatch.setattr(measurement, "DENSE", 0)
    profile = depth_cases.profiles()[0] if dense else depth_profile(depth_cases.vectors, (1, 2), data, "mse", seeds=1)
    m = profile.measurements[1]
    for matrix, kind in (("hessian", HessianOperator), ("gauss_newton", GaussNewtonOperator)):
        expected = summarize(np.linalg.eigvalsh(kind(model, "mse", data).to_dense()))
        for name, exact in (("largest", expected.largest), ("smallest", expected.smallest), ("p10", expected.p10_abs)):
            error = m.errors[f"{matrix}_{name}"]
            assert abs(m.values[f"{matrix}_{name}"] - exact) <= error + 1e-12
            assert error <= (1e-12 if dense else 0.05) * expected.max_abs


def test_gradients_and_jacobians_are_those_of_the_operators():
    m = depth_cases.profiles()[0].measurements[1]
    model, data = depth_cases.vectors(2, 0), depth_cases.vectors_data()
    operator = HessianOperator(model, "mse", data)
    gradient = operator.gradient()
    for number in range(2):
        layers = [part for name, part in operator.layers.items() if name.startswith(f"residual{number}")]
        assert m.block_gradients[f"residual{number}"] == pytest.approx(np.linalg.norm(gradient[np.r_[*layers]]))
    values = [np.linalg.svd(jacobian(model, data[0][row : row + 1]) @ np.eye(4))[1] for row in range(2)]
    assert m.values["jacobian_largest"] == pytest.approx(np.mean([row[0] for row in values]))
    assert m.values["jacobian_smallest"] == pytest.approx(np.mean([row[-1] for row in values]))


def test_padding_of_a_model_with_two_inputs_changes_nothing():
    padded = depth_cases.values(depth_cases.profiles()[1])
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
    assert profile.laws["sgd_rate"].excluded == (3,)
    assert set(profile.verdicts) == {*QUANTITIES, "stationary_order"}
    assert profile.verdicts["loss"].startswith("The loss has no power law")
    assert "undefined" in profile.table()
    assert np.isnan(profile.predict(4)["loss"].value)
    profile.plot(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("depths", "message"), [((2, 2), "at least two different depths"), ((1, 2), "for the seeds 0 and 1")]
)
def test_refusals(depths, message):
    with pytest.raises(ValueError, match=message):
        depth_profile(lambda depth: depth_cases.vectors(depth, 0), depths, depth_cases.vectors_data(), "mse")
