"""Learning rates of short trainings against closed forms of quadratic losses and plain trainings."""

import functools
import math
from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf import find_rate, rate_profile
from idmatters_tf._evaluation.batches import TrainingBatches
from idmatters_tf.depth import RateCurve
from idmatters_tf.depth.trials import Trials
from idmatters_tf.models.linear import assign_weights, shortcut_network

GRID = 0.01 * 2.0 ** (np.arange(16) / 2)


def quadratic():
    """Return a model and data whose loss has one curvature, 10."""
    x = np.tile([[1.0, 2.0]], (64, 1)).astype("float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    return model, (x, x[:, :1])


def noisy_network(depth, seed):
    """Return a network with dropout and batch normalization, whose random states change with every step."""
    layers = [keras.Input((6,)), keras.layers.BatchNormalization()]
    for number in range(depth):
        initializer: Any = keras.initializers.GlorotNormal(seed + number)
        layers.append(keras.layers.Dense(8, "tanh", kernel_initializer=initializer))
        layers.append(keras.layers.Dropout(0.2, seed=seed))
    return keras.Sequential([*layers, keras.layers.Dense(3)])


def noisy_data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(50, 6)).astype("float32"), rng.integers(0, 3, 50)


def units(depth, seed):
    """Build a network of linear 2-shortcut units, with weights that do not depend on the backend."""
    model = shortcut_network(3, depth, 2)
    assign_weights(model, np.random.default_rng(seed).normal(0, 0.5, (depth, 2, 3, 3)))
    return model


sgd: Any = keras.optimizers.SGD
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def test_rates_of_a_quadratic_loss():
    """The largest stable rate is 2 / lambda, and one step of 1 / lambda reaches the optimum."""
    model, data = quadratic()
    curve = find_rate(model, data, "mse", keras.optimizers.SGD, steps=10)
    assert curve.largest_stable < 0.2 < curve.smallest_unstable < 1.5 * curve.largest_stable
    assert 0.1 / 1.5 < curve.best < 0.15
    assert np.array_equal(model.get_weights()[0], np.zeros((2, 1)))


@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(keras.optimizers.AdamW, weight_decay=0.1),
        lambda rate: sgd(keras.optimizers.schedules.CosineDecay(rate, 20), 0.9),
    ],
    ids=["adamw", "schedule"],
)
def test_a_trial_is_the_training_by_fit_of_a_new_model(optimizer):
    """No state of the optimizer, of normalization or of random generators is left by the trial before."""
    model, rate, seed = noisy_network(2, 0), 0.1, 1
    start = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    with Trials(model, optimizer, noisy_data(), LOSS, 20, 16) as trials:
        trials.train(start, 3 * rate, seed)
        losses = trials.train(start, rate, seed)
        weights = model.get_weights()
    plain = noisy_network(2, 0)
    for variable, value in zip(plain.variables, start, strict=True):
        variable.assign(value)
    plain.compile(optimizer(rate), LOSS)
    batches = TrainingBatches(noisy_data(), 16)(seed)
    options: Any = {"epochs": 10, "steps_per_epoch": 2, "shuffle": False, "verbose": 0}
    history = plain.fit(batches, **options).history["loss"]
    np.testing.assert_allclose(losses, history, rtol=1e-5)
    for ours, theirs in zip(weights, plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert not hasattr(model, "optimizer")


def test_profile_of_linear_networks():
    """Deeper linear networks near zero have equal thresholds at the start, and train at a rate that is measured."""
    data = tuple(np.random.default_rng(0).normal(size=(2, 20, 3)))
    profile = rate_profile(units, (1, 2), data, "mse", keras.optimizers.SGD, steps=10, seeds=1)
    assert list(profile.curves) == [1, 2]
    assert [row["loss"] for row in profile.rows() if row["depth"] == 2] == list(profile.curves[2].losses.ravel())
    assert len(profile.table().splitlines()) == 3
    assert profile.image().ndim == profile.curves[1].image().ndim == 3
    for curve in profile.curves.values():
        assert np.isfinite(curve.losses[:, 0]).any()
        # The best rate and the edge of stability are inside the grid.
        assert np.isinf(curve.losses[-1]).any()
        assert curve.rates[0] < curve.best < curve.rates[-1]
    given = rate_profile(units, [2], data, "mse", keras.optimizers.SGD, rates=profile.curves[2].rates[:2], steps=10)
    np.testing.assert_array_equal(given.curves[2].losses[:, :1], profile.curves[2].losses[:2])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (keras.Sequential(), "`build` must be a function \\(depth, seed\\) that returns a model. Received: Sequential"),
        (lambda depth, _: units(depth, 0), "equal weights for the seeds 0 and 1"),
    ],
)
def test_profiles_need_models_that_differ_by_their_seed(build, message):
    with pytest.raises(ValueError, match=message):
        rate_profile(build, [1], (np.ones((4, 3)), np.ones((4, 3))), "mse", keras.optimizers.SGD, [0.1], steps=1)


@pytest.mark.parametrize("offset", [-0.15, 0.0, 0.15])
def test_best_rate_is_the_vertex_of_a_parabola(offset):
    vertex = np.log(GRID[6]) + offset
    exact = (np.log(GRID)[:, None] - vertex) ** 2 + np.array([[1.0, 2.0, 5.0]])
    curve = RateCurve(GRID, exact, np.full(3, 9.0))
    assert np.log(curve.best) == pytest.approx(vertex, abs=1e-6)
    assert RateCurve(GRID[:7], exact[:7], curve.first).best == GRID[6]
    assert math.isnan(RateCurve(GRID, exact + np.inf, curve.first).best)


def test_stable_rate_is_that_of_half_of_the_trainings():
    losses = np.where(np.arange(16)[:, None] < [8, 10, 12], 1.0, np.inf)
    curve = RateCurve(GRID, losses, np.full(3, 9.0))
    assert (curve.largest_stable, curve.smallest_unstable) == (GRID[9], GRID[10])
    # Without an unstable rate, the largest one is only a lower bound.
    curve = RateCurve(GRID[:8], losses[:8], curve.first)
    assert (curve.largest_stable, curve.smallest_unstable) == (GRID[7], math.inf)
    curve = RateCurve(GRID, losses + np.inf, curve.first)
    assert math.isnan(curve.largest_stable)
    assert curve.smallest_unstable == GRID[0]


def test_negative_losses_are_stable():
    model, data = quadratic()
    curve = find_rate(model, data, lambda y, outputs: (y - outputs) ** 2 - 10, keras.optimizers.SGD, [0.05], 20)
    assert curve.first[0] == pytest.approx(-9)
    assert curve.losses[0, 0] == pytest.approx(-10, rel=1e-3)
