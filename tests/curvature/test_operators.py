"""Hessian, Gauss-Newton and Fisher operators compared with differences, closed forms and naive matrices."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from idmatters_tf.curvature import (
    FisherOperator,
    GaussNewtonOperator,
    HessianOperator,
    dense_hessian,
    layer_coupling,
    top_eigenpairs,
)
from idmatters_tf.models.linear import assign_weights, shortcut_network
from tests.support import curvature_cases as cases


@pytest.mark.parametrize("name", ["labels and L2", "convolution", "two outputs", "of the model"])
def test_hessian_against_differences_of_plain_gradients(name):
    model, loss, (x, y) = cases.case(name)
    expected = cases.differences(model, lambda: cases.plain_gradient(model, loss, x, y))
    # Two batches, and a chunk that does not divide the number of parameters.
    operator = HessianOperator(model, loss, (x, y), batch_size=3, chunk=4)
    assert operator.difference.status == "agrees"
    dense = operator.to_dense()
    size = np.abs(expected).max()
    np.testing.assert_allclose(dense, expected, atol=1e-8 * size)
    np.testing.assert_array_equal(dense, dense.T)
    vectors = np.random.default_rng(0).normal(size=(len(dense), 4))
    np.testing.assert_allclose(operator @ vectors, dense @ vectors, atol=1e-12 * size * len(dense))
    np.testing.assert_allclose(operator @ vectors[:, 0], dense @ vectors[:, 0], atol=1e-12 * size * len(dense))
    assert operator.loss() == pytest.approx(float(cases.plain_loss(model, loss, x, y)), rel=1e-12)
    np.testing.assert_allclose(operator.gradient(), cases.plain_gradient(model, loss, x, y), atol=1e-12)


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_hessian_against_the_closed_form_of_linear_networks(seed, shortcut):
    keras.config.set_dtype_policy("float64")
    rng = np.random.default_rng(seed)
    units, n, d = rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 4)
    W, (X, Y) = rng.normal(size=(units, n, d, d)) / 2, rng.normal(size=(2, d, 6))
    model = shortcut_network(int(d), int(units), int(n), shortcut=shortcut)
    assign_weights(model, W)
    dense = dense_hessian(model, lambda y, f: tf.reduce_sum((y - f) ** 2, -1) / 2, (X.T, Y.T), check=False)
    statistics = linear.sufficient_statistics(X, Y)
    expected = linear.shortcut_hessian(W, statistics.sxx, statistics.syx, shortcut)
    # Keras' kernels are the transposes.
    order = np.arange(W.size).reshape(units * n, d, d).swapaxes(1, 2).ravel()
    np.testing.assert_allclose(dense, expected[np.ix_(order, order)], atol=1e-12 * np.abs(expected).max())


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


def test_gauss_newton_of_repeated_outputs():
    keras.config.set_dtype_policy("float64")
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2)(inputs)
    x, y = np.random.default_rng(0).normal(size=(5, 3)), np.random.default_rng(1).normal(size=(5, 2))
    for same in (outputs, keras.layers.Activation("linear")(outputs)):
        # For a linear model the matrix is the Hessian.
        model = keras.Model(inputs, [outputs, same])
        matrices = [
            kind(model, ["mse", "mse"], (x, [y, 2 * y]), check=False).to_dense()
            for kind in (GaussNewtonOperator, HessianOperator)
        ]
        np.testing.assert_allclose(*matrices, atol=1e-12)


def test_fisher_is_the_second_moment_of_the_examples_gradients():
    model, loss, (x, y) = cases.case("cross-entropy")
    weights = np.random.default_rng(0).uniform(0.5, 2, len(x))
    gradients = np.stack([cases.plain_gradient(model, loss, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    for data, of_example in (((x, y), np.ones(len(x))), ((x, y, weights), weights)):
        operator = FisherOperator(model, loss, data, batch_size=3, check=False)
        expected = (gradients.T * of_example) @ gradients / len(x)
        np.testing.assert_allclose(operator.to_dense(), expected, atol=1e-13)
    np.testing.assert_allclose(operator @ np.ones(len(expected)), expected.sum(axis=1), atol=1e-12)


def test_batches_of_other_sizes_give_the_same():
    model, _, (x, y) = cases.case("cross-entropy")
    vector = np.random.default_rng(0).normal(size=model.count_params())
    weights = np.random.default_rng(1).uniform(0.2, 3, len(x))
    # Each reduction with weights or without them.
    for reduction, weighted in {
        "sum_over_batch_size": False,
        "sum": True,
        "mean_with_sample_weight": True,
        None: False,
    }.items():
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, reduction=reduction)
        whole = keras.losses.CategoricalCrossentropy(from_logits=True, reduction=reduction or "sum_over_batch_size")
        data = (x, y, weights) if weighted else (x, y)
        batches = [tuple(part[a:b] for part in data) for a, b in ((0, 1), (1, 3), (3, 6))]
        uneven = HessianOperator(model, loss, batches, check=False)
        np.testing.assert_allclose(uneven.gradient(), cases.plain_gradient(model, whole, *data), atol=1e-12)
        if weighted:
            expected = HessianOperator(model, loss, data, check=False) @ vector
            np.testing.assert_allclose(uneven @ vector, expected, atol=1e-12)
    # A callable that returns a mean is weighted by the size of the batch.
    shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(4)

    def mean(y, f):
        return -tf.reduce_mean(tf.reduce_sum(y * tf.nn.log_softmax(f), -1))

    by_mean = HessianOperator(model, mean, shuffled, check=False)
    np.testing.assert_allclose(by_mean.gradient(), uneven.gradient(), atol=1e-12)


def sequence_case():
    layers = keras.layers
    inputs = keras.Input((None, 4))
    hidden = layers.LayerNormalization()(layers.Conv1D(4, 3, padding="same", activation="tanh")(inputs))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden)))


def image_case():
    layers = keras.layers
    # Keras' UpSampling2D fails on images of unknown size.
    return keras.Sequential(
        [
            keras.Input((None, None, 3)),
            layers.Conv2D(4, 3, activation="softplus"),
            layers.UpSampling2D(2, interpolation="bilinear"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )


@pytest.mark.parametrize("make", [sequence_case, image_case])
def test_batches_of_sequences_and_images_of_other_sizes(make):
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    model, rng = make(), np.random.default_rng(0)
    shapes = [(size, 4) if make is sequence_case else (size, size + 2, 3) for size in (5, 9)]
    counts = [8, 3]
    data = [
        (rng.normal(size=(count, *shape)), np.arange(count) % 3) for count, shape in zip(counts, shapes, strict=True)
    ]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    of_all, *parts = (HessianOperator(model, loss, part, check=False) for part in (data, *([one] for one in data)))
    vector = rng.normal(size=of_all.shape[0])
    expected = np.average([part @ vector for part in parts], axis=0, weights=counts)
    # TensorFlow resizes images in float32.
    np.testing.assert_allclose(of_all @ vector, expected, atol=1e-7 if make is image_case else 1e-12)


def test_variables_restrict_to_a_block_and_blocks_are_parts_of_the_whole():
    model, loss, data = cases.case("convolution")
    operator = HessianOperator(model, loss, data, chunk=5, check=False)
    dense = operator.to_dense()
    blocks = operator.blocks()
    vector = np.random.default_rng(0).normal(size=len(dense))
    np.testing.assert_allclose(operator.T @ vector, dense @ vector, atol=1e-13)
    assert list(blocks) == list(operator.layers) == [layer.path for layer in model.layers if layer.trainable_weights]
    for layer, place in operator.layers.items():
        np.testing.assert_allclose(blocks[layer], dense[place, place], atol=1e-13)
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
    assert {name: block.shape for name, block in operator.blocks().items()} == {"a": (8, 8), "a:2": (8, 8)}
    # The two blocks and those between them are equal.
    np.testing.assert_allclose(layer_coupling(operator).norms, np.linalg.norm(operator.blocks()["a"]))
    (first, bias), (second, _) = (tower.trainable_variables for tower in towers)
    apart = HessianOperator(model, "mse", data, [first, second, bias], check=False)
    assert apart.layers == {"a": slice(0, 6), "a:2": slice(6, 12), "a:3": slice(12, 14)}


def test_the_model_is_left_as_it_was_and_followed():
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


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_variables_in_half_precision(dtype, tolerance):
    x = np.random.default_rng(0).normal(size=(16, 20)).astype("float32")
    products, largest, weights = [], [], None
    for policy in (dtype, "float32"):
        keras.config.set_dtype_policy(policy)
        keras.utils.set_random_seed(0)
        hidden = keras.layers.Dense(20, "tanh")
        model = keras.Sequential([keras.Input((20,)), hidden, keras.layers.Dense(20)])
        weights = weights or [np.asarray(weight, np.float32) for weight in model.get_weights()]
        model.set_weights(weights)
        operator = HessianOperator(model, "mse", (x, x), hidden)
        assert operator.dtype == np.float32
        products.append(operator @ np.ones(420, np.float32))
        largest.append(top_eigenpairs(operator, 1, tolerance=1e-2).values)
    np.testing.assert_allclose(*products, atol=tolerance * np.abs(products[1]).max())
    np.testing.assert_allclose(*largest, rtol=tolerance)


def test_mixed_precision_equals_float32_up_to_rounding():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 8, 8, 3)).astype("float32"), np.arange(20) % 4
    products = {}
    for policy in ("float32", "mixed_bfloat16"):
        keras.utils.set_random_seed(0)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Conv2D(6, 3, activation="softplus", dtype=policy),
                layers.BatchNormalization(dtype=policy),
                layers.DepthwiseConv2D(3, dtype=policy),
                layers.AveragePooling2D(2, dtype=policy),
                layers.Flatten(dtype=policy),
                layers.Dense(4, dtype=policy),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        operator = HessianOperator(model, loss, (x, y), batch_size=7, check=False)
        products[policy] = operator @ np.random.default_rng(1).normal(size=operator.shape[0])
        assert products[policy].dtype == operator.dtype == np.float32
    error = np.linalg.norm(products["mixed_bfloat16"] - products["float32"])
    assert error < 0.03 * np.linalg.norm(products["float32"])


def test_relu_networks_with_linear_last_layer_have_the_gauss_newton_diagonal():
    """Check diag(Hessian) = diag(GGN) for a network that is piecewise linear in the weights of each layer."""
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(2)])
    x, y = np.random.default_rng(0).normal(size=(2, 6, 4))
    data = x, y[:, :2]
    hessian, gauss_newton = (
        kind(model, "mse", data, check=False).to_dense() for kind in (HessianOperator, GaussNewtonOperator)
    )
    np.testing.assert_allclose(np.diag(hessian), np.diag(gauss_newton), atol=1e-12)
    assert np.abs(hessian - gauss_newton).max() > 0.01
