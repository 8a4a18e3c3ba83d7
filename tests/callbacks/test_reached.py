# pyright: reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportOptionalSubscript=false, reportOptionalCall=false
"""State of all objects that a `fit` can reach: each case ends as an uninterrupted run after two stops within epochs."""

import collections
import dataclasses
import datetime
import functools
import pathlib

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume
from idmatters_tf.callbacks._walk import walk
from tests.support.stopped_fits import check_stopped

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


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
        self.probe = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.probe.compile(keras.optimizers.Adam(0.1), "mse")

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


@dataclasses.dataclass(frozen=True)
class Best:
    epoch: int
    loss: float


Pair = collections.namedtuple("Pair", "first second")


class Plain(keras.callbacks.Callback):
    """Callback whose attributes of several kinds determine the learning rate."""

    def __init__(self):
        super().__init__()
        self.meter, self.best, self.pair = Meter(), None, Pair(0, [0])
        self.counts, self.lists = collections.Counter(), collections.defaultdict(list)
        self.day, self.path, self.seen = datetime.date(2016, 11, 14), pathlib.Path("a"), {0}
        self.column = self.turned = np.zeros(1)
        self.view = np.zeros(4)[1:]
        self.bytes = bytearray(1)

    def on_train_batch_end(self, batch, logs=None):
        self.meter.update(logs["loss"])
        if self.best is None or logs["loss"] < self.best.loss:
            self.best = Best(batch, logs["loss"])
        self.pair = Pair(batch, [*self.pair.second, batch])
        self.counts[batch] += 1
        self.lists[batch % 2].append(batch)
        self.day += datetime.timedelta(1)
        self.path = self.path / str(batch)
        self.seen.add(batch)
        self.view[0] += 1
        self.bytes[0] += 1
        state = [self.meter.total, self.best, self.pair, self.counts, self.lists, self.day, self.path, self.seen]
        state += [self.column.tolist(), self.turned.tolist(), self.view.tolist(), self.bytes]
        self.model.optimizer.learning_rate = sum(map(ord, str(state))) % 1009 / 1e4

    def on_epoch_end(self, epoch, logs=None):
        predicted = self.model.predict(X, verbose=0)
        self.column, self.turned = predicted[:, 0], np.stack([X, X])[0].T


def scheduler(schedule):
    return [keras.callbacks.LearningRateScheduler(schedule)]


def by_a_bound_method():
    meter, own = Meter(), Meter()
    report = functools.partial(meter.update, factor=2.0)
    update = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None, on_epoch_end=own.__call__)
    update.report = report

    class Apply(keras.callbacks.Callback):
        report = None

        def on_train_batch_end(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.01 * self.report(logs["loss"])

    apply = Apply()
    apply.report = report
    return [update, apply]


def dense(*layers):
    model = keras.Sequential([keras.Input((3,), batch_size=8), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


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


def recurrent():
    return dense(keras.layers.Reshape((3, 1)), keras.layers.GRU(2, stateful=True))


CASES = {
    "new attributes of the model": (dense, lambda: [Count(), Rate()]),
    "a compiled model of a callback": (dense, lambda: [Probe()]),
    "a schedule that is an object": (dense, lambda: scheduler(Meter())),
    "a schedule that is a bound method": (dense, lambda: scheduler(Meter().__call__)),
    "a partial of a bound method": (dense, by_a_bound_method),
    "plain data of many kinds": (dense, lambda: [Plain()]),
    "a stateful recurrent layer": (recurrent, list),
}
if keras.backend.backend() == "tensorflow":
    # Keras on JAX does not trace random operations without a seed.
    CASES["random numbers without a seed"] = (lambda: dense(Unseeded()), list)
    CASES["a tf.Variable of a layer"] = (lambda: dense(OwnVariable()), list)


@pytest.mark.parametrize("name", CASES)
def test_stopped_within_an_epoch(name, tmp_path):
    make, callbacks = CASES[name]

    def fit(folder, kill):
        keras.utils.set_random_seed(0)
        model = make()
        resume = ExactResume(folder, every=2)
        history = model.fit(X, Y, batch_size=8, epochs=4, callbacks=[*callbacks(), resume, kill], verbose=0)
        return (history.history, model.get_weights(), float(model.optimizer.learning_rate)), resume.resumed_at

    check_stopped(fit, tmp_path, ("batch", 1, 1), ("batch", 2, 1))


def test_a_walk_yields_each_part_once_in_the_same_order():
    def walked():
        keras.utils.set_random_seed(0)
        model = dense()
        return [(path, kind) for path, kind, _ in walk([model, model.optimizer], [Plain(), Probe()])]

    found = walked()
    paths = [path for path, _ in found]
    assert found == walked()
    assert len(paths) == len(set(paths))
    kinds = dict(found)
    assert {kinds[path] for path in ("Plain.meter.total", "Plain.view", "Plain.pair[0]", "Dense.units")} == {"plain"}
    assert "variable" in {kind for path, kind in found if path.startswith("Probe.probe.optimizer")}
    assert kinds["Dense.activation"] == "other"
