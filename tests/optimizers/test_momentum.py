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
