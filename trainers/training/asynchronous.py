"""Asynchronous training with parameter servers, the paper's setting on ImageNet, on tf.distribute's ClusterCoordinator.

Each worker reads the current weights, computes the gradient of its own batch, and updates the weights on the parameter
servers without waiting for other workers. The learning rate depends on the number of updates of all workers, which one
atomic operation on a parameter server counts. A Keras optimizer's own counter loses updates.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from idmatters_tf._progress import Progress
from idmatters_tf.data.protocols import EvaluationBatchSource, TrainBatchSource
from idmatters_tf.distribute import ClusterDescription
from idmatters_tf.distribute.tasks import wait_for_chief
from trainers.cli.arguments import RunError
from trainers.cluster.strategy import distribute
from trainers.run.signals import SignalHandler
from trainers.training.learner import Learner
from trainers.training.session import Callback, Session


class AsynchronousTrainer:
    """Trainer whose updates are each made by one worker; compare `trainers.training.synchronous.SynchronousTrainer`.

    Args:
        learner: network and optimizer, under a `tf.distribute.ParameterServerStrategy`.
        workers: number of workers of the cluster.
    """

    def __init__(self, learner: Learner, workers: int):
        self.learner, self._workers = learner, workers
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(learner.strategy)

    @tf.function(autograph=False)
    def update(self, batches: Any) -> tf.Tensor:
        """Make the update of one worker. Returns the same tensor as `SynchronousTrainer.update`."""
        learner = self.learner
        gradients, measured = learner.strategy.run(learner.gradients, args=next(batches))
        total = tf.distribute.ReduceOp.SUM
        gradients = [learner.strategy.reduce(total, gradient, axis=None) for gradient in gradients]
        learner.set_rate()
        norm = learner.apply(gradients)
        # Atomic on the parameter server, so that every update is counted.
        learner.step.assign_add(1)
        return tf.concat([learner.strategy.reduce(total, measured, axis=None), [norm, learner.rate]], 0)

    def evaluate(
        self, batches: EvaluationBatchSource, progress: bool = True, *, between: Callable[[], object] = lambda: None
    ) -> dict[str, float]:
        """Evaluate every image once. If the worker of a batch is lost, another worker computes the batch."""

        @tf.function(autograph=False)
        def sums_of_batch(number):
            images, labels, weights = batches.dataset(first=number, steps=1).get_single_element()
            return self.learner.evaluation_sums(images, labels, weights)

        numbers = [tf.constant(number, tf.int64) for number in range(batches.steps)]
        scheduled = [self._coordinator.schedule(sums_of_batch, args=(number,)) for number in numbers]
        sums = np.zeros(4)
        with Progress(batches.steps, "evaluating", progress, unit="batches", delay=0) as bar:
            for part in scheduled:
                between()
                sums += part.fetch()
                bar.advance()
        return self.learner.evaluation(sums)

    def fit(self, session: Session, train: TrainBatchSource, callback: Callback | None = None) -> signal.Signals | None:
        """Train as `SynchronousTrainer.fit` does. The callback is called before each checkpoint."""
        done, steps, intervals = session.begin(), session.steps, session.intervals
        due = session.evaluation_is_due(done)
        if done >= steps and not due:
            return None
        batches = self._worker_batches(train)
        with SignalHandler() as handler, session.progress:

            def stops():
                return handler.received is not None

            if due:
                session.evaluate(done)
            while done < steps and not stops():
                # Workers wait for one another only before an evaluation or a checkpoint.
                every = (intervals.evaluate_every, intervals.checkpoint_every)
                target = min(steps, *(number * (done // number + 1) for number in every))
                done = self._make_updates(done, target, batches, session, stops)
                self._check_count(done)
                if done % intervals.evaluate_every == 0 or done == steps:
                    session.evaluate(done)
                if callback is not None:
                    callback(done, session.seconds())
                session.save(done)
        return None if done == steps else handler.received

    def _worker_batches(self, train):
        """Return the iterators of the workers, which take turns from the current number of updates on.

        A restarted worker also begins at the current number of updates, not with the batches that it has already seen.
        """

        def for_worker():
            turn = tf.distribute.coordinator.experimental_get_current_worker_index()
            first = self.learner.step.read_value() + tf.cast(turn, tf.int64)
            return distribute(
                self.learner.strategy, lambda share: train.dataset(first, 1 << 40, share, stride=self._workers)
            )

        return iter(self._coordinator.create_per_worker_dataset(for_worker))

    def _make_updates(self, done, target, batches, session, stops):
        """Schedule updates up to `target` or until a signal. Returns the total number of updates made."""
        window, previous = [], None
        started = time.monotonic()

        def log(step, results):
            nonlocal started
            for result in results:
                session.add(result.get())
            session.spent(time.monotonic() - started)
            started = time.monotonic()
            session.log(step)

        while done < target and not stops():
            # Blocks while the coordinator's queue is full.
            window.append(self._coordinator.schedule(self.update, args=(batches,)))
            done += 1
            if done % session.intervals.log_every == 0:
                # Log one window late, so that the workers are never idle.
                if previous is not None:
                    log(*previous)
                previous, window = (done, window), []
        self._coordinator.join()
        for step, results in filter(None, (previous, (done, window) if window else None)):
            log(step, results)
        return done

    def _check_count(self, done):
        """Compare the counter of updates with the number of scheduled updates."""
        counted = int(self.learner.step.numpy())
        if counted < done:
            raise RunError(f"the parameter server counted {counted} updates, but the workers made {done}.")
        # The count is larger if a worker was lost after counting and another worker repeated its update.
        self.learner.step.assign(done)


def serve(cluster: ClusterDescription, timeout: float, say: Callable[[str], object]) -> int:
    """Run a parameter server or a worker until the coordinator has ended. Returns the exit code.

    SIGTERM and Ctrl-C are recorded only: a scheduler sends them to the coordinator as well, which needs the weights to
    save a checkpoint. A second signal ends the process at once.

    Args:
        cluster: tasks of the cluster.
        timeout: number of seconds to wait for the coordinator.
        say: called with messages for the user.
    """
    # At least as many threads as in TensorFlow's example of a worker; with fewer, its operations can deadlock.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(4, os.cpu_count() or 1))
    with SignalHandler() as handler:
        _server = tf.distribute.Server(
            tf.train.ClusterSpec(cluster.jobs),
            job_name=cluster.job,
            task_index=cluster.index,
            protocol="grpc",
            config=config,
            start=True,
        )
        say(f"{cluster.task} serves at {cluster.tasks[cluster.task]}")
        wait_for_chief(cluster, timeout, say, "--cluster-timeout")
        say(f"{cluster.chief} ({cluster.tasks[cluster.chief]}) has ended")
    return 128 + handler.received if handler.received else 0
