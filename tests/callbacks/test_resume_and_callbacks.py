"""Effects of callbacks on an exact resume, and of a resume on callbacks, log files and the model."""

import ast
import collections
import dataclasses
import datetime
import functools
import itertools
import logging
import os
import random
import re
import signal
import threading
import types

import keras
import ml_dtypes
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume
from tests.callbacks.test_exact_resume import STEPS, Case, assert_same, data, dense, run, values, with_loss
from tests.callbacks.test_refusals import fit
from tests.support.stopped_fits import Killed


@dataclasses.dataclass(frozen=True)
class Best:
    batch: int
    loss: float


class Everything(keras.callbacks.Callback):
    """Callback whose attributes, some of them shared with a reader, determine the learning rate."""

    __slots__ = ("slot",)
    of_class, steps = [], 0

    def __init__(self, shared):
        super().__init__()
        self.shared, self.again = shared, shared
        self.queue, self.lists, self.pair = collections.deque([1, 2], maxlen=3), {0: [], 1: []}, {"a": 1}
        self.point, self.array, self.best = (0, []), np.zeros(2), None
        self.grown = [np.zeros(1), np.zeros(1, ml_dtypes.bfloat16)]
        self.rng, self.old, self.other = np.random.default_rng(0), np.random.RandomState(0), random.Random(0)
        self.seeds, self.mean, self.own = keras.random.SeedGenerator(0), keras.metrics.Mean(), [keras.Variable(0.0)]
        self.toggle = self.deleted = False
        self.view, self.bytes, self.counts = np.zeros(4)[1:], bytearray(1), collections.Counter()
        self.column = np.zeros(1)
        # These do not change.
        self.unchanged = threading.Lock(), {1}, object(), lambda: 0, datetime.date(2016, 11, 14), b"bytes"
        self.logger, self.kinds = logging.getLogger(__name__), collections.Counter("a")
        # As in another process.
        self.slot, Everything.steps = 0, 0
        Everything.of_class.clear()

    def on_train_begin(self, logs=None):
        self.watched = self.model.trainable_variables
        self.features = keras.Model(self.model.inputs, self.model.layers[0].output)

    def on_epoch_begin(self, epoch, logs=None):
        self.toggle = not self.toggle
        self.shared.append(epoch)
        self.array += 1
        self.rng.spawn(1)
        if not epoch:
            # Kept until the end, also by processes that resume.
            self.grown = [np.concatenate([each, each + 1]) for each in self.grown]
        if epoch:
            self.best = self.pair
            vars(self).pop("deleted", None)

    def on_epoch_end(self, epoch, logs=None):
        self.column = self.model.predict(data()[0][:3], verbose=0)[:, 0]

    def on_train_batch_end(self, batch, logs=None):
        self.queue.append(batch)
        self.lists[batch % 2].append((batch, self.queue))
        self.pair["b"] = self.pair.pop("a", batch)
        self.logger.debug("A logger changes its cache")
        self.point[1].append(batch)
        self.point = batch, self.point[1]
        self.lists["itself"] = [self.lists]
        self.array[1] = self.rng.normal() + self.other.random() + self.old.normal()
        self.array[1] += float(keras.random.normal((), seed=self.seeds))
        self.mean.update_state(batch)
        self.own[0].assign_add(1.0)
        self.view[0] += 1
        self.bytes[0] += 1
        self.counts[batch] += 1
        self.best_step = Best(batch, logs["loss"])
        self.slot += 1
        type(self).steps += 1
        self.of_class.append(batch)
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            self.drawn = float(tf.random.normal(()))


class Reader(keras.callbacks.Callback):
    """Callback that computes the learning rate from all attributes of another one."""

    def __init__(self, shared, writer):
        super().__init__()
        self.read, self.writer = shared, writer

    def on_train_batch_end(self, batch, logs=None):
        writer = self.writer
        parts = [self.read, writer.again, writer.toggle, writer.queue, writer.lists, writer.pair]
        parts += [writer.grown, writer.point, writer.lists["itself"][0] is writer.lists, writer.array.tolist()]
        parts += [float(writer.mean.result()), float(writer.own[0]), writer.rng.bit_generator.seed_seq]
        parts += [writer.best, writer.best is writer.pair, "deleted" in vars(writer)]
        parts += [writer.view.tolist(), writer.column.tolist(), writer.bytes, writer.counts, writer.best_step]
        parts += [writer.slot, Everything.steps, Everything.of_class, getattr(writer, "drawn", None)]
        self.model.optimizer.learning_rate.assign(sum(map(ord, str(parts))) % 1009 / 1e4)


def test_attributes_of_every_kind(tmp_path):
    def callbacks(folder):
        shared = []
        writer = Everything(shared)
        return [writer, Reader(shared, writer)]

    case = Case(
        dense, lambda: with_loss("sgd", run_eagerly=keras.backend.backend() == "tensorflow"), callbacks, epochs=3
    )
    model, _, history, _ = run(case, tmp_path / "whole")
    for moment in (("batch", 0, 4), ("batch", 2, 5)):
        with pytest.raises(Killed):
            run(case, tmp_path / "stopped", moment)
    last, _, again, _ = run(case, tmp_path / "stopped")
    assert_same((values(model), history), (values(last), again))


class Others(keras.callbacks.Callback):
    """Callback that changes attributes that are not plain data."""

    def __init__(self):
        super().__init__()
        self.losses, self.nested, self.own = [], [({"a": {0}},)], types.SimpleNamespace(steps=0)
        self.count, self.batches, self.unbuilt = itertools.count(), iter(np.zeros(9)), keras.layers.Dense(1)

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        self.nested[0][0]["a"].add(batch + 1)
        self.own.steps += 1
        self.unbuilt(np.ones((1, 2)))
        next(self.count)
        next(self.batches)
        self.made, self.layer, self.variable = (lambda: 0), keras.layers.Dense(1), [keras.Variable(0.0)]


class WithMethods(Others):
    def get_state(self):
        return {"losses": self.losses}

    def set_state(self, state):
        self.losses = state["losses"]


CHANGED = ("count", "batches", "made", "layer", "variable", "unbuilt")


def test_attributes_that_are_not_plain_data(tmp_path):
    """One error after the first step names all of them. Both remedies work."""
    with pytest.raises(
        ValueError, match="cannot restore what has changed .* Keep the position of an iterator"
    ) as found:
        fit(tmp_path / "refused", Others(), every="epoch", epochs=2)
    assert not list((tmp_path / "refused").glob("step-*"))
    names = ast.literal_eval(re.search(r"ignore=(\[.*?\])", str(found.value))[1])
    assert set(names) == {f"Others.{name}" for name in CHANGED}
    assert all(f"Others.{name} (" in str(found.value) for name in CHANGED)
    fit(tmp_path / "ignored", Others(), ignore=names)
    fit(tmp_path / "methods", WithMethods())


class TimeLimit(keras.callbacks.Callback):
    """Callback that pauses after a number of batches of this process, at the end of a batch or an epoch."""

    resume = None

    def __init__(self, batches, event, pause):
        super().__init__()
        self.left, self.event, self.pause = batches, event, pause

    def get_state(self):
        return None

    def set_state(self, state):
        raise AssertionError

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.stop("batch")

    def on_epoch_end(self, epoch, logs=None):
        self.stop("epoch")

    def stop(self, event):
        if self.left <= 0 and event == self.event:
            self.pause(self.resume)


def send_signal(resume):
    """Pause by SIGTERM, which has its usual effect after `fit`."""
    os.kill(os.getpid(), signal.SIGTERM)


class StopAtGoal(keras.callbacks.Callback):
    """Callback of the tutorials, which stops after four epochs, or after an epoch of fewer batches."""

    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches = batch + 1

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 3 or self.batches < STEPS:
            self.model.stop_training = True


def limited(limit, folder):
    return [*LIMITED.callbacks(folder), TimeLimit(*limit)]


LIMITED = Case(
    lambda: dense(keras.layers.Dropout(0.5)),
    lambda: with_loss(keras.optimizers.Adam(0.01), run_eagerly=True),
    lambda folder: [
        StopAtGoal(),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.ModelCheckpoint(
            folder / "best.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
        ),
    ],
    # In other epochs the rows of the logs have no validation loss.
    fit={"validation_data": data(), "validation_freq": 2},
    epochs=6,
    every=50,
)


def files(folder):
    """Return the log and the weights that callbacks have written."""
    best = keras.models.clone_model(keras.Sequential([keras.Input((6, 6, 1)), *LIMITED.layers()]))
    best.load_weights(folder / "best.weights.h5")
    return (folder / "log.csv").read_bytes(), best.get_weights()


def test_time_limit(tmp_path):
    """A run that a time limit pauses continues when started again, and ends at the goal of a callback."""
    model, _, history, _ = run(LIMITED, tmp_path / "whole")
    expected, (logs, best) = (values(model), history), files(tmp_path / "whole")
    # Within an epoch, at the end of its last batch, and at the end of an epoch. The last part has no limit.
    limits = [(11, "batch", ExactResume.pause), (5, "batch", ExactResume.pause), (1, "epoch", send_signal)]
    ends = (11, 2 * STEPS, 3 * STEPS, 4 * STEPS)
    for limit, start, end in zip([*limits, (99, "batch", None)], (0, *ends), ends, strict=False):
        case = dataclasses.replace(LIMITED, callbacks=functools.partial(limited, limit))
        model, _, history, resumed_at = run(case, tmp_path / "parts")
        assert (resumed_at, model.optimizer.iterations) == (start, end)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert_same(expected, (values(model), history))
    now, now_best = files(tmp_path / "parts")
    assert now == logs
    for one, other in zip(best, now_best, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.warns(UserWarning, match="it ended in epoch 4, and a callback stopped it"):
        run(case, tmp_path / "parts")
