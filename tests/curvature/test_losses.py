"""Losses compared with `fit`: weighted and masked; warnings and errors for other losses."""

import contextlib
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.curvature import FisherOperator, GaussNewtonOperator, HessianOperator, dense_hessian
from tests.support import curvature_cases as cases


def rows(n=7, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype("float32")


def test_class_weights_equal_fit():
    model, loss, (x, y) = cases.case("labels and L2")
    by_class = {0: 0.5, 2: 3.0}
    weights = np.array([by_class.get(int(label), 1.0) for label in y])
    operator = HessianOperator(model, loss, (x, y), class_weight=by_class, batch_size=3, check=False)
    expected = cases.plain_gradient(model, loss, x, y, weights)
    np.testing.assert_allclose(operator.gradient(), expected, atol=1e-12)
    categorical = keras.losses.CategoricalCrossentropy(from_logits=True)
    one_hot = HessianOperator(model, categorical, (x, np.eye(3)[y]), class_weight=by_class, check=False)
    assert one_hot.loss() == pytest.approx(operator.loss())
    with pytest.raises(ValueError, match="`class_weight` requires one array of labels and no sample weights"):
        HessianOperator(model, loss, (x, y, weights), class_weight=by_class)


def masked():
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(3, activation="tanh")
    model = keras.Sequential(
        [keras.Input((3, 2), dtype="float64"), keras.layers.Masking(), hidden, keras.layers.Dense(2)]
    )
    x = np.random.default_rng(0).normal(size=(4, 3, 2))
    # Sequences of different lengths, so that batches differ in their fraction of padding.
    for row in range(4):
        x[row, 3 - row :] = 0
    return model, x, np.random.default_rng(1).normal(size=(4, 3, 2))


def test_masks_count_as_in_fit():
    model, x, y = masked()
    loss = keras.losses.MeanSquaredError(dtype="float64")

    def plain_gradient(x, y):
        with tf.GradientTape() as tape:
            value = loss(tf.constant(y), model(tf.constant(x)))
        return cases.flat(tape.gradient(value, [variable.value for variable in model.trainable_variables]))

    expected = float(loss(y, model(x)))
    assert abs(expected - float(loss(y, np.array(model(x))))) > 0.01 * expected
    operator = HessianOperator(model, loss, (x, y), batch_size=2)
    assert operator.loss() == pytest.approx(expected, rel=1e-12)
    gradient = plain_gradient(x, y)
    np.testing.assert_allclose(operator.gradient(), gradient, atol=1e-12)
    assert operator.difference.difference < 1e-6
    vector = np.random.default_rng(2).normal(size=len(gradient))
    # Near the minimum of a loss of squares, where labels are the outputs, Hessian and Gauss-Newton matrix are equal.
    fitted = (x, np.array(model(x)))
    pair = [
        kind(model, loss, fitted, batch_size=2, check=False) @ vector for kind in (HessianOperator, GaussNewtonOperator)
    ]
    np.testing.assert_allclose(*pair, atol=1e-12)
    # The Fisher matrix of one example is that of its gradient.
    one = x[2:3], y[2:3]
    slope = plain_gradient(*one)
    fisher = FisherOperator(model, loss, one, check=False)
    np.testing.assert_allclose(fisher @ vector, slope * (slope @ vector), atol=1e-12)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("from_logits", [True, False])
def test_losses_of_half_precision_outputs_are_computed_in_float32(policy, from_logits):
    keras.utils.set_random_seed(0)
    # Labels that bfloat16 would round, some to a class that does not exist, and sums of rounded probabilities.
    classes, activation = (1000, None) if from_logits else (10, "softmax")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(classes, activation, dtype=policy)])
    x, y = rows(200), np.arange(800, 1000) % classes
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        operator = HessianOperator(model, loss, (x, y), check=False)
    with tf.GradientTape() as tape:
        value = loss(y, model(x))
    assert operator.loss() == pytest.approx(float(value), rel=1e-6)
    expected = tape.gradient(value, model.trainable_variables)
    expected = np.concatenate([np.ravel(part) for part in expected])
    np.testing.assert_allclose(operator.gradient(), expected, atol=1e-3 * np.abs(expected).max())


def test_ignored_labels_and_weights_of_time_steps_count_as_in_fit():
    model, x, y = masked()
    labels = np.random.default_rng(4).integers(-1, 2, (4, 3))
    shapes = {"sum_over_batch_size": (4, 1), "sum": (4, 3, 1), "mean_with_sample_weight": (4, 3)}
    for reduction, shape in shapes.items():
        loss = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-1, reduction=reduction, dtype="float64")
        operator = HessianOperator(model, loss, (x, labels), batch_size=3, check=False)
        assert operator.loss() == pytest.approx(float(loss(labels, model(x))), rel=1e-12)
        weights = np.random.default_rng(3).uniform(0.5, 2, shape)
        loss = keras.losses.MeanSquaredError(reduction=reduction, dtype="float64")
        expected = float(loss(y, model(x), sample_weight=np.broadcast_to(weights.reshape(4, -1), (4, 3))))
        operator = HessianOperator(model, loss, (x, y, weights), batch_size=3, check=False)
        assert operator.loss() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", [keras.losses.Circle(gamma=2.0, margin=0.2), keras.losses.Dice(), "tversky"])
def test_losses_that_couple_examples_require_a_single_batch(loss):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")])
    y = np.arange(7) % 3 if isinstance(loss, keras.losses.Circle) else np.eye(3)[np.arange(7) % 3]
    operator = HessianOperator(model, loss, (rows(), y), check=False)
    assert operator.loss() == pytest.approx(float(keras.ops.mean(keras.losses.get(loss)(y, model(rows())))), rel=1e-6)
    # `Circle` ignores pairs depending on the outputs.
    model.layers[-1].kernel.assign(-3 * model.layers[-1].kernel)
    assert operator.loss() == pytest.approx(float(keras.ops.mean(keras.losses.get(loss)(y, model(rows())))), rel=1e-6)
    with pytest.raises(ValueError, match=r"couples the examples of a batch.*data in 3 batches.*batch_size=7"):
        HessianOperator(model, loss, (rows(), y), batch_size=3)


@pytest.mark.parametrize("rows", [4, 3])
def test_weights_of_examples_do_not_apply_to_time_steps(rows):
    model, x, y = masked()
    # With as many examples as steps, Keras' product of shapes (3, 3) and (3,) would weight the steps.
    data = x[:rows], y[:rows], np.ones(rows)
    with pytest.raises(ValueError, match=r"sample weights.*\(3,\)|sample weights \(4,\)"):
        HessianOperator(model, "mse", data, check=False)


@pytest.mark.parametrize("loss", [keras.losses.SparseCategoricalCrossentropy(), "binary_crossentropy"])
def test_outputs_that_are_not_probabilities_warn(loss):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    labels = np.eye(3)[np.arange(7) % 3] if loss == "binary_crossentropy" else np.arange(7) % 3
    with pytest.warns(UserWarning, match=r"expects probabilities, but the outputs of .*from_logits"):
        HessianOperator(model, loss, (rows(), labels))
    # Values between 0 and 1 that do not sum to 1.
    model.layers[-1].activation = keras.activations.sigmoid
    with contextlib.nullcontext() if loss == "binary_crossentropy" else pytest.warns(UserWarning, match="sum to"):
        HessianOperator(model, loss, (rows(), labels))
    if loss == "binary_crossentropy":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.layers[-1].activation = keras.activations.softmax
        HessianOperator(model, "sparse_categorical_crossentropy", (rows(), labels))
        model.layers[-1].activation = keras.activations.linear
        HessianOperator(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), (rows(), labels))


def test_infinite_data_set_raises():
    model, loss, (x, y) = cases.case("squares")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    with pytest.raises(ValueError, match=r"`data` must be finite.*infinite.*take\(batches\)"):
        HessianOperator(model, loss, data.repeat())
    assert HessianOperator(model, loss, data.repeat(2), check=False).loss() > 0


def test_dense_hessian_and_repr_of_an_operator():
    model, loss, data = cases.case("labels and L2")
    operator = HessianOperator(model, loss, data, check=False)
    np.testing.assert_allclose(dense_hessian(operator), operator.to_dense(), atol=1e-14)
    with pytest.raises(ValueError, match="Pass it alone"):
        dense_hessian(operator, loss)
    assert re.match(
        r"<HessianOperator of '\w+', 27 parameters, float64, loss SparseCategoricalCrossentropy\(.*from_logits=True",
        repr(operator),
    )
