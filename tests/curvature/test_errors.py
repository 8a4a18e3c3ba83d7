"""Error messages for models, data, variables and losses that cannot be used, and for evaluations that differ."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator, ModelLoss, dense_hessian
from tests.curvature import cases

X, Y = np.ones((6, 4), np.float32) * np.arange(6, dtype=np.float32)[:, None], np.ones((6, 2), np.float32)
EXAMPLES = tf.data.Dataset.from_tensor_slices((X, Y))
MEAN = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


@pytest.fixture(autouse=True)
def eager():
    """Run functions eagerly, because tracing them takes longer than their few calls."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def network(*more):
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), *more, keras.layers.Dense(2)])


def mean_output(y, f):
    return tf.reduce_mean(f)


class Called(keras.losses.Loss):
    """A loss that Keras does not reduce."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return keras.ops.mean(keras.ops.square(y_true - y_pred))


@pytest.mark.parametrize(
    ("loss", "data", "message"),
    [
        ("mse", (X[:0], Y[:0]), "`data` must contain at least one example"),
        ("mse", (X, Y[:5]), "cardinality is ambiguous"),
        ("mse", [X, Y], "Keras cannot compute the loss .*Pass arrays as a tuple"),
        ("mse", iter([(X, Y)]), "can be iterated repeatedly"),
        ((X, Y), None, "`data` must be given after `loss`. Received: tuple in the place of `loss`"),
        ("mse", None, r"`data` must be given after `loss`. Received: None. Pass \(model, loss, data\)"),
        ("mse", {"x": X}, "Received: a dict. For a model with named inputs, pass"),
        ("mse", X, "`data` must be a tf.data.Dataset of batches"),
        ("mse", EXAMPLES, "incompatible"),
        ("mse", EXAMPLES.map(lambda x, y: (x, y[0])), "Received: single examples"),
        ("mse", [(tf.sparse.from_dense(X), Y)], "ragged or sparse"),
        ("mse", EXAMPLES.batch(4).repeat(), r"`data` must be finite.*infinite.*take\(batches\)"),
        ("mse", (np.full_like(X, np.nan), Y), "loss on the data must be finite. Received: nan"),
        (3, (X, Y), "Keras cannot compute the loss .*Could not interpret loss identifier: 3"),
        ({"c": "mse"}, (X, Y), "Keras cannot compute the loss"),
        (None, (X, Y), "`loss` is required: the model .* was not compiled with a loss"),
        (ModelLoss(lambda model, batch: model(batch[0])), (X, Y), "must return a scalar tensor"),
        (mean_output, (X,), "must contain labels for loss.y, outputs.. Received: inputs alone"),
        (mean_output, (X, Y, Y[:, 0]), "must return a value for each example"),
        (
            Called(),
            (X, Y),
            "must be reduced by Keras.*Called with a `__call__` of its own. Pass ModelLoss",
        ),
        (keras.losses.MeanSquaredError(reduction="none"), (X, Y), "Received: MeanSquaredError with reduction='none'"),
        (MEAN, (X, Y, np.zeros(6)), "sample weights with a positive sum"),
    ],
)
def test_losses_and_data_that_do_not_fit_raise(loss, data, message):
    with pytest.raises(ValueError, match=message):
        HessianOperator(network(), loss, data)


def test_models_and_options_that_do_not_fit_raise():
    random = keras.layers.Dropout(0.5)
    model, (by_hand, loss, data) = network(random), cases.case("of the model")
    variables = model.trainable_variables
    operator = HessianOperator(model, "mse", (X, Y), check=False)
    for make, message in (
        (lambda: HessianOperator(len, "mse", (X, Y)), "`model` must be a keras.Model. Received: builtin_function"),
        (lambda: HessianOperator(keras.Sequential([random]), "mse", (X, Y)), r"`model` must be built.*model.build"),
        (lambda: HessianOperator(model, "mse", (X, Y), by_hand.weights), "variables or layers of the model.*not"),
        (lambda: HessianOperator(model, "mse", (X, Y), []), "`variables` must contain at least one variable"),
        (lambda: HessianOperator(model, "mse", (X, Y), variables * 2), "must not contain a variable twice"),
        (lambda: HessianOperator(model, "mse", (X, Y), random.variables), "floating-point variables. Received: .*seed"),
        (lambda: HessianOperator(model, "mse", (X, Y), chunk=0), "`chunk` must be a positive integer"),
        (lambda: GaussNewtonOperator(by_hand, loss, data, check=False), "requires a loss of the outputs"),
        (lambda: dense_hessian(operator, "mse"), "Pass it alone"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_random_numbers_in_training_mode_or_in_the_loss_raise():
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


def test_data_that_differ_between_passes_raise():
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


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "float64"])
def test_kinks_and_rounding_are_no_wrong_gradients(dtype, default_policy):
    """Black pixels and biases of zero put rectified units exactly on their kinks."""
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(3)])
    images = np.maximum(np.random.default_rng(0).normal(size=(2, 8, 8, 1)), 0)
    images[:, :6] = 0
    HessianOperator(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), (images, np.array([0, 2])))
