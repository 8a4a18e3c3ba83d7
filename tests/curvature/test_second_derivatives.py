"""Layers with wrong or missing second derivatives in TensorFlow."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.autodiff import gradient
from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator, trace
from tests.curvature import cases


@pytest.fixture(autouse=True)
def double(default_policy):
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)


def sequential(*layers, shape=(4,), dtype="float64"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers, keras.layers.Dense(2)])


def test_second_derivatives_of_normalization():
    """Compare with differences: all weights for BatchNormalization, one direction for GroupNormalization."""
    x, y = np.random.default_rng(0).normal(size=(2, 7, 4))
    y = y[:, :2]
    model = sequential(keras.layers.Dense(4, activation="tanh"), keras.layers.GroupNormalization(2))
    assert cases.relative_error(HessianOperator(model, "mse", (x, y))) < 1e-6
    model = sequential(keras.layers.Dense(3, activation="tanh"), keras.layers.BatchNormalization())

    def gradient():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((model(x, training=True) - y) ** 2)
        state = [variable.value for variable in model.trainable_variables]
        return cases.flat(tape.gradient(value, state, unconnected_gradients="zero"))

    # In training mode the moving averages are updated; the loss does not depend on them.
    expected = cases.differences(model, gradient)
    operator = HessianOperator(model, "mse", (x, y), training=True, check=False)
    np.testing.assert_allclose(operator.to_dense(), expected, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("kind", "arguments", "shape"),
    [
        (keras.layers.MaxPooling1D, (2, 1, "same"), (6, 2)),
        (keras.layers.MaxPooling2D, (3, 1, "same"), (4, 5, 2)),
        (keras.layers.MaxPooling2D, ((1, 2), (2, 1), "same", "channels_first"), (2, 1, 5)),
        # TensorFlow computes these correctly.
        pytest.param(keras.layers.MaxPooling2D, (1,), (4, 5, 2), marks=pytest.mark.slow),
        pytest.param(keras.layers.MaxPooling2D, (3, 2, "same"), (4, 5, 2), marks=pytest.mark.slow),
        (keras.layers.MaxPooling3D, (2, 1, "same"), (2, 3, 2, 2)),
    ],
)
def test_second_derivatives_of_max_pooling(kind, arguments, shape):
    # TensorFlow has no pooling in three dimensions in float64.
    dtype, step, tolerance = ("float32", 3e-3, 3e-3) if len(shape) == 4 else ("float64", 1e-5, 1e-6)
    keras.config.set_dtype_policy(dtype)
    rest = [keras.layers.Activation("tanh"), keras.layers.Flatten()]
    model = sequential(keras.layers.Dense(shape[-1]), kind(*arguments), *rest, shape=shape)
    data = np.random.default_rng(0).normal(size=(5, *shape)), np.random.default_rng(1).normal(size=(5, 2))
    operator = HessianOperator(model, "mse", data, check=False)
    assert cases.relative_error(operator, step) < tolerance
    if arguments[-1] == "channels_first":
        vectors = np.random.default_rng(2).normal(size=(operator.shape[0], 3))
        products = vectors.T @ (GaussNewtonOperator(model, "mse", data, check=False) @ vectors)
        np.testing.assert_allclose(products, products.T, rtol=0, atol=tolerance * np.abs(products).max())


def test_second_derivatives_of_bilinear_resizing():
    """Compare with the same map as a matrix, because TensorFlow's gradient has a derivative of zero."""
    resizing = keras.layers.Resizing(3, 5)
    matrix = np.reshape(resizing(np.eye(16).reshape(16, 4, 4, 1)), (16, 15))
    as_matrix = keras.layers.Dense(15, use_bias=False, trainable=False)
    first = [keras.layers.Dense(1, activation="tanh")]
    rest = [keras.layers.Activation("tanh"), keras.layers.Flatten()]
    model = sequential(*first, resizing, *rest, shape=(4, 4, 2))
    same = sequential(*first, keras.layers.Flatten(), as_matrix, *rest, shape=(4, 4, 2))
    as_matrix.set_weights([matrix])
    same.layers[-1].set_weights(model.layers[-1].get_weights())
    x, y = np.random.default_rng(0).normal(size=(5, 4, 4, 2)), np.random.default_rng(1).normal(size=(5, 2))
    # Two products at once of the Hessian, and a single one of the Gauss-Newton matrix.
    for kind, count in ((HessianOperator, 2), (GaussNewtonOperator, 1)):
        operators = [kind(network, "mse", (x, y), check=False) for network in (model, same)]
        vectors = np.random.default_rng(2).normal(size=(operators[0].shape[0], count))
        products = [operator @ vectors for operator in operators]
        # TensorFlow resizes in float32.
        np.testing.assert_allclose(*products, rtol=0, atol=1e-5)
        assert np.abs(products[0]).max() > 0.1


class Rematerialized(keras.layers.Layer):
    """Dense layer that stores a rematerialized function."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, "tanh")
        self.rematerialized = keras.remat(self.dense.call)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, inputs):
        return self.rematerialized(inputs)


@pytest.mark.parametrize("mode", ["full", "activations", "stored"])
def test_rematerialized_layers(mode):
    """TensorFlow's `recompute_grad` loses the derivatives with respect to tensors in place of variables."""
    with keras.RematScope(None if mode == "stored" else mode):
        model = sequential(Rematerialized() if mode == "stored" else keras.layers.Dense(3, "tanh"))
    x, y = np.random.default_rng(0).normal(size=(7, 4)), np.random.default_rng(1).normal(size=(7, 2))
    operator = HessianOperator(model, "mse", (x, y))

    def value(_=None):
        return keras.ops.mean((model(x) - y) ** 2)

    expected = cases.differences(model, value)
    np.testing.assert_allclose(operator.gradient(), expected, atol=1e-8)
    np.testing.assert_allclose(cases.flat(gradient(value, model.trainable_variables)), expected, atol=1e-8)
    assert cases.relative_error(operator) < 1e-6


def test_missing_second_derivatives_raise():
    model = sequential(keras.layers.Dense(3), shape=(4, 2))
    operator = HessianOperator(model, keras.losses.CTC(), (np.ones((2, 4, 2)), np.ones((2, 1))), check=False)
    with pytest.raises(ValueError, match=r"cannot differentiate .* twice: .*KERAS_BACKEND=jax"):
        operator @ np.ones(operator.shape[0])


def test_second_derivatives_of_an_embedding():
    model = sequential(keras.layers.Embedding(5, 3), keras.layers.GlobalAveragePooling1D(), shape=(4,), dtype="int32")
    data = np.random.default_rng(0).integers(0, 5, (6, 4)), np.random.default_rng(1).normal(size=(6, 2))
    operator = HessianOperator(model, "mse", data)
    assert cases.relative_error(operator) < 1e-6
    vectors = np.random.default_rng(2).normal(size=(operator.shape[0], 3))
    np.testing.assert_allclose((operator @ vectors)[:, 1], operator @ vectors[:, 1], atol=1e-12)
    assert vectors[:, 0] @ (GaussNewtonOperator(model, "mse", data, check=False) @ vectors[:, 0]) > 0.01


@pytest.mark.slow
def test_recurrent_layers_that_are_not_unrolled(capfd):
    x, y = np.random.default_rng(0).normal(size=(4, 2, 2)), np.random.default_rng(1).normal(size=(4, 2))
    results = []
    for unroll in (False, True):
        keras.utils.set_random_seed(0)
        model = sequential(keras.layers.LSTM(2, unroll=unroll), shape=(2, 2))
        operator = HessianOperator(model, "mse", (x, y), check=False, chunk=3)
        vectors = np.random.default_rng(2).normal(size=(operator.shape[0], 3))
        # Always three vectors at once, which share one trace.
        results.append((operator @ vectors, operator.to_dense(), trace(operator, 9).value))
    for looped, unrolled in zip(*results, strict=True):
        np.testing.assert_allclose(looped, unrolled, atol=1e-12)
    assert capfd.readouterr().err.count("\n") < 5
