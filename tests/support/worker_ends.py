"""A `fit` on several workers that one of them ends.

`python -m tests.support.worker_ends EVENT VICTIM` prints the number of steps of this worker, and then its error. Events
of the victim: "connection" (killed before TensorFlow connects the workers), "killed", "terminated" by SIGTERM, "fails"
with an error of its own, "stops" by `stop_training`, "done".
"""

import os
import signal
import sys
from unittest import mock

import keras
import numpy as np
import pytest

from idmatters_tf.distribute import ClusterDescription, chief_only, find_cluster, multi_worker_strategy, strategies
from idmatters_tf.distribute.tasks import wait_for_tasks

# Step after which the victim ends, and number of steps of the others.
STEP, STEPS = 5, 400
X = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")


class End(keras.callbacks.Callback):
    """Callback that ends one worker after some steps."""

    def __init__(self, event, is_victim):
        super().__init__()
        self.event, self.is_victim, self.steps = event, is_victim, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps < STEP or not self.is_victim:
            return
        if self.event == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.event == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.event == "fails":
            raise RuntimeError("an error of its own")
        elif self.event == "stops":
            self.model.stop_training = True


def wait(is_ended):
    """Return `wait_for_tasks` for a process that ends after it."""

    def wait_and_end(*arguments):
        wait_for_tasks(*arguments)
        if is_ended:
            os.kill(os.getpid(), signal.SIGKILL)

    return wait_and_end


def check_cluster(strategy, cluster):
    """Check that the argument `cluster` is used without TF_CONFIG, and that a model of another scope is refused."""
    assert strategy.num_replicas_in_sync == len(cluster.tasks)
    assert bool(chief_only(keras.callbacks.CSVLogger("log.csv"))) == cluster.is_chief
    model = build()
    with pytest.raises(ValueError, match="built outside of the scope of the strategy"):
        model.fit(X, X[:, :1], verbose=0)
    with strategy.scope():
        model = build(compiles=False)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="optimizer was created outside of the scope of the strategy"):
        model.fit(X, X[:, :1], verbose=0)


def build(compiles=True):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    if compiles:
        model.compile("sgd", "mse")
    return model


def main(argv):
    event, victim = argv
    found = find_cluster()
    del os.environ["TF_CONFIG"]
    cluster = ClusterDescription(found.jobs, found.job, found.index)
    is_victim = cluster.task == victim
    with mock.patch.object(strategies, "wait_for_tasks", wait(is_victim and event == "connection")):
        strategy = multi_worker_strategy(20.0 if event == "connection" else 600.0, cluster)
    check_cluster(strategy, cluster)
    with strategy.scope():
        model = build()
    end = End(event, is_victim)
    try:
        model.fit(X, X[:, :1], batch_size=12, epochs=STEPS // 4, verbose=0, callbacks=[end])
    finally:
        print(f"{end.steps} steps", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
