"""`HessianOperator` at points with a small gradient, against NumPy, and its check of the gradient there."""

import keras
import numpy as np
import pytest

from idmatters_tf import linear
from idmatters_tf.curvature import HessianOperator
from trainers.landscape.critical import build


def wrong(y, f):
    """Return a loss whose gradient is not its derivative."""
    return keras.ops.square(y - 3 * keras.ops.stop_gradient(f) + f)


def test_the_smallest_eigenvalue_is_that_of_numpy():
    network = linear.ResidualNetwork(4, 2, 1)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4, 25))
    y = np.abs(X[0]) + 0.3 * rng.normal(size=25)
    # At seed 1, the gradient and the weights of a layer vanish to rounding.
    for seed in range(2):
        start = np.random.default_rng(seed).normal(size=network.parameters)
        point = linear.critical_point(network, start, X, y, steps=60)
        operator = HessianOperator(build(network, point.theta), "mse", (X.T, y[:, None]))
        # The mean squared error of one output is twice the risk.
        np.testing.assert_allclose(np.linalg.norm(operator.gradient()) / 2, point.gradient_norm, atol=1e-12)
        smallest = np.linalg.eigvalsh(operator.to_dense())[0] / 2
        np.testing.assert_allclose(smallest, point.smallest_eigenvalue, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight", [1e-6, 1e-9, 1e-12])
def test_a_flat_loss_is_accepted_but_a_wrong_gradient_is_not(weight, dtype):
    inputs = keras.Input((1,), dtype=dtype)
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False, dtype=dtype)(inputs))
    model.set_weights([np.array([[weight]], dtype)])
    X, ones = np.array([[1.0], [-1.0]], dtype), np.ones((2, 1), dtype)
    HessianOperator(model, "mse", (X, ones))
    model.set_weights([np.array([[0.1]], dtype)])
    with pytest.raises(ValueError, match="must be the derivative of the loss.*pass check=False"):
        HessianOperator(model, wrong, (X, ones))
    HessianOperator(model, wrong, (X, ones), check=False)
