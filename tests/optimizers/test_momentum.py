import keras
import numpy as np

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


def test_the_rate_is_applied_after_the_velocity():
    weight, velocity, expected = 1.0, 0.0, []
    for gradient, rate in zip(GRADIENTS, RATES, strict=True):
        velocity = 0.9 * velocity + gradient
        weight -= rate * velocity
        expected.append(weight)
    np.testing.assert_allclose(path(Momentum(0.1, 0.9)), expected, rtol=1e-5)


def test_it_equals_keras_sgd_until_the_rate_drops():
    ours, keras_own = path(Momentum(0.1, 0.9)), path(keras.optimizers.SGD(0.1, momentum=0.9))
    np.testing.assert_allclose(ours[:2], keras_own[:2], rtol=1e-5)
    assert abs(ours[2] - keras_own[2]) > 1e-3


def test_fit_save_and_load(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(Momentum(keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.01])), "mse")
    x, y = np.eye(3), np.ones((3, 1))
    model.fit(x, y, epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(reloaded.optimizer, Momentum)
    for one in (model, reloaded):
        one.fit(x, y, epochs=2, verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), reloaded.predict(x, verbose=0))


def test_nesterov_looks_ahead():
    weight, velocity, expected = 1.0, 0.0, []
    for gradient, rate in zip(GRADIENTS, RATES, strict=True):
        velocity = 0.9 * velocity + gradient
        weight -= rate * (gradient + 0.9 * velocity)
        expected.append(weight)
    np.testing.assert_allclose(path(Momentum(0.1, 0.9, nesterov=True)), expected, rtol=1e-5)
    keras_own = path(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True))
    np.testing.assert_allclose(expected[:2], keras_own[:2], rtol=1e-5)
    assert Momentum.from_config(Momentum(nesterov=True).get_config()).nesterov
