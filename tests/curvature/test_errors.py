"""Error messages for models, data, variables and losses that cannot be used, and for evaluations that differ."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator, dense_hessian
from tests.support import curvature_cases as cases

X, Y = np.ones((6, 4), np.float32) * np.arange(6, dtype=np.float32)[:, None], np.ones((6, 2), np.float32)
EXAMPLES = tf.data.Dataset.from_tensor_slices((X, Y))


def network(*more, activation="tanh"):
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, activation=activation), *more, keras.layers.Dense(2)]
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (lambda x: x, "mse", (X, Y)), "`model` must be a keras.Model. Received: function"),
        (lambda: (keras.Sequential([keras.layers.Dense(2)]), "mse", (X, Y)), r"`model` must be built.*model.build"),
        (lambda: (network(), "mse", (X[:0], Y[:0])), "`data` must contain at least one example"),
        (lambda: (network(), "mse", (X, Y[:5])), "cardinality is ambiguous"),
        (lambda: (network(), "mse", [X, Y]), "Keras cannot compute the loss .*Pass arrays as a tuple"),
        (lambda: (network(), "mse", iter([(X, Y)])), "can be iterated repeatedly"),
        (lambda: (network(), (X, Y)), "`data` must be given after `loss`. Received: tuple in the place of `loss`"),
        (lambda: (network(), "mse"), r"`data` must be given after `loss`. Received: None. Pass \(model, loss, data\)"),
        (lambda: (network(), "mse", {"x": X}), "Received: a dict. For a model with named inputs, pass"),
        (lambda: (network(), "mse", X), "`data` must be a tf.data.Dataset of batches"),
        (lambda: (network(), "mse", EXAMPLES), "incompatible"),
        (lambda: (network(), "mse", EXAMPLES.map(lambda x, y: (x, y[0]))), "Received: single examples"),
        (lambda: (network(), "mse", [(tf.sparse.from_dense(X), Y)]), "ragged or sparse"),
        (lambda: (network(), "mse", EXAMPLES.batch(4).repeat()), r"`data` must be finite.*infinite.*take\(batches\)"),
        (lambda: (network(), "mse", (np.full_like(X, np.nan), Y)), "loss on the data must be finite. Received: nan"),
        (lambda: (network(), "mse", (X, Y), network().trainable_variables), "variables or layers of the model.*not"),
        (lambda: (network(), "mse", (X, Y), []), "`variables` must contain at least one variable"),
        (lambda: (network(), 3, (X, Y)), "Keras cannot compute the loss .*Could not interpret loss identifier: 3"),
        (lambda: (network(), {"c": "mse"}, (X, Y)), "Keras cannot compute the loss"),
        (lambda: (network(), None, (X, Y)), "`loss` is required: the model .* was not compiled with a loss"),
        (lambda: (network(), lambda model, batch: model(batch[0]), (X, Y)), "must return a scalar tensor"),
        (lambda: (network(), lambda y, f: tf.reduce_mean(f), (X, Y, Y[:, 0])), "must return a value for each example"),
    ],
)
def test_refused(make, message):
    arguments = make()
    with pytest.raises(ValueError, match=message):
        HessianOperator(*arguments)


def test_refused_options():
    random = keras.layers.Dropout(0.5)
    model = network(random)
    twice = [*model.trainable_variables, model.trainable_variables[0]]
    for options, message in (
        ({"chunk": 0}, "`chunk` must be a positive integer"),
        ({"variables": twice}, "must not contain a variable twice"),
        ({"variables": random.variables}, "must contain floating-point variables. Received: .*seed"),
    ):
        with pytest.raises(ValueError, match=message):
            HessianOperator(model, "mse", (X, Y), **options)
    weighted_mean = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    with pytest.raises(ValueError, match="sample weights with a positive sum"):
        HessianOperator(model, weighted_mean, (X, Y, np.zeros(6)))
    by_hand, loss, data = cases.case("of the model")
    with pytest.raises(ValueError, match="requires a loss of the outputs"):
        GaussNewtonOperator(by_hand, loss, data, check=False)


def test_a_dense_hessian_of_an_operator_takes_no_further_arguments():
    operator = HessianOperator(network(), "mse", (X, Y), check=False)
    with pytest.raises(ValueError, match="Pass it alone"):
        dense_hessian(operator, "mse")


def test_randomness_in_the_model():
    dropout = network(keras.layers.Dropout(0.5, name="drop"))
    HessianOperator(dropout, "mse", (X, Y))
    with pytest.raises(ValueError, match="must be reproducible"):
        HessianOperator(dropout, "mse", (X, Y), training=True)
    with pytest.raises(ValueError, match="must be reproducible"):
        HessianOperator(network(), lambda y, f: tf.reduce_mean((f - tf.random.normal(tf.shape(f))) ** 2), (X, Y))


class Augmented:
    """Batches with new noise at each pass."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        yield X + self.rng.normal(size=X.shape).astype(np.float32), Y


def test_data_that_change():
    model = network()
    rows = np.random.default_rng(0).normal(size=(31, 4)).astype(np.float32)
    dropped = tf.data.Dataset.from_tensor_slices((rows, rows[:, :2])).shuffle(31).batch(16, drop_remainder=True)
    for data in (Augmented(), dropped):
        with pytest.raises(ValueError, match="must be reproducible"):
            HessianOperator(model, "mse", data)
    # With this many rows, no two passes have the same batches.
    shuffled = tf.data.Dataset.from_tensor_slices((rows, rows[:, :2])).shuffle(31, seed=1).batch(16)
    HessianOperator(model, "mse", shuffled)
    centered = network(keras.layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0)))
    with pytest.raises(ValueError, match="must be reproducible"):
        HessianOperator(centered, "mse", shuffled)
    HessianOperator(centered, "mse", shuffled, check=False)


def test_training_mode_requires_a_single_batch():
    model = network(keras.layers.BatchNormalization())
    for check in (True, False):
        with pytest.raises(ValueError, match=r"in training mode couples .*data in 3 batches. Pass batch_size=6"):
            HessianOperator(model, "mse", (X, Y), training=True, batch_size=2, check=check)
    HessianOperator(model, "mse", (X, Y), batch_size=2, check=False)
