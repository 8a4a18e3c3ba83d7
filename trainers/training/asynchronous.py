"""Asynchronous training with parameter servers, the paper's setting on ImageNet, on tf.distribute's ClusterCoordinator.

Each worker takes the weights as they are, computes the gradient of a batch of its own, and updates the weights on the
parameter servers, whatever the others have done meanwhile. The learning rate follows the number of updates that all
workers have made, counted by one atomic operation on a parameter server: a Keras optimizer's own counter loses updates.
"""

import os
import signal
import time

import numpy as np
import tensorflow as tf

from trainers.cli.arguments import RunError
from trainers.cluster.strategy import distribute
from trainers.run.progress import Progress
from trainers.run.signals import SignalHandler
from trainers.training.loop import Session, Trainer


class AsynchronousTrainer(Trainer):
    """As `trainers.training.loop.Trainer`, but each update is one worker's, scheduled by the coordinator."""

    def __init__(self, strategy, *arguments, **options):
        super().__init__(strategy, *arguments, **options)
        self.coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)

    def worker_batches(self, train, workers):
        """Each worker's iterator: the workers take turns, beginning at the number of updates made by then.

        A worker that comes back begins there too, and not with what it has seen before.
        """

        def for_worker():
            turn = tf.distribute.coordinator.experimental_get_current_worker_index()
            first = self.step.read_value() + tf.cast(turn, tf.int64)
            return distribute(self.strategy, lambda share: train.dataset(first, 1 << 40, share, stride=workers))

        return iter(self.coordinator.create_per_worker_dataset(for_worker))

    @tf.function
    def update(self, batches):
        """One worker's update; what it returns is as in `trainers.training.loop.Trainer.update`."""
        rate = self.recipe.rate(self.step)
        gradients, measured = self.strategy.run(self._gradients, args=next(batches))
        total = tf.distribute.ReduceOp.SUM
        gradients = [self.strategy.reduce(total, gradient, axis=None) for gradient in gradients]
        norm = self._apply(gradients, rate)
        # Atomic on the parameter server: no update goes uncounted.
        self.step.assign_add(1)
        return tf.concat([self.strategy.reduce(total, measured, axis=None), [norm, rate]], 0)

    @tf.function
    def _evaluate_number(self, number):
        images, labels, weights = self._evaluation.dataset(first=number, steps=1).get_single_element()
        return self._replica_evaluation(images, labels, weights)

    def evaluate(self, batches, title="evaluating", progress=True):
        """Every picture once: each batch is computed by one worker, and by another if that one is lost."""
        self._evaluation = batches
        bar = Progress(batches.steps, title, progress, unit="batches", leave=False)
        numbers = [tf.constant(number, tf.int64) for number in range(batches.steps)]
        waiting = [self.coordinator.schedule(self._evaluate_number, args=(number,)) for number in numbers]
        sums = np.zeros(4)
        for part in waiting:
            sums += part.fetch()
            bar.advance()
        bar.close()
        return self._means(sums)


class AsynchronousSession(Session):
    """As `trainers.training.loop.Session`, on the coordinator."""

    def work(self):
        recipe, done = self.recipe, int(self.trainer.step.numpy())
        if done >= recipe.steps:
            return None
        workers = self.cluster.workers
        batches = self.trainer.worker_batches(self.train, workers)
        self._began = time.monotonic()
        progress = Progress(recipe.steps, "training", done=done)
        with SignalHandler() as stop:
            while done < recipe.steps and not self._stops(stop):
                target = min(
                    recipe.steps,
                    *(every * (done // every + 1) for every in (recipe.evaluate_every, recipe.checkpoint_every)),
                )
                done = self._schedule(done, target, batches, stop, progress)
                self._count(done)
                if done % recipe.evaluate_every == 0 or done == recipe.steps:
                    self._evaluate(done, progress)
                self.checkpoints.save(done)
        progress.close()
        return None if done == recipe.steps else stop.received or signal.SIGTERM

    def _schedule(self, done, target, batches, stop, progress):
        """Has the workers make the updates up to `target`, or to a signal. Returns how many have been made in all."""
        window, every = [], self.recipe.log_every
        before = None
        started = time.monotonic()

        def log(step, results):
            nonlocal started
            for result in results:
                self._pending.append(result.get())
                progress.advance()
            self._window_seconds += time.monotonic() - started
            started = time.monotonic()
            self._log(step, progress)

        while done < target and not self._stops(stop):
            # Blocks while the coordinator's queue is full.
            window.append(self.trainer.coordinator.schedule(self.trainer.update, args=(batches,)))
            done += 1
            if done % every == 0:
                # One window behind, so that the workers always have something to do.
                if before is not None:
                    log(*before)
                before, window = (done, window), []
        self.trainer.coordinator.join()
        for step, results in filter(None, (before, (done, window) if window else None)):
            log(step, results)
        return done

    def _stops(self, stop):
        return stop.received is not None or self.cluster.stop_requested

    def _count(self, done):
        """Checks the counter of updates against what was scheduled."""
        counted = int(self.trainer.step.numpy())
        if counted < done:
            raise RunError(f"the parameter server has counted {counted} updates, but {done} have been made.")
        # More: the update of a worker that was lost after counting was made again by another.
        self.trainer.step.assign(done)


def serve(client, say):
    """A parameter server or a worker: does what the coordinator asks, until the run ends. Returns the exit code.

    SIGTERM and Ctrl-C are handed on to the coordinator, which saves a checkpoint and ends the run.
    """
    cluster = client.description
    spec = tf.train.ClusterSpec(cluster.jobs)
    # As many threads as TensorFlow's own example of a worker: with fewer, its operations can wait for one another.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(4, os.cpu_count() or 1))
    with SignalHandler(lambda _number, _count: client.stop()) as stop:
        _server = tf.distribute.Server(
            spec, job_name=cluster.job, task_index=cluster.index, protocol="grpc", config=config, start=True
        )
        say(f"{cluster.task} serves at {cluster.tasks[cluster.task]}")
        client.leave()
    return 128 + stop.received if stop.received else 0
