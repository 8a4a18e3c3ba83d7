"""Derivatives of functions of TensorFlow: its errors, graphs and threads."""

import concurrent.futures

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from idmatters_tf.autodiff import gradient, hessian, hvp, jacobian, jvp
from tests.autodiff import test_derivatives as cases


def test_normalization_by_moments():
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    normalization = layers.LayerNormalization()
    normalization.build((None, 4))
    x, v = cases.draw(1, 4), cases.draw(1, 4, seed=1)

    def function(x):
        return ops.sum(normalization(x) ** 3)

    def along(x):
        return jvp(function, x, v)

    expected = cases.differences(lambda x: gradient(function, x), x)
    cases.close(hessian(function, x), expected)
    # First derivatives are corrected if they are differentiated again, also by other tapes.
    cases.close(gradient(along, x), expected @ v[0])
    point = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(point)
        product = along(point)
    cases.close(tape.gradient(product, point), expected @ v[0])


def test_derivatives_inside_graphs():
    x, v = np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, -1.0])
    product = tf.function(lambda vector: hvp(lambda x: ops.sum(x**4), x, vector))
    np.testing.assert_allclose(product(v), 12 * x**2 * v)
    whole = tf.function(lambda x: jacobian(lambda x: x**2, x))
    np.testing.assert_allclose(whole(x), np.diag(2 * x))
    unknown = tf.function(whole.python_function, input_signature=[tf.TensorSpec([None], tf.float64)])
    with pytest.raises(ValueError, match=r"tensors of known shapes"):
        unknown(x)


def test_threads_restore_replaced_functions_of_tensorflow_and_keras():
    normalization = [layers.LayerNormalization() for _ in range(4)]
    x = np.arange(4, dtype="float32")[None]
    replaced = (tf.nn, "moments"), (keras.layers.Layer, "_clear_losses")
    before = [getattr(*owner_and_name) for owner_and_name in replaced]

    def products(layer):
        return [np.array(hvp(lambda x: ops.sum(layer(x) ** 3), x, x)) for _ in range(5)]

    expected = products(normalization[0])[0]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for found in threads.map(products, normalization):
            np.testing.assert_allclose(found, [expected] * 5, rtol=1e-5)
    assert [getattr(*owner_and_name) for owner_and_name in replaced] == before
