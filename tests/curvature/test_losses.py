"""The loss as `fit` computes it: compiled, by output, weighted, masked; and what is said of losses that do not fit."""

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


def whole_loss(model, x, y, weights=None):
    """Keras' own number for one batch."""
    return float(model.compute_loss(x, y, model(x, training=False), weights))


def two_outputs():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, activation="tanh")(inputs)
    outputs = [keras.layers.Dense(2, name="first")(hidden), keras.layers.Dense(3, name="second")(hidden)]
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("form", ["list", "dict", "one for all"])
def test_losses_by_output_are_those_of_fit(form):
    model, x = two_outputs(), rows()
    y = [rows(7, 2, 1), np.arange(7) % 3]
    labels = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss, weights = {
        "list": (["mse", labels], [0.5, 2.0]),
        "dict": ({"second": labels, "first": "mse"}, {"first": 0.5, "second": 2.0}),
        "one for all": ("mse", None),
    }[form]
    if form == "one for all":
        y[1] = rows(7, 3, 2)
    model.compile("sgd", loss, loss_weights=weights)
    operator = HessianOperator(model, data=(x, y), batch_size=3)
    assert operator.loss() == pytest.approx(whole_loss(model, x, y), rel=1e-6)
    if weights is None:
        assert HessianOperator(model, loss, (x, y)).loss() == pytest.approx(operator.loss())
    assert GaussNewtonOperator(model, data=(x, y), batch_size=3).to_dense().shape == operator.shape


def test_a_dict_of_outputs_and_of_sample_weights():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    outputs = {"a": keras.layers.Dense(2)(inputs), "b": keras.layers.Dense(1)(inputs)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"})
    x, y = rows(), {"a": rows(7, 2, 1), "b": rows(7, 1, 2)}
    weights = {"a": np.linspace(0.5, 2, 7, dtype="float32"), "b": np.linspace(1, 3, 7, dtype="float32")}
    operator = HessianOperator(model, data=[(x, y, weights)], check=False)
    assert operator.loss() == pytest.approx(whole_loss(model, x, y, weights), rel=1e-6)
    with pytest.raises(
        ValueError, match=r"Keras cannot compute the loss .*\('c',\) in the `loss` argument, can't be found"
    ):
        HessianOperator(model, {"c": "mse"}, (x, y))
    with pytest.raises(ValueError, match="`loss` is required: the model .* was not compiled with a loss"):
        HessianOperator(two_outputs(), data=(x, y))


def test_class_weights_are_those_of_fit():
    model, loss, (x, y) = cases.case("labels and L2")
    by_class = {0: 0.5, 2: 3.0}
    weights = np.array([by_class.get(int(label), 1.0) for label in y])
    expected = dense_hessian(model, loss, (x, y, weights), check=False)
    operator = HessianOperator(model, loss, (x, y), class_weight=by_class, batch_size=3, check=False)
    np.testing.assert_allclose(dense_hessian(operator), expected, atol=1e-12)
    one_hot = HessianOperator(
        model, keras.losses.CategoricalCrossentropy(from_logits=True), (x, np.eye(3)[y]), class_weight=by_class
    )
    assert one_hot.loss() == pytest.approx(operator.loss())
    with pytest.raises(ValueError, match="`class_weight` requires one array of labels and no sample weights"):
        HessianOperator(model, loss, (x, y, weights), class_weight=by_class)


def masked():
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((3, 2), dtype="float64"),
            keras.layers.Masking(),
            keras.layers.SimpleRNN(3, return_sequences=True, unroll=True),
            keras.layers.Dense(2),
        ]
    )
    x = np.random.default_rng(0).normal(size=(4, 3, 2))
    # Sequences of other lengths in each row, so that batches have other shares of padding.
    for row in range(4):
        x[row, 3 - row :] = 0
    return model, x, np.random.default_rng(1).normal(size=(4, 3, 2))


def test_masks_count_as_in_fit():
    model, x, y = masked()
    loss = keras.losses.MeanSquaredError(dtype="float64")
    expected = float(loss(y, model(x)))
    assert abs(expected - float(loss(y, np.array(model(x))))) > 0.01 * expected
    operators = [HessianOperator(model, loss, (x, y), batch_size=size, check=False) for size in (4, 2)]
    for operator in operators:
        assert operator.loss() == pytest.approx(expected, rel=1e-12)
    with tf.GradientTape() as tape:
        value = loss(tf.constant(y), model(tf.constant(x)))
    gradient = cases.flat(tape.gradient(value, [variable.value for variable in model.trainable_variables]))
    np.testing.assert_allclose(operators[1].gradient(), gradient, atol=1e-12)
    vector = np.random.default_rng(2).normal(size=len(gradient))
    np.testing.assert_allclose(operators[0] @ vector, operators[1] @ vector, atol=1e-12)
    # Near the minimum of a loss of squares, where labels are the outputs, Hessian and Gauss-Newton matrix are equal.
    fitted = (x, np.array(model(x)))
    pair = [
        kind(model, loss, fitted, batch_size=3, check=False) @ vector for kind in (HessianOperator, GaussNewtonOperator)
    ]
    np.testing.assert_allclose(*pair, atol=1e-12)
    # The gradient is the mean of what the Fisher matrix takes for the examples' gradients.
    one = [FisherOperator(model, loss, (x[i : i + 1], y[i : i + 1]), check=False) for i in (0, 2)]
    slopes = [HessianOperator(model, loss, (x[i : i + 1], y[i : i + 1]), check=False).gradient() for i in (0, 2)]
    for operator, slope in zip(one, slopes, strict=True):
        np.testing.assert_allclose(operator @ vector, slope * (slope @ vector), atol=1e-12)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("from_logits", [True, False])
def test_losses_of_half_precision_outputs_are_computed_in_float32(policy, from_logits):
    keras.utils.set_random_seed(0)
    # Labels that bfloat16 would round, the last ones to a class that does not exist; and sums of rounded probabilities.
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


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_ignored_labels_count_as_in_fit(reduction):
    model, x, _ = masked()
    y = np.random.default_rng(4).integers(-1, 2, (4, 3))
    loss = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-1, reduction=reduction, dtype="float64")
    operator = HessianOperator(model, loss, (x, y), batch_size=3)
    assert operator.loss() == pytest.approx(float(loss(y, model(x))), rel=1e-12)
    assert operator.difference is not None
    assert operator.difference.difference < 1e-6


@pytest.mark.parametrize("loss", [keras.losses.Circle(gamma=2.0, margin=0.2), keras.losses.Dice(), "tversky"])
def test_losses_that_join_the_examples_of_a_batch_take_one(loss):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")])
    y = np.arange(7) % 3 if isinstance(loss, keras.losses.Circle) else np.eye(3)[np.arange(7) % 3]
    operator = HessianOperator(model, loss, (rows(), y))
    assert operator.loss() == pytest.approx(float(keras.ops.mean(keras.losses.get(loss)(y, model(rows())))), rel=1e-6)
    # `Circle` leaves pairs out by their outputs.
    model.layers[-1].kernel.assign(-3 * model.layers[-1].kernel)
    assert operator.loss() == pytest.approx(float(keras.ops.mean(keras.losses.get(loss)(y, model(rows())))), rel=1e-6)
    with pytest.raises(ValueError, match=r"couples the examples of a batch.*data in 3 batches.*batch_size=7"):
        HessianOperator(model, loss, (rows(), y), batch_size=3)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 1), (4, 1)])
def test_weights_of_time_steps(shape):
    model, x, y = masked()
    weights = np.random.default_rng(3).uniform(0.5, 2, shape)
    for reduction in ("sum_over_batch_size", "sum", "mean_with_sample_weight"):
        loss = keras.losses.MeanSquaredError(reduction=reduction, dtype="float64")
        expected = float(loss(y, model(x), sample_weight=np.broadcast_to(weights.reshape(4, -1), (4, 3))))
        operator = HessianOperator(model, loss, (x, y, weights), batch_size=3, check=False)
        assert operator.loss() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rows", [4, 3])
def test_weights_of_examples_are_not_taken_for_those_of_time_steps(rows):
    model, x, y = masked()
    # With as many examples as steps Keras' product of shapes (3, 3) and (3,) would weigh the steps.
    data = x[:rows], y[:rows], np.ones(rows)
    with pytest.raises(ValueError, match=r"sample weights.*\(3,\)|sample weights \(4,\)"):
        HessianOperator(model, "mse", data, check=False)


@pytest.mark.parametrize(
    "loss", ["sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy(), "binary_crossentropy"]
)
def test_outputs_that_are_no_probabilities_are_warned_of(loss):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(3)])
    labels = np.eye(3)[np.arange(7) % 3] if loss == "binary_crossentropy" else np.arange(7) % 3
    with pytest.warns(UserWarning, match=r"expects probabilities, but the outputs of .*from_logits"):
        HessianOperator(model, loss, (rows(), labels))
    # Between 0 and 1, but they do not sum to 1.
    model.layers[-1].activation = keras.activations.sigmoid
    with contextlib.nullcontext() if loss == "binary_crossentropy" else pytest.warns(UserWarning, match="sum to"):
        HessianOperator(model, loss, (rows(), labels))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.layers[-1].activation = keras.activations.softmax
        HessianOperator(model, loss, (rows(), labels))
        model.layers[-1].activation = keras.activations.linear
        HessianOperator(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), (rows(), np.arange(7) % 3))


def test_the_repr_shows_the_loss():
    model, loss, data = cases.case("labels and L2")
    operator = HessianOperator(model, loss, data, check=False)
    assert re.match(
        r"<HessianOperator of '\w+', 27 parameters, float64, loss SparseCategoricalCrossentropy\(.*from_logits=True",
        repr(operator),
    )


def test_an_infinite_data_set_is_refused():
    model, loss, (x, y) = cases.case("squares")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    with pytest.raises(ValueError, match=r"`data` must be finite.*infinite.*take\(batches\)"):
        HessianOperator(model, loss, data.repeat())
    assert HessianOperator(model, loss, data.repeat(2), check=False).loss() > 0


def test_the_dense_hessian_of_an_operator():
    model, loss, data = cases.case("squares")
    operator = HessianOperator(model, loss, data, check=False)
    np.testing.assert_allclose(dense_hessian(operator, chunk=5), operator.to_dense(), atol=1e-14)
    with pytest.raises(ValueError, match="Pass it alone"):
        dense_hessian(operator, loss)
