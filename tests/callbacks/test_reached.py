"""State that `ExactResume` restores: each fit ends as without two stops within an epoch.

Kinds of state that are independent share a fit. The results name the kinds.
"""

import functools

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume
from tests.support.stopped_fits import check_stopped

X = np.random.default_rng(0).normal(size=(14, 3)).astype("float32")
Y = X.sum(1, keepdims=True)
ARRAYS = {"x": X, "y": Y, "batch_size": 4}
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


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
    """Linear probe with a `fit`."""

    def __init__(self):
        super().__init__()
        self.probe = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.probe.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=True)

    def on_epoch_end(self, epoch, logs=None):
        self.probe.fit(X, Y, epochs=1, verbose=0, shuffle=False)


class Meter:
    """Object of an own class with a method that has state."""

    def __init__(self):
        self.total = self.count = 0.0

    def update(self, value, factor=1.0):
        self.total += value
        self.count += 1
        return factor * self.total / self.count

    def __call__(self, epoch, rate):
        return rate / (1 + self.update(epoch))


class Apply(keras.callbacks.Callback):
    """Callback with the partial of a bound method."""

    def __init__(self):
        super().__init__()
        self.report = functools.partial(Meter().update, factor=2.0)

    def on_train_batch_end(self, batch, logs=None):
        self.report(logs["loss"])


class Weight(keras.callbacks.Callback):
    """Callback with a variable that the loss uses."""

    def __init__(self):
        super().__init__()
        self.weight = keras.Variable(1.0, trainable=False)

    def on_train_batch_end(self, batch, logs=None):
        self.weight.assign(self.weight * 0.9)


class OwnTensorBoard(keras.callbacks.TensorBoard):
    pass


class OwnLogger(keras.callbacks.CSVLogger):
    """Logger with an attribute."""

    rows = 0

    def on_train_batch_end(self, batch, logs=None):
        self.rows += 1


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


class Measure(keras.callbacks.Callback):
    """Callback that evaluates within an epoch, which resets the metrics of the training."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.evaluate(X[:7], Y[:7], verbose=0)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
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


def of_callbacks(folder):
    """Return a model, arguments of `fit`, callbacks, and a function that returns the final state by kind."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    probe, apply, logger, schedules = Probe(), Apply(), OwnLogger(folder / "log.csv"), [Meter(), Meter()]
    stops = [kind("loss", min_delta=9, patience=1) for kind in (OwnPatience, OwnState)]
    callbacks = [Count(), Rate(), probe, apply, OwnTensorBoard(folder / "events"), logger, *stops]
    callbacks += map(keras.callbacks.LearningRateScheduler, (schedules[0], schedules[1].__call__))
    return (
        model,
        ARRAYS,
        callbacks,
        lambda: {
            "new attributes": (model.epochs_done, model.layers[0].seen, model.optimizer.best),
            "a compiled model of a callback": probe.probe.get_weights(),
            "a schedule that is an object": vars(schedules[0]),
            "a schedule that is a bound method": vars(schedules[1]),
            "a partial of a bound method": vars(apply.report.func.__self__),
            "a subclass of CSVLogger": (logger.rows, (folder / "log.csv").read_text()),
            "subclasses of EarlyStopping": [(each.epochs, each.patience) for each in stops],
        },
    )


def of_steps(folder):
    """Return state that the compiled step creates or changes, as `of_callbacks`."""
    weight, stores = Weight(), Stores()
    # On JAX the compiled step contains the value of a variable that does not belong to the model, and Keras does not
    # trace random operations without a seed.
    own = [Unseeded(), OwnVariable()] if IS_TENSORFLOW else []
    model = Counting([keras.Input((3,)), stores, *own, keras.layers.Dense(1)])
    model.compile(
        "sgd",
        lambda y, out: (weight.weight if IS_TENSORFLOW else 1.0) * keras.ops.mean((y - out) ** 2),
        metrics=[Twice(name="twice"), Last()],
    )
    return (
        model,
        {**ARRAYS, "validation_data": (X[:7], Y[:7])},
        [weight],
        lambda: {
            "a variable in the loss": weight.weight,
            "attributes of traced layers": (stores.calls, sorted(stores.shapes), str(stores.shape)),
            "attributes of compiled steps": (model.steps, model.tests),
            "a tf.Variable of a layer": [each.count for each in own[1:]],
        },
    )


def of_recurrent(folder):
    """Return a recurrent layer, slots in mixed precision and validation data that change, as `of_callbacks`."""
    keras.config.set_dtype_policy("mixed_float16")
    recurrent = keras.layers.SimpleRNN(2, stateful=True, unroll=True)
    layers = [keras.Input((3,), batch_size=4), keras.layers.Reshape((3, 1)), recurrent, keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Nadam(0.1), "mse", run_eagerly=True)
    data = Drifting()
    return (
        model,
        {"x": X[:12], "y": Y[:12], "batch_size": 4, "validation_data": data},
        [],
        lambda: {
            "a stateful recurrent layer": recurrent.states,
            "Nadam in mixed precision": model.optimizer.variables,
            "validation data that change": data.shift,
        },
    )


def of_validation(folder):
    """Return validation data in a random order, and evaluations within an epoch, as `of_callbacks`."""
    import tensorflow as tf

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Last()], run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(22, seed=1).batch(4)
    return model, {**ARRAYS, "validation_data": data}, [Measure()], dict


@pytest.mark.parametrize("make", [of_callbacks, of_steps, of_recurrent, of_validation])
def test_stopped_within_an_epoch(make, tmp_path):
    def fit(folder, kill):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy("float32")
        model, data, callbacks, state = make(folder)
        resume = ExactResume(folder / "checkpoints", every=2)
        # Two callbacks stop the first fit.
        epochs = 3 if make is of_callbacks else 2
        history = model.fit(**data, epochs=epochs, callbacks=[resume, *callbacks, kill], verbose=0)
        results = {"history": history.history, "weights": model.get_weights(), "rate": model.optimizer.learning_rate}
        return results | state(), resume.resumed_at

    moments = [("batch", 1, 0), ("batch", 1, 2)]
    whole, resumed_at = check_stopped(fit, tmp_path, *moments[make is not of_callbacks :])
    assert resumed_at
    assert len(whole["history"]["loss"]) == 2
