"""Linear Keras models compared with NumPy: values, gradients and Hessians."""

import keras
import numpy as np
import pytest

from idmatters_tf import linear
from idmatters_tf.curvature import HessianOperator
from idmatters_tf.models.linear import assign_weights, get_weights, linear_residual, plain, shortcut_network
from tests.support.checks import check_saving
from tests.support.linear_cases import random_data

MODELS = {
    "residual": (lambda **options: linear_residual(3, 4, **options), True),
    "plain": (lambda **options: plain(3, 4, **options), False),
    "3-shortcut": (lambda **options: shortcut_network(3, 2, 3, **options), True),
    "units without shortcuts": (lambda **options: shortcut_network(3, 2, 2, shortcut=False, **options), False),
}


@pytest.fixture(params=list(MODELS))
def case(request):
    """Return a float64 model, its random weights in NumPy, and True if it has shortcuts."""
    keras.config.set_dtype_policy("float64")
    build, shortcut = MODELS[request.param]
    model = build()
    W = np.random.default_rng(0).normal(size=get_weights(model).shape) / 2
    assign_weights(model, W)
    return model, W, shortcut


def test_values_gradient_and_hessian_are_those_of_numpy(case):
    model, W, shortcut = case
    np.testing.assert_array_equal(get_weights(model), W)
    X = np.random.default_rng(1).normal(size=(3, 7))
    outputs = keras.ops.convert_to_numpy(model(X.T)).T
    np.testing.assert_allclose(outputs, linear.shortcut_compose(W, shortcut=shortcut) @ X, atol=1e-14)
    X, Y = random_data(np.random.default_rng(2), 3, 8)
    statistics = linear.sufficient_statistics(X, Y)
    operator = HessianOperator(model, lambda y, f: keras.ops.sum((y - f) ** 2, -1) / 2, (X.T, Y.T), check=False)
    assert operator.loss() == pytest.approx(linear.shortcut_risk(W, *statistics, shortcut=shortcut), rel=1e-12)
    # Keras' kernels are the transposes.
    order = np.arange(W.size).reshape(-1, 3, 3).swapaxes(1, 2).ravel()
    gradient = linear.shortcut_gradient(W, *statistics, shortcut=shortcut).ravel()[order]
    np.testing.assert_allclose(operator.gradient(), gradient, atol=1e-12 * np.abs(gradient).max())
    dense = linear.shortcut_hessian(W, statistics.sxx, statistics.syx, shortcut=shortcut)[np.ix_(order, order)]
    np.testing.assert_allclose(operator.to_dense(), dense, atol=1e-12 * np.abs(dense).max())
    if shortcut:
        check_training(model, W)


def check_training(model, W):
    """Compare training with the gradient descent of NumPy."""
    X, Y = random_data(np.random.default_rng(4), 3, 8)
    sxx, syx, _ = linear.sufficient_statistics(X, Y)
    # Keras' mean squared error averages over the 3 outputs as well: 2/3 of the loss here.
    model.compile(keras.optimizers.SGD(0.03), "mse")
    model.fit(X.T, Y.T, batch_size=8, epochs=5, shuffle=False, verbose=0)
    found = linear.gradient_descent(W[None], sxx, syx, 0.02, 5)
    np.testing.assert_allclose(get_weights(model), found.weights[0], atol=1e-6)


def test_weights_round_trip_exactly_in_float32():
    model = shortcut_network(4, 2, 2)
    W = get_weights(model)
    assert W.dtype == np.float64
    assign_weights(model, W + 1)
    np.testing.assert_array_equal(get_weights(model), (W + 1).astype(np.float32))
    np.testing.assert_array_equal(get_weights(shortcut_network(4, 2, 2)), W)


def test_initial_weights_and_saving(tmp_path):
    decayed = linear_residual(2, 3, kernel_initializer="ones", weight_decay=0.5)
    assert float(sum(decayed.losses)) == pytest.approx(0.5 * 12 / 2)
    assert not get_weights(linear_residual(3, 2)).any()
    inputs = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    np.testing.assert_array_equal(linear_residual(3, 2).predict(inputs, verbose=0), inputs)
    orthogonal = get_weights(plain(3, 2, keras.initializers.Orthogonal(seed=0)))
    np.testing.assert_allclose(orthogonal[:, 0] @ orthogonal[:, 0].swapaxes(1, 2), [np.eye(3)] * 2, atol=1e-6)
    assert not np.array_equal(orthogonal[0], orthogonal[1])
    check_saving(shortcut_network(3, 2, 2, mid="relu"), inputs, tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"'linear_residual', \(2, 1, 3, 3\). Received: shape \(3, 1, 3, 3\)"):
        assign_weights(linear_residual(3, 2), np.zeros((3, 1, 3, 3)))
