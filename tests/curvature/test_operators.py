"""Hessian and Gauss-Newton operators compared with differences, closed forms and naive matrices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator, dense_hessian, top_eigenpairs
from tests.curvature import cases


@pytest.mark.parametrize(
    "name", ["labels and L2", "two outputs", "of the model", pytest.param("convolution", marks=pytest.mark.slow)]
)
def test_hessian_against_differences_of_plain_gradients(name):
    model, loss, (x, y) = cases.case(name)
    expected = cases.differences(model, lambda: cases.plain_gradient(model, loss, x, y))
    # Two batches, and a chunk that does not divide the number of parameters.
    operator = HessianOperator(model, loss, (x, y), batch_size=3, chunk=4)
    dense = dense_hessian(operator)
    size = np.abs(expected).max()
    np.testing.assert_allclose(dense, expected, atol=1e-8 * size)
    np.testing.assert_array_equal(dense, dense.T)
    vectors = np.random.default_rng(0).normal(size=(len(dense), 4))
    np.testing.assert_allclose(operator @ vectors, dense @ vectors, atol=1e-12 * size * len(dense))
    np.testing.assert_allclose(operator @ vectors[:, 0], dense @ vectors[:, 0], atol=1e-12 * size * len(dense))
    assert operator.loss() == pytest.approx(float(cases.plain_loss(model, loss, x, y)), rel=1e-12)
    np.testing.assert_allclose(operator.gradient(), cases.plain_gradient(model, loss, x, y), atol=1e-12)


def jacobian(model, x):
    """Return the Jacobian by TensorFlow, (rows, outputs, P)."""
    with tf.GradientTape() as tape:
        outputs = model(x, training=False)
    variables = [variable.value for variable in model.trainable_variables]
    parts = tape.jacobian(outputs, variables)
    return np.concatenate([np.reshape(part, (*outputs.shape, -1)) for part in parts], axis=-1)


@pytest.mark.parametrize("name", ["labels and L2", "convolution"])
def test_gauss_newton_against_its_factors(name):
    model, loss, (x, y) = cases.case(name)
    J, outputs = jacobian(model, x), model(x, training=False).numpy()
    p = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    bends = np.stack([np.diag(row) - np.outer(row, row) for row in p])
    expected = np.einsum("nap,nab,nbq->pq", J, bends, J) / len(x)
    options = {"batch_size": 3, "check": False}
    if name == "labels and L2":
        vector = np.random.default_rng(0).normal(size=len(expected))
        plain = GaussNewtonOperator(model, loss, (x, y), regularization=False, **options)
        np.testing.assert_allclose(plain @ vector, expected @ vector, atol=1e-11)
        expected += np.diag((np.arange(len(expected)) < 12) * 2 * 0.1)
    dense = GaussNewtonOperator(model, loss, (x, y), **options).to_dense()
    np.testing.assert_allclose(dense, expected, atol=1e-12)
    assert np.linalg.eigvalsh(dense)[0] > -1e-12


def test_results_do_not_depend_on_batch_sizes():
    model, _, (x, y) = cases.case("cross-entropy")
    vector = np.random.default_rng(0).normal(size=model.count_params())
    weights = np.random.default_rng(1).uniform(0.2, 3, len(x))
    for reduction in ("sum_over_batch_size", "mean_with_sample_weight"):
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, reduction=reduction)
        data = (x, y) if reduction == "sum_over_batch_size" else (x, y, weights)
        batches = [tuple(part[a:b] for part in data) for a, b in ((0, 2), (2, 6))]
        uneven = HessianOperator(model, loss, batches, check=False)
        np.testing.assert_allclose(uneven.gradient(), cases.plain_gradient(model, loss, *data), atol=1e-12)
        expected = HessianOperator(model, loss, data, check=False) @ vector
        np.testing.assert_allclose(uneven @ vector, expected, atol=1e-12)
    # A callable that returns a mean is weighted by the size of the batch.
    shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(4)

    def mean(y, f):
        return -tf.reduce_mean(tf.reduce_sum(y * tf.nn.log_softmax(f), -1))

    by_mean = HessianOperator(model, mean, shuffled, check=False)
    whole = keras.losses.CategoricalCrossentropy(from_logits=True)
    np.testing.assert_allclose(by_mean.gradient(), cases.plain_gradient(model, whole, x, y), atol=1e-12)


def test_variables_restrict_to_a_block_and_blocks_are_parts_of_the_whole():
    model, loss, data = cases.case("convolution")
    operator = HessianOperator(model, loss, data, chunk=4, check=False)
    dense = operator.to_dense()
    blocks = operator.blocks()
    vector = np.random.default_rng(0).normal(size=len(dense))
    np.testing.assert_allclose(operator.T @ vector, dense @ vector, atol=1e-13)
    assert list(blocks) == list(operator.layers) == [layer.path for layer in model.layers if layer.trainable_weights]
    for layer, part in operator.layers.items():
        np.testing.assert_allclose(blocks[layer], dense[part, part], atol=1e-13)
    head = model.layers[-1]
    restricted = HessianOperator(model, loss, data, head, check=False)
    last = operator.layers[head.path]
    np.testing.assert_allclose(restricted.to_dense(), dense[last, last], atol=1e-13)
    for variables in (head.trainable_variables, [head]):
        assert HessianOperator(model, loss, data, variables, check=False).variables == restricted.variables
    frozen = HessianOperator(model, loss, data, model.layers[1].moving_variance, check=False)
    assert frozen.shape == (2, 2)


def test_layers_of_equal_names_are_distinguished():
    keras.config.set_dtype_policy("float64")
    inputs = keras.Input((3,))
    towers = [keras.Model(inputs, keras.layers.Dense(2, name="a")(inputs)) for _ in range(2)]
    model = keras.Model(inputs, keras.layers.Add()([tower(inputs) for tower in towers]))
    data = np.random.default_rng(0).normal(size=(5, 3)), np.random.default_rng(1).normal(size=(5, 2))
    operator = HessianOperator(model, "mse", data, check=False)
    assert operator.layers == {"a": slice(0, 8), "a:2": slice(8, 16)}


def test_operators_follow_the_model_and_do_not_change_it():
    model, loss, data = cases.case("convolution")
    before = [np.array(variable) for variable in model.variables]
    operator = HessianOperator(model, loss, data, training=True, batch_size=100)
    first = operator @ np.ones(operator.shape[0])
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, np.array(new))
    # In training mode the statistics of the batch are used.
    x, y = np.array(data[0]), data[1]
    of_list = HessianOperator(model, loss, [(x, y)], check=False)
    gradient = of_list.gradient()
    assert not np.allclose(operator.gradient(), gradient, rtol=1e-3)
    # Changes of the weights and of the batches of a list are followed.
    model.trainable_variables[0].assign(before[0] * 1.5)
    assert not np.allclose(operator @ np.ones(operator.shape[0]), first)
    model.trainable_variables[0].assign(before[0])
    x[:] *= 2
    assert not np.allclose(of_list.gradient(), gradient)


def test_half_precision_equals_float32_up_to_rounding(slow):
    x = np.random.default_rng(0).normal(size=(16, 10)).astype("float32")
    tolerances = {"float32": 0, "float16": 2e-3, "mixed_bfloat16": 2e-2, **({"bfloat16": 2e-2} if slow else {})}
    products, largest, weights = {}, {}, None
    for name, tolerance in tolerances.items():
        keras.config.set_dtype_policy(name)
        keras.utils.set_random_seed(0)
        hidden = keras.layers.Dense(10, "tanh")
        model = keras.Sequential([keras.Input((10,)), hidden, keras.layers.Dense(10)])
        # Numbers that all of the dtypes have.
        weights = weights or [tf.cast(tf.cast(weight, tf.bfloat16), tf.float32) for weight in model.get_weights()]
        model.set_weights(weights)
        operator = HessianOperator(model, "mse", (x, x), hidden, batch_size=8)
        assert operator.dtype == np.float32
        products[name] = operator @ np.ones(110, np.float32)
        largest[name] = top_eigenpairs(operator, 1, tolerance=1e-2).values
        expected = products["float32"]
        np.testing.assert_allclose(products[name], expected, atol=tolerance * np.abs(expected).max())
        np.testing.assert_allclose(largest[name], largest["float32"], rtol=tolerance)
