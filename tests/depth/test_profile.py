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


@pytest.fixture(autouse=True)
def float_policy():
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


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
    states = {name: profile.laws[name].state for name in ("hessian_condition", "hessian_largest", "gradient_norm")}
    if n == 2:
        assert profile.laws["hessian_condition"].exponent == pytest.approx(0, abs=1e-12)
        assert profile.measurements[0].values["momentum_rate"] == pytest.approx(3.8 / expected.largest)
    zero = {"hessian_largest": "zero", "hessian_condition": "undefined"} if n == 3 else {}
    assert {name: state for name, state in states.items() if state in ("zero", "undefined")} == (
        zero | ({"gradient_norm": "zero"} if n > 1 else {})
    )


@pytest.mark.parametrize("dense", [1000, 0], ids=["dense", "Lanczos"])
def test_eigenvalues_are_those_of_the_dense_matrices(monkeypatch, dense):
    monkeypatch.setattr(measurement, "DENSE", dense)
    data = depth_cases.vectors_data()
    profile = depth_profile(depth_cases.vectors, (1, 3), data, "mse", seeds=1)
    for m in profile.measurements:
        model = depth_cases.vectors(m.depth, 0)
        for matrix, kind in (("hessian", HessianOperator), ("gauss_newton", GaussNewtonOperator)):
            expected = summarize(np.linalg.eigvalsh(kind(model, "mse", data).to_dense()))
            for name in ("largest", "smallest", "p10"):
                value, error = m.values[f"{matrix}_{name}"], m.errors[f"{matrix}_{name}"]
                assert abs(value - getattr(expected, {"p10": "p10_abs"}.get(name, name))) <= error + 1e-12
                assert error <= 1e-2 * expected.max_abs
        operator = HessianOperator(model, "mse", data)
        gradient = operator.gradient()
        for number in range(m.depth):
            layers = [slice_ for name, slice_ in operator.layers.items() if name.startswith(f"residual{number}")]
            norm = np.sqrt(sum(np.sum(gradient[layer] ** 2) for layer in layers))
            assert m.block_gradients[f"residual{number}"] == pytest.approx(norm)
        values = [np.linalg.svd(jacobian(model, data[0][row : row + 1]) @ np.eye(4))[1] for row in range(2)]
        assert m.values["jacobian_smallest"] == pytest.approx(np.mean([row[-1] for row in values]))


def test_padding_of_a_model_with_two_inputs_changes_nothing():
    padded = depth_cases.values(depth_cases.sequences, [depth_cases.sequences_data(2)])
    ours = depth_cases.values(depth_cases.sequences, depth_cases.sequences_data())
    for name, value in ours.items():
        # Attention also computes outputs at padded positions.
        if "distance" not in name:
            assert padded[name] == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), name
    assert np.isfinite(ours["2 jacobian_smallest"])
    assert np.isfinite(padded["2 distance_largest"])


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_measures_what_tensorflow_measures(program):
    done = program(
        "tests.support.depth_cases", env={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    )
    assert done.returncode == 0, done.stderr
    ours = [
        depth_cases.values(depth_cases.vectors, depth_cases.vectors_data()),
        depth_cases.values(depth_cases.sequences, [depth_cases.sequences_data(2)]),
    ]
    for values, theirs in zip(ours, json.loads(done.stdout), strict=True):
        for name, value in values.items():
            # Keras rounds some operations to float32 on JAX.
            assert theirs[name] == pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True), name


def test_batch_normalization_is_measured_in_training_mode_on_all_examples():
    def build(depth):
        layers = [keras.layers.Dense(3), keras.layers.BatchNormalization()] * 1
        return keras.Sequential([keras.Input((4,)), *layers, *[keras.layers.Dense(3) for _ in range(depth)]])

    x, y = np.random.default_rng(0).normal(3, 1, (2, 6, 4)).astype("float32")
    profile = depth_profile(build, (1, 2), (x, y[:, :3]), "mse", seeds=1, batch_size=2)
    keras.utils.set_random_seed(0)
    expected = HessianOperator(build(1), "mse", (x, y[:, :3]), training=True)
    assert profile.measurements[0].values["loss"] == pytest.approx(expected.loss())
    assert list(profile.measurements[0].block_gradients) == list(expected.layers)


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
    profile = depth_profile(build, (3, 1, 2), (np.ones((3, 2), "float32"), np.ones((3, 2), "float32")), "mse", seeds=2)
    assert len(models) == 6
    assert [(m.depth, m.seed) for m in profile.measurements] == [(d, s) for d in (1, 2, 3) for s in (0, 1)]
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
