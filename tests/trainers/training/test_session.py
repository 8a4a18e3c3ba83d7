"""Tests of evaluations in a session: interruption by signals, repetition on resume, and the best weights."""

import signal
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.checkpointing import list_steps
from trainers.run.events import Events
from trainers.run.folder import Run
from trainers.training.checkpoints import BEST, restore_weights
from trainers.training.session import Session
from trainers.training.settings import Intervals


class Trainer:
    """Stand-in for a trainer whose evaluations return `error`."""

    def __init__(self):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        self.learner = types.SimpleNamespace(model=model, optimizer=tf.Module(), step=tf.Variable(0, dtype=tf.int64))
        self.error = 0.5

    def evaluate(self, batches, progress=True, *, between=lambda: None):
        between()
        self.learner.model.layers[0].bias.assign([self.error])
        return {"loss": 1.0, "error": self.error, "count": 3}


@pytest.fixture
def session(tmp_path):
    run = Run(tmp_path / "run")
    run.start({}, {"digest": "", "origin": ""})
    return Session(run, Trainer(), None, Events(run.path / "events"), 40, Intervals(evaluate_every=10))


def test_a_signal_ends_an_evaluation_which_is_then_due(session):
    handler = types.SimpleNamespace(received=None)
    assert [step for step in range(41) if session.evaluation_is_due(step)] == [0, 10, 20, 30, 40]
    assert session.evaluate(0, handler)
    assert session.evaluate(10, handler)
    handler.received = signal.SIGINT
    assert not session.evaluate(20, handler)
    assert [record["step"] for record in session.run.metrics()] == [0, 10]
    assert [step for step in range(41) if session.evaluation_is_due(step)] == [20, 30, 40]


def test_the_weights_with_the_lowest_error_are_kept(session):
    folder = session.checkpoints.folder / BEST
    kept = []
    # The first evaluation is that of the initial weights, which are not a result.
    for step, error in ((0, 0.1), (10, 0.5), (20, 0.25), (30, 0.25), (40, 0.375)):
        session.trainer.error = error
        session.evaluate(step)
        kept.append(list_steps(folder))
    assert kept == [[], [10], [20], [20], [20]]
    other = Trainer().learner.model
    assert restore_weights(folder, other) == 20
    np.testing.assert_array_equal(other.layers[0].bias, [0.25])
