"""Small models with losses and data, and oracles that are independent of `idmatters_tf.curvature`.

`python -m tests.curvature.cases` compares operators of models on one device and on two devices.
"""

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.curvature import ModelLoss
from tests.autodiff.test_derivatives import differences as by_differences
from tests.autodiff.test_derivatives import flat

# Two batches of three, so that only one shape is traced.
ROWS = 6


def _dense(activation, l2=None):
    return keras.Sequential(
        [
            keras.Input((4,), dtype="float64"),
            keras.layers.Dense(3, activation=activation, kernel_regularizer=l2 and keras.regularizers.L2(l2)),
            keras.layers.Dense(3),
        ]
    )


def _convolution():
    return keras.Sequential(
        [
            keras.Input((5, 5, 2), dtype="float64"),
            keras.layers.Conv2D(2, 3, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )


def _two_outputs():
    inputs = keras.Input((4,), dtype="float64")
    hidden = keras.layers.Dense(3, activation="softplus")(inputs)
    return keras.Model(inputs, [keras.layers.Dense(2)(hidden), keras.layers.Dense(1)(hidden)])


def _both_squares(y, outputs):
    return tf.reduce_sum((y - outputs[0]) ** 2, -1) + tf.reduce_sum(outputs[1] ** 4, -1)


def _by_hand(model, batch):
    x, y = batch
    return tf.reduce_mean(tf.reduce_sum(tf.nn.softplus(model(x) * (2 * y - 1)), -1))


BY_HAND = ModelLoss(_by_hand)


def case(name, seed=0):
    """Return smooth cases (model, loss, (x, y)) in float64, by name."""
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 4))
    labels = rng.integers(0, 3, ROWS)
    one_hot = np.eye(3)[labels]
    return {
        "cross-entropy": lambda: (
            _dense("tanh"),
            keras.losses.CategoricalCrossentropy(from_logits=True),
            (x, one_hot),
        ),
        "labels and L2": lambda: (
            _dense("softplus", l2=0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            (x, labels),
        ),
        "convolution": lambda: (
            _convolution(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            (rng.normal(size=(ROWS, 5, 5, 2)), labels),
        ),
        "two outputs": lambda: (_two_outputs(), _both_squares, (x, rng.normal(size=(ROWS, 2)))),
        "of the model": lambda: (_dense("tanh"), BY_HAND, (x, one_hot)),
    }[name]()


def differences(model, function):
    """Return central differences of a function of the model by each of its trainable weights, as columns."""
    return np.squeeze(by_differences(lambda _: function(), model.trainable_variables))


def plain_loss(model, loss, x, y, weights=None):
    """Return the loss of `model.fit` on one batch, including penalties."""
    if loss is BY_HAND:
        return loss.function(model, (x, y))
    outputs = model(x, training=False)
    if isinstance(loss, keras.losses.Loss):
        # Keras' reduction, in the dtype of the loss.
        value = type(loss).from_config({**loss.get_config(), "dtype": "float64"})(y, outputs, sample_weight=weights)
    else:
        loss = keras.losses.get(loss) if isinstance(loss, str) else loss
        values = loss(tf.constant(y), outputs)
        value = tf.reduce_mean(values if weights is None else values * weights)
    return value + sum(model.losses)


def plain_gradient(model, loss, x, y, weights=None):
    with tf.GradientTape() as tape:
        value = plain_loss(model, loss, x, y, weights)
    variables = [variable.value for variable in model.trainable_variables]
    return flat(tape.gradient(value, variables, unconnected_gradients="zero"))


def relative_error(operator, step=1e-5):
    """Return the relative distance of a random product of a Hessian from central differences of its gradient."""
    vector = np.random.default_rng(0).normal(size=operator.shape[0])
    parts = np.split(vector, np.cumsum([int(np.prod(variable.shape)) for variable in operator.variables])[:-1])
    starts, gradients = [np.array(variable) for variable in operator.variables], []
    for size in (step, -step, 0):
        for variable, start, part in zip(operator.variables, starts, parts, strict=True):
            variable.assign(start + size * part.reshape(start.shape))
        gradients.append(operator.gradient())
    expected = (gradients[0] - gradients[1]) / (2 * step)
    return np.linalg.norm(operator @ vector - expected) / np.linalg.norm(expected)


if __name__ == "__main__":
    from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for name, kind in (("labels and L2", HessianOperator), ("convolution", GaussNewtonOperator)):
        model, loss, data = case(name)
        expected = kind(model, loss, data, batch_size=5, check=False)
        vectors = np.random.default_rng(0).normal(size=(expected.shape[0], 2))
        with strategy.scope():
            mirrored = case(name)[0]
            mirrored.set_weights(model.get_weights())
            operator = kind(mirrored, loss, data, batch_size=5, check=False)
        np.testing.assert_allclose(operator @ vectors, expected @ vectors, rtol=1e-10, atol=1e-12)
    print("the same on two devices")
