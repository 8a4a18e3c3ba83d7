"""Fits that `ExactResume` accepts, and state that they can reach: each ends as without two stops within an epoch."""

import functools

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume
from tests.support.stopped_fits import check_stopped

X = np.random.default_rng(0).normal(size=(22, 3)).astype("float32")
Y = X.sum(1, keepdims=True)
ARRAYS = {"x": X, "y": Y, "batch_size": 4}


class Stores(keras.layers.Layer):
    """Layer with attributes that differ for the smaller last batch, and a counter of its calls."""

    def __init__(self):
        super().__init__()
        self.calls, self.shapes = 0, set()

    def call(self, x):
        self.shape = x.shape
        self.calls += 1
        self.shapes.add(str(x.shape))
        return x


def dense(*layers, optimizer="sgd", loss="mse", metrics=None, kind=keras.Sequential):
    model = kind([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, loss, metrics=metrics)
    return model


def with_callbacks(make):
    return lambda folder: (dense(), ARRAYS, make())


class Count(keras.callbacks.Callback):
    """Callback that shares a counter as a new attribute of the model with `Rate`."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.epochs_done = getattr(self.model, "epochs_done", 0) + 1
        self.model.layers[0].seen = [*getattr(self.model.layers[0], "seen", []), epoch]
        self.model.optimizer.best = {"loss": logs["loss"]}


class Rate(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        model = self.model
        best = getattr(model.optimizer, "best", {"loss": 1.0})["loss"]
        epochs = getattr(model, "epochs_done", 0) + len(getattr(model.layers[0], "seen", []))
        model.optimizer.learning_rate = 0.05 * best / (1 + epochs)


class Probe(keras.callbacks.Callback):
    """Linear probe with a `fit`, whose loss determines the learning rate."""

    def __init__(self):
        super().__init__()
        self.probe = dense(optimizer=keras.optimizers.Adam(0.1))

    def on_epoch_end(self, epoch, logs=None):
        loss = self.probe.fit(X, Y, epochs=1, verbose=0, shuffle=False).history["loss"][0]
        self.model.optimizer.learning_rate = 0.01 * loss


class Meter:
    """Object of an own class with a method that has state."""

    def __init__(self):
        self.total = self.count = 0.0

    def update(self, value, factor=1.0):
        self.total += value
        self.count += 1
        return factor * self.total / self.count

    def __call__(self, epoch, rate):
        return 0.05 / (1 + self.update(epoch))


def scheduler(make):
    return with_callbacks(lambda: [keras.callbacks.LearningRateScheduler(make())])


class Apply(keras.callbacks.Callback):
    """Callback with the partial of a bound method."""

    def __init__(self):
        super().__init__()
        self.report = functools.partial(Meter().update, factor=2.0)

    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.01 * self.report(logs["loss"])


class Weight(keras.callbacks.Callback):
    """Callback with a variable that the loss uses."""

    def __init__(self):
        super().__init__()
        self.weight = keras.Variable(1.0, trainable=False)

    def on_train_batch_end(self, batch, logs=None):
        self.weight.assign(self.weight * 0.9)


def variable_in_loss(folder):
    callback = Weight()
    return dense(loss=lambda y, out: callback.weight * keras.ops.mean((y - out) ** 2)), ARRAYS, [callback]


class OwnTensorBoard(keras.callbacks.TensorBoard):
    pass


class OwnLogger(keras.callbacks.CSVLogger):
    """Logger with an attribute that determines the learning rate."""

    rows = 0

    def on_train_batch_end(self, batch, logs=None):
        self.rows += 1
        self.model.optimizer.learning_rate.assign(0.1 / self.rows)


class OwnPatience(keras.callbacks.EarlyStopping):
    """Callback that changes a setting of Keras."""

    epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        self.patience = 1 + self.epochs // 3
        super().on_epoch_end(epoch, logs)


class OwnState(OwnPatience):
    def get_state(self):
        return {"epochs": self.epochs, "patience": self.patience}

    def set_state(self, state):
        vars(self).update(state)


def subclasses(folder):
    callbacks = [OwnTensorBoard(folder / "events"), OwnLogger(folder / "log.csv")]
    return dense(), ARRAYS, callbacks + [kind("loss", min_delta=9, patience=1) for kind in (OwnPatience, OwnState)]


class Twice(keras.metrics.Mean):
    """Metric with a vector, which the history contains as a tensor."""

    def update_state(self, y, out, sample_weight=None):
        super().update_state(out)

    def result(self):
        return keras.ops.stack([super().result(), 2 * super().result()])


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

    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(22, seed=1).batch(4)
    return dense(metrics=[Last()]), {**ARRAYS, "validation_data": data}, []


class Measure(keras.callbacks.Callback):
    """Callback that evaluates within an epoch, which resets the metrics of the training."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.predict(X[:5], verbose=0)
        self.model.evaluate(X[:7], Y[:7], verbose=0)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.predict(X[:5], verbose=0)
            self.model.evaluate(X[:5], Y[:5], verbose=0)


class Drifting(keras.utils.PyDataset):
    """Validation data that change after each validation."""

    def __init__(self):
        super().__init__()
        self.shift = 0.0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[:4] + self.shift, Y[:4]

    def on_epoch_end(self):
        self.shift += 0.1


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


class Unseeded(keras.layers.Layer):
    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x))


class OwnVariable(keras.layers.Layer):
    """Layer with a variable that Keras does not track."""

    def build(self, shape):
        import tensorflow as tf

        self.count = tf.Variable(0.0, name="my_count")

    def call(self, x):
        self.count.assign_add(1.0)
        return x * self.count


def recurrent(folder):
    inputs = [keras.Input((3,), batch_size=4), keras.layers.Reshape((3, 1)), keras.layers.GRU(2, stateful=True)]
    model = keras.Sequential([*inputs, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, {**ARRAYS, "x": X[:20], "y": Y[:20]}, []


def in_mixed_precision(folder):
    keras.config.set_dtype_policy("mixed_float16")
    return dense(optimizer=keras.optimizers.Nadam(0.1)), ARRAYS, []


CASES = {
    "new attributes of the model": with_callbacks(lambda: [Count(), Rate()]),
    "a compiled model of a callback": with_callbacks(lambda: [Probe()]),
    "a schedule that is an object": scheduler(Meter),
    "a schedule that is a bound method": scheduler(lambda: Meter().__call__),
    "a partial of a bound method": with_callbacks(lambda: [Apply()]),
    "subclasses of Keras' callbacks": subclasses,
    "a vector as a metric": lambda folder: (dense(metrics=[Twice(name="twice")]), ARRAYS, []),
    "a stateful recurrent layer": recurrent,
    "Nadam in mixed precision": in_mixed_precision,
    "evaluation within an epoch": lambda folder: (dense(metrics=["mae"]), ARRAYS, [Measure()]),
    "validation in a random order": validation_in_random_order,
    "validation data that change": lambda folder: (dense(), {**ARRAYS, "validation_data": Drifting()}, []),
    "attributes of compiled steps": lambda folder: (
        dense(Stores(), kind=Counting),
        {**ARRAYS, "validation_data": (X[:7], Y[:7])},
        [],
    ),
}
if keras.backend.backend() == "tensorflow":
    # On JAX the compiled step contains the value of a variable that does not belong to the model, and Keras does not
    # trace random operations without a seed.
    CASES["a variable in the loss"] = variable_in_loss
    CASES["random numbers without a seed"] = lambda folder: (dense(Unseeded()), ARRAYS, [])
    CASES["a tf.Variable of a layer"] = lambda folder: (dense(OwnVariable()), ARRAYS, [])


@pytest.mark.parametrize("name", CASES)
def test_stopped_within_an_epoch(name, tmp_path):
    def fit(folder, kill):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy("float32")
        model, data, callbacks = CASES[name](folder)
        resume = ExactResume(folder / "checkpoints", every=2)
        history = model.fit(**data, epochs=4, callbacks=[resume, *callbacks, kill], verbose=0)
        log = folder / "log.csv"
        rate = float(model.optimizer.learning_rate)
        return (history.history, model.get_weights(), rate, log.exists() and log.read_text()), resume.resumed_at

    (history, *_), _ = check_stopped(fit, tmp_path, ("batch", 1, 1), ("batch", 1, 3))
    assert len(history["loss"]) == (2 if name.startswith("subclasses") else 4)
