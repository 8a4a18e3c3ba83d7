"""Hessian, Gauss-Newton and Fisher operators compared with differences, closed forms and naive matrices."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from idmatters_tf.curvature import FisherOperator, GaussNewtonOperator, HessianOperator, dense_hessian
from idmatters_tf.models.linear import assign_weights, shortcut_network
from tests.support import curvature_cases as cases


@pytest.mark.parametrize("name", cases.NAMES)
def test_hessian_against_differences_of_plain_gradients(name):
    model, loss, (x, y) = cases.case(name)
    expected = cases.differences(model, lambda: cases.plain_gradient(model, loss, x, y))
    # Two batches, and a chunk that does not divide the number of parameters.
    operator = HessianOperator(model, loss, (x, y), batch_size=3, chunk=4)
    dense = operator.to_dense()
    size = np.abs(expected).max()
    np.testing.assert_allclose(dense, expected, atol=1e-8 * size)
    np.testing.assert_array_equal(dense, dense.T)
    vectors = np.random.default_rng(0).normal(size=(len(dense), 4))
    np.testing.assert_allclose(operator @ vectors, dense @ vectors, atol=1e-12 * size * len(dense))
    np.testing.assert_allclose(operator @ vectors[:, 0], dense @ vectors[:, 0], atol=1e-12 * size * len(dense))
    assert operator.loss() == pytest.approx(float(cases.plain_loss(model, loss, x, y)), rel=1e-12)
    np.testing.assert_allclose(operator.gradient(), cases.plain_gradient(model, loss, x, y), atol=1e-12)


@settings(max_examples=4)
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


@pytest.mark.parametrize("name", ["squares", "labels and L2", "convolution"])
def test_gauss_newton_against_its_factors(name):
    model, loss, (x, y) = cases.case(name)
    J, outputs = jacobian(model, x), model(x, training=False).numpy()
    if name == "squares":
        bends = np.broadcast_to(2 / outputs.shape[1] * np.eye(outputs.shape[1]), (len(x), *2 * outputs.shape[1:]))
    else:
        p = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        bends = np.stack([np.diag(row) - np.outer(row, row) for row in p])
    expected = np.einsum("nap,nab,nbq->pq", J, bends, J) / len(x)
    operator = GaussNewtonOperator(model, loss, (x, y), batch_size=3, regularization=False)
    dense = operator.to_dense()
    np.testing.assert_allclose(dense, expected, atol=1e-12)
    assert np.linalg.eigvalsh(dense)[0] > -1e-12
    vector = np.random.default_rng(0).normal(size=len(dense))
    np.testing.assert_allclose(operator @ vector, expected @ vector, atol=1e-11)
    if name == "labels and L2":
        kernel = (np.arange(len(dense)) < 12) * 2 * 0.1
        penalised = GaussNewtonOperator(model, loss, (x, y)).to_dense()
        np.testing.assert_allclose(penalised, expected + np.diag(kernel), atol=1e-12)
        plain, with_penalty = (
            dense_hessian(model, loss, (x, y), regularization=included) for included in (False, True)
        )
        np.testing.assert_allclose(with_penalty - plain, np.diag(kernel), atol=1e-12)


def test_fisher_is_the_second_moment_of_the_examples_gradients():
    model, loss, (x, y) = cases.case("cross-entropy")
    weights = np.random.default_rng(0).uniform(0.5, 2, len(x))
    gradients = np.stack([cases.plain_gradient(model, loss, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    for data, of_example in (((x, y), np.ones(len(x))), ((x, y, weights), weights)):
        operator = FisherOperator(model, loss, data, batch_size=3)
        expected = (gradients.T * of_example) @ gradients / len(x)
        np.testing.assert_allclose(operator.to_dense(), expected, atol=1e-13)
        np.testing.assert_allclose(operator @ np.ones(len(expected)), expected.sum(axis=1), atol=1e-12)


# Each reduction with weights or without them, and in slow tests with the other one of the two.
REDUCTIONS = {"sum_over_batch_size": False, "sum": True, "mean_with_sample_weight": True, None: False}


@pytest.mark.parametrize(
    ("reduction", "weighted"),
    [
        pytest.param(reduction, weighted, marks=[pytest.mark.slow] * (weighted != fast))
        for reduction, fast in REDUCTIONS.items()
        for weighted in (False, True)
    ],
)
def test_batches_of_other_sizes_give_the_same(reduction, weighted):
    model, _, (x, y) = cases.case("cross-entropy")
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, reduction=reduction)
    whole = keras.losses.CategoricalCrossentropy(from_logits=True, reduction=reduction or "sum_over_batch_size")
    weights = np.random.default_rng(1).uniform(0.2, 3, len(x)) if weighted else None
    expected = cases.plain_gradient(model, whole, x, y, weights)
    data = (x, y, weights) if weighted else (x, y)
    results = [HessianOperator(model, loss, data, batch_size=size) for size in (6, 4)]
    uneven = [tuple(part[a:b] for part in data) for a, b in ((0, 1), (1, 5), (5, 6))]
    results.append(HessianOperator(model, loss, uneven))
    for operator in results:
        np.testing.assert_allclose(operator.gradient(), expected, atol=1e-12)
        np.testing.assert_allclose(operator.to_dense(), results[0].to_dense(), atol=1e-12)


def test_a_callable_that_returns_the_mean_is_weighted_by_the_batch():
    model, _, (x, y) = cases.case("squares")
    by_example = dense_hessian(model, lambda y, f: tf.reduce_sum((y - f) ** 2, -1), (x, y), batch_size=3)
    by_mean = dense_hessian(model, lambda y, f: tf.reduce_mean(tf.reduce_sum((y - f) ** 2, -1)), (x, y), batch_size=3)
    np.testing.assert_allclose(by_mean, by_example, atol=1e-13)


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


@pytest.mark.parametrize(
    ("make", "operator"),
    [
        (sequence_case, HessianOperator),
        pytest.param(sequence_case, FisherOperator, marks=pytest.mark.slow),
        (image_case, HessianOperator),
    ],
)
def test_batches_sequence_case_and_images_of_other_sizes(make, operator):
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    model, rng = make(), np.random.default_rng(0)
    shapes = [(size, 4) if make is sequence_case else (size, size + 2, 3) for size in (5, 9, 5)]
    counts = [8, 3, 8]
    data = [
        (rng.normal(size=(count, *shape)), np.arange(count) % 3) for count, shape in zip(counts, shapes, strict=True)
    ]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    of_all = operator(model, loss, data, check=False)
    vectors = rng.normal(size=(of_all.shape[0], 3))
    products = of_all @ vectors
    # Batches of one size, and one batch of another size.
    parts = [operator(model, loss, part, check=False) @ vectors for part in (data[::2], data[1:2])]
    # TensorFlow resizes images in float32.
    atol = 1e-7 if make is image_case else 1e-12
    np.testing.assert_allclose(products, np.average(parts, axis=0, weights=[16, 3]), atol=atol)
    np.testing.assert_allclose(of_all @ vectors[:, 0], products[:, 0], atol=atol)


def test_many_sizes_of_batches_and_a_shuffled_data_set():
    model, loss, (x, y) = cases.case("cross-entropy")
    expected = dense_hessian(model, loss, (x, y))
    batches = [(x[a:b], y[a:b]) for a, b in [(0, 1), (1, 3), (3, 6)]]
    np.testing.assert_allclose(dense_hessian(model, loss, batches), expected, atol=1e-13)
    shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(4)
    np.testing.assert_allclose(dense_hessian(model, loss, shuffled), expected, atol=1e-13)


def test_variables_restrict_to_a_block_and_blocks_are_parts_of_the_whole():
    model, loss, data = cases.case("convolution")
    operator = HessianOperator(model, loss, data, chunk=5)
    dense = operator.to_dense()
    blocks, pairs = operator.blocks(), operator.blocks(off_diagonal=True)
    vector = np.random.default_rng(0).normal(size=len(dense))
    np.testing.assert_allclose(operator.T @ vector, operator @ vector, atol=1e-13)
    assert list(blocks) == list(operator.layers) == [layer.path for layer in model.layers if layer.trainable_weights]
    for row, rows in operator.layers.items():
        np.testing.assert_allclose(blocks[row], dense[rows, rows], atol=1e-13)
        for column, columns in operator.layers.items():
            np.testing.assert_allclose(pairs[row, column], dense[rows, columns], atol=1e-13)
    last = operator.layers[model.layers[-1].path]
    for variables in (model.layers[-1], model.layers[-1].trainable_variables, [model.layers[-1]]):
        restricted = HessianOperator(model, loss, data, variables)
        np.testing.assert_allclose(restricted.to_dense(), dense[last, last], atol=1e-13)
    frozen = HessianOperator(model, loss, data, model.layers[1].moving_variance)
    assert frozen.shape == (2, 2)


def test_the_model_is_left_as_it_was_and_followed():
    model, loss, data = cases.case("convolution")
    before = [np.array(variable) for variable in model.variables]
    operator = HessianOperator(model, loss, data, training=True, batch_size=100)
    first = operator.to_dense()
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, np.array(new))
    model.trainable_variables[0].assign(before[0] * 1.5)
    assert not np.allclose(operator.to_dense(), first)
    # The operator also follows changes of the batches of a list.
    x, y = np.array(data[0]), data[1]
    operator = HessianOperator(model, loss, [(x, y)], check=False)
    first = operator.gradient()
    x[:] *= 2
    assert not np.allclose(operator.gradient(), first)
    # In training mode the statistics of the batch are used.
    assert not np.allclose(operator.gradient(), HessianOperator(model, loss, data).gradient(), rtol=1e-3)


def test_float32():
    model, loss, (x, y) = cases.case("cross-entropy")
    expected = dense_hessian(model, loss, (x, y))
    keras.config.set_dtype_policy("float32")
    single = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(3)])
    single.set_weights(model.get_weights())
    operator = HessianOperator(single, loss, (x.astype(np.float32), y))
    assert operator.dtype == np.float32
    assert (operator @ np.ones(len(expected))).dtype == np.float32
    np.testing.assert_allclose(operator.to_dense(), expected, atol=1e-6)


@pytest.mark.parametrize(
    "operator",
    [HessianOperator, *(pytest.param(each, marks=pytest.mark.slow) for each in (GaussNewtonOperator, FisherOperator))],
)
def test_mixed_precision_equals_float32_up_to_rounding(operator):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 8, 8, 3)).astype("float32"), np.arange(20) % 4
    products = {}
    for policy in ("float32", "mixed_bfloat16", "mixed_float16"):
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
        of_data = operator(model, loss, (x, y), batch_size=7, check=False)
        products[policy] = of_data @ np.random.default_rng(1).normal(size=of_data.shape[0])
        assert products[policy].dtype == np.float32
    size = np.linalg.norm(products["float32"])
    assert np.linalg.norm(products["mixed_bfloat16"] - products["float32"]) < 0.03 * size
    assert np.linalg.norm(products["mixed_float16"] - products["float32"]) < 0.01 * size


def test_relu_networks_with_linear_last_layer_have_the_gauss_newton_diagonal():
    """Check diag(Hessian) = diag(GGN) for a network that is piecewise linear in the weights of each layer."""
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(2)])
    x, y = np.random.default_rng(0).normal(size=(2, 6, 4))
    data = x, y[:, :2]
    hessian, gauss_newton = (kind(model, "mse", data).to_dense() for kind in (HessianOperator, GaussNewtonOperator))
    np.testing.assert_allclose(np.diag(hessian), np.diag(gauss_newton), atol=1e-12)
    assert np.abs(hessian - gauss_newton).max() > 0.01
