"""Measurements of operators, stability thresholds, and models on several devices."""

import keras
import numpy as np
import pytest

from idmatters_tf.curvature import HessianOperator, measure, stability_threshold
from idmatters_tf.optimizers import Momentum, Muon
from tests.curvature import cases


def test_measurement_equals_that_of_the_dense_matrix():
    model, loss, data = cases.case("labels and L2")
    operator = HessianOperator(model, loss, data, check=False)
    dense = operator.to_dense()
    values = np.linalg.eigvalsh(dense)
    measured = measure(operator, eigenvalues=2, probes=40, steps=len(dense), products=len(dense))
    np.testing.assert_allclose(measured.largest, values[:-3:-1], rtol=1e-3)
    np.testing.assert_allclose(measured.smallest, values[:2], rtol=1e-3)
    assert measured.scalars()["converged"] == 1
    assert measured.trace == pytest.approx(np.trace(dense))
    gradient = cases.plain_gradient(model, loss, *data)
    along = np.linalg.eigh(dense)[1][:, :-3:-1].T @ gradient
    np.testing.assert_allclose(measured.alignment, along**2 / (gradient @ gradient), rtol=1e-3)
    index = np.mean(values < -0.01 * np.abs(values).max())
    assert abs(measured.index - index) < 5 * measured.index_error
    assert measured.gradient_norm == pytest.approx(np.linalg.norm(cases.plain_gradient(model, loss, *data)))


@pytest.mark.parametrize(
    ("optimizer", "momentum", "nesterov", "decay"),
    [
        (Momentum, 0.9, True, None),
        (Momentum, 0.5, True, 3.0),
        (keras.optimizers.SGD, 0.9, False, None),
        (keras.optimizers.SGD, 0.9, True, None),
        (keras.optimizers.SGD, 0.5, False, 3.0),
    ],
)
def test_the_stability_threshold_on_a_quadratic(optimizer, momentum, nesterov, decay):
    below, above = (keras.Variable(1.0, dtype="float32") for _ in range(2))
    descent = optimizer(0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    descent.build([below, above])
    # With decay, the step is w' = (1 - 0.1 * 3) w + step; without it the first factor is 20.
    threshold = (20 - (decay or 0)) * (1 + momentum) / (1 + 2 * momentum if nesterov else 1)
    assert stability_threshold(descent) == pytest.approx(threshold, rel=1e-6)
    if decay is None:
        assert stability_threshold(0.1, momentum, nesterov) == pytest.approx(threshold)
    for _ in range(100):
        descent.apply([0.97 * threshold * below.value, 1.03 * threshold * above.value], [below, above])
    assert abs(float(below.value)) < 1 < abs(float(above.value))


def test_threshold_of_the_current_rate_of_plain_descent():
    # Subclasses may take any step; Muon's rate is an angle.
    for other in (Muon(0.1), type("Other", (keras.optimizers.SGD,), {})(0.1), keras.optimizers.Adam(0.1)):
        assert stability_threshold(other) is None
    for plain in (Momentum(0.1, 1.0), keras.optimizers.SGD(0.0), None):
        assert stability_threshold(plain) is None
    for arguments, name in (((0.0,), "learning_rate"), ((0.1, 1.0), "momentum")):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            stability_threshold(*arguments)
    weight = keras.Variable(1.0, dtype="float32")
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.01])
    descent = keras.optimizers.SGD(schedule, use_ema=True)
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.LossScaleOptimizer(Momentum(0.1)))
    descent.build([weight])
    assert stability_threshold(descent) == pytest.approx(20)
    for _ in range(3):
        descent.apply([weight.value], [weight])
    assert stability_threshold(descent) == pytest.approx(200)
    assert stability_threshold(wrapped) == pytest.approx(38)
    wrapped.learning_rate = 0.01
    assert stability_threshold(wrapped) == pytest.approx(380)


@pytest.mark.slow
def test_a_model_on_two_devices(program):
    result = program("tests.curvature.cases", timeout=480)
    assert result.stdout.splitlines()[-1:] == ["the same on two devices"], result.stderr
