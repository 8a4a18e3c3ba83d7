import keras
import numpy as np
import pytest

from idmatters_tf.optimizers import Momentum

GRADIENTS = [1.0, -0.5, 2.0, 0.25, 1.0]
RATES = [0.1, 0.1, 0.01, 0.01, 0.01]


def path(optimizer):
    variable = keras.Variable(1.0)
    optimizer.build([variable])
    values = []
    for gradient, rate in zip(GRADIENTS, RATES, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        values.append(float(variable.value))
    return values


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_rate_is_applied_after_the_velocity(nesterov):
    weight, velocity, expected = 1.0, 0.0, []
    for gradient, rate in zip(GRADIENTS, RATES, strict=True):
        velocity = 0.9 * velocity + gradient
        weight -= rate * (gradient + 0.9 * velocity if nesterov else velocity)
        expected.append(weight)
    np.testing.assert_allclose(path(Momentum(0.1, 0.9, nesterov)), expected, rtol=1e-5)
    # Keras' SGD is equal until the rate drops.
    keras_own = path(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov))
    np.testing.assert_allclose(expected[:2], keras_own[:2], rtol=1e-5)
    assert abs(expected[2] - keras_own[2]) > 1e-3


def test_fit_save_and_load(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(Momentum(keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.01]), nesterov=True), "mse")
    x, y = np.eye(3), np.ones((3, 1))
    model.fit(x, y, epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(reloaded.optimizer, Momentum)
    for one in (model, reloaded):
        one.fit(x, y, epochs=2, verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), reloaded.predict(x, verbose=0))
