# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalSubscript=false
"""Fits that `ExactResume` accepts: they end as an uninterrupted run after a stop within an epoch."""

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume, FunctionBatches
from tests.support.adversarial import Stores
from tests.support.stopped_fits import check_stopped

X = np.random.default_rng(0).normal(size=(22, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def dense(optimizer="sgd", loss="mse", policy=None):
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(1, dtype=policy)(x))
    model.compile(optimizer, loss)
    return model


def nadam_in_mixed_precision(folder):
    keras.config.set_dtype_policy("mixed_float16")
    return dense(keras.optimizers.Nadam(0.1)), {"x": X, "y": Y}, []


class Weight(keras.callbacks.Callback):
    """Callback with a variable that the loss uses."""

    def __init__(self):
        super().__init__()
        self.weight = keras.Variable(1.0, trainable=False)

    def on_train_batch_end(self, batch, logs=None):
        self.weight.assign(self.weight * 0.9)


def variable_in_loss(folder):
    callback = Weight()
    return dense(loss=lambda y, out: callback.weight * keras.ops.mean((y - out) ** 2)), {"x": X, "y": Y}, [callback]


class OwnTensorBoard(keras.callbacks.TensorBoard):
    pass


class OwnLogger(keras.callbacks.CSVLogger):
    """Logger with an attribute that determines the learning rate."""

    rows = 0

    def on_train_batch_end(self, batch, logs=None):
        self.rows += 1
        self.model.optimizer.learning_rate.assign(0.1 / self.rows)


class OwnProgress(keras.callbacks.ProgbarLogger):
    pass


class OwnPatience(keras.callbacks.EarlyStopping):
    """Callback with state of its own in `get_state`, which changes a setting of Keras."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        self.patience = 1 + self.epochs // 3
        super().on_epoch_end(epoch, logs)


class OwnState(OwnPatience):
    def get_state(self):
        return {"epochs": self.epochs, "patience": self.patience}

    def set_state(self, state):
        vars(self).update(state)


class Twice(keras.metrics.Mean):
    """Metric with a vector, which the history contains as a tensor."""

    def __init__(self):
        super().__init__(name="twice")

    def update_state(self, y, out, sample_weight=None):
        super().update_state(out)

    def result(self):
        return keras.ops.stack([super().result(), 2 * super().result()])


def vector_metric(folder):
    model = dense()
    model.compile("sgd", "mse", metrics=[Twice()])
    return model, {"x": X, "y": Y}, []


def subclasses(folder):
    callbacks = [OwnTensorBoard(folder / "events"), OwnLogger(folder / "log.csv"), OwnProgress()]
    callbacks += [kind("loss", min_delta=9, patience=1) for kind in (OwnPatience, OwnState)]
    return dense(), {"x": X, "y": Y}, callbacks


class Last(keras.metrics.Metric):
    """Metric that depends on the order of the batches."""

    def __init__(self):
        super().__init__(name="last")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y, out, sample_weight=None):
        self.value.assign(0.5 * self.value + keras.ops.sum(y))

    def result(self):
        return self.value + 0.0


def validation_in_random_order(folder):
    import tensorflow as tf

    model = dense()
    model.compile("sgd", "mse", metrics=[Last()])
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(22, seed=1).batch(4)
    return model, {"x": X, "y": Y, "validation_data": data}, []


class Optional(keras.layers.Layer):
    def call(self, x, other=None):
        return x if other is None else x + other


def optional_inputs(folder):
    inputs = [keras.Input((3,)), keras.Input((3,), optional=True)]
    model = keras.Model(inputs, keras.layers.Dense(1)(Optional()(*inputs)))
    model.compile("sgd", "mse")
    return model, {"x": [X, None], "y": Y}, []


def optional_inputs_of_a_function(folder):
    model, _, _ = optional_inputs(folder)

    def batch(step):
        rows = np.random.default_rng(step).integers(0, 22, 4)
        return [X[rows], None], Y[rows]

    return model, {"x": FunctionBatches(batch, 6)}, []


class Counting(keras.Sequential):
    """Model whose compiled steps count how often they are traced."""

    def __init__(self, layers):
        super().__init__(layers)
        self.steps = self.tests = 0

    def train_step(self, *arguments):
        self.steps += 1
        return super().train_step(*arguments)

    def test_step(self, *arguments):
        self.tests += 1
        return super().test_step(*arguments)


def attributes_of_compiled_steps(folder):
    model = Counting([keras.Input((3,)), Stores(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, {"x": X, "y": Y, "validation_data": (X[:7], Y[:7])}, []


CASES = [validation_in_random_order, nadam_in_mixed_precision, variable_in_loss, subclasses, vector_metric]
CASES += [optional_inputs, optional_inputs_of_a_function, attributes_of_compiled_steps]
if keras.backend.backend() == "jax":
    # The compiled step contains the value of a variable that does not belong to the model.
    CASES.remove(variable_in_loss)


@pytest.mark.parametrize("case", CASES)
def test_stopped_within_an_epoch(case, tmp_path):
    def fit(folder, kill):
        keras.utils.set_random_seed(0)
        model, data, callbacks = case(folder)
        batch_size = {"batch_size": 4} if "y" in data else {}
        resume = ExactResume(folder / "checkpoints", every=4)
        history = model.fit(**data, **batch_size, epochs=4, callbacks=[*callbacks, resume, kill], verbose=0)
        log = folder / "log.csv"
        return (history.history, model.get_weights(), log.exists() and log.read_text()), resume.resumed_at

    try:
        (history, *_), _ = check_stopped(fit, tmp_path, ("batch", 1, 3))
    finally:
        keras.config.set_dtype_policy("float32")
    assert len(history["loss"]) == (2 if case is subclasses else 4)
