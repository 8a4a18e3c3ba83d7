"""Asynchronous training with parameter servers, the paper's setting on ImageNet, on tf.distribute's ClusterCoordinator.

Each worker reads the current weights, computes the gradient of its own batch, and updates the weights on the parameter
servers without waiting for other workers. The learning rate depends on the number of updates of all workers, which one
atomic operation on a parameter server counts. A Keras optimizer's own counter loses updates.

Workers read and decode images in files. Batches of images in memory are computed by the chief, which has the images,
and sent to the workers. The chief alone evaluates the network.
"""

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf._keras_types import Tensor
from idmatters_tf.callbacks import saved
from idmatters_tf.checkpointing import list_steps, remove_steps
from idmatters_tf.data.batches import TrainBatches
from idmatters_tf.data.protocols import TrainBatchSource
from idmatters_tf.distribute import ClusterDescription
from trainers.cli.arguments import RunError
from trainers.cli.startup import print_message
from trainers.run.signals import SignalHandler
from trainers.training.measure import Measured, compute_errors, measure
from trainers.training.reports import KEPT, MEANS, Reports
from trainers.training.settings import Task

Batch: TypeAlias = tuple[tf.Tensor, tf.Tensor]
# Learning rate as a function of the step.
Rate: TypeAlias = Callable[[Tensor], Tensor]
RemoteValue: TypeAlias = tf.distribute.experimental.coordinator.RemoteValue
# Variables in a checkpoint.
VARIABLES = ("model", "optimizer")
# More batches than any training has.
_ENDLESS = 2**40
# Maximum number of scheduled batches in the memory of the chief, for each worker.
_AHEAD = 8


class AsynchronousTrainer:
    """Updates of a network, compiled under a `ParameterServerStrategy`, each made by one of several workers."""

    def __init__(self, model: keras.Model, rate: Rate, clip_norm: float | None, workers: int, done: int):
        self._model, self._rate, self._clip_norm, self._workers = model, rate, clip_norm, workers
        self._strategy = model.distribute_strategy
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(self._strategy)
        self._weights = [variable.value for variable in model.trainable_variables]
        with self._strategy.scope():
            self.step = tf.Variable(tf.constant(done, tf.int64), trainable=False, name="step")

    @tf.function(autograph=False)
    def update(self, batch: Batch | Iterator[Batch]) -> tf.Tensor:
        """Make the update of one worker. Returns loss, error, gradient norm and learning rate.

        Args:
            batch: images and labels, or an iterator over such batches.
        """
        images, labels = batch if isinstance(batch, tuple) else next(batch)
        optimizer = self._model.optimizer
        rate = self._rate(self.step)
        gradients, measured = self._strategy.run(self._gradients, args=(images, labels))
        gradients = [self._strategy.reduce("SUM", gradient, axis=None) for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        if self._clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm, use_norm=norm)
        # The optimizer's updates are called directly, because its counter of iterations loses counts.
        if optimizer.weight_decay:
            for weight in self._weights:
                weight.assign(weight * (1 - rate * optimizer.weight_decay))
        for gradient, weight in zip(gradients, self._weights, strict=True):
            optimizer.update_step(gradient, weight, rate)
        # Atomic on the parameter server, so that every update is counted.
        self.step.assign_add(1)
        return tf.concat([self._strategy.reduce("SUM", measured, axis=None), [norm, rate]], 0)

    def _gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[Tensor, Tensor]:
        """Return this replica's part of the gradient, and of the loss and the error."""
        replicas = self._strategy.num_replicas_in_sync
        context = tf.distribute.get_replica_context()
        size = images.shape[0] // replicas
        first = context.replica_id_in_sync_group * size
        images, labels = images[first : first + size], labels[first : first + size]
        with tf.GradientTape() as tape:
            logits = self._model(images, training=True)
            loss = tf.reduce_mean(self._model.loss(labels, logits))
            total = tf.add_n([loss, *self._model.losses]) / replicas
        logits = tf.cast(logits, tf.float32)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        error = compute_errors(labels, logits)
        measured = tf.stack([tf.reduce_mean(cross_entropy), tf.reduce_mean(error)]) / replicas
        return tape.gradient(total, self._weights), measured

    def schedule(self, count: int, batches: Iterator[Batch], is_stopped: Callable[[], bool]) -> list[RemoteValue]:
        """Schedule updates until a signal. Returns the values of `update` that the workers will compute."""
        is_local = isinstance(batches, tf.data.Iterator)
        scheduled: list[RemoteValue] = []
        while len(scheduled) < count and not is_stopped():
            scheduled.append(self._coordinator.schedule(self.update, args=(next(batches) if is_local else batches,)))
            if is_local and len(scheduled) > _AHEAD * self._workers:
                self.value(scheduled[-_AHEAD * self._workers])
        return scheduled

    def value(self, scheduled: RemoteValue) -> Tensor:
        """Wait for a scheduled computation and return its value. Raises the first error of all computations."""
        try:
            return scheduled.fetch()
        except tf.errors.OpError:
            # Cancels the other computations, whose errors would be printed at the end of the process.
            self.join()
            raise

    def join(self) -> None:
        """Wait for all scheduled updates."""
        self._coordinator.join()

    def batches(self, train: TrainBatchSource) -> Iterator[Batch]:
        """Return the argument `batches` of `schedule`: batches from the current number of updates on.

        Returns:
            An iterator over batches of images in memory. For images in files, the iterators of the workers, which take
            turns. A restarted worker also begins at the current number of updates, not with the batches that it has
            already seen.
        """
        if isinstance(train, TrainBatches):
            return iter(train.dataset(int(self.step.numpy()), _ENDLESS))

        def for_worker():
            turn = tf.distribute.coordinator.experimental_get_current_worker_index()
            first = self.step.read_value() + tf.cast(turn, tf.int64)
            return train.dataset(first, _ENDLESS, stride=self._workers)

        return iter(self._coordinator.create_per_worker_dataset(for_worker))


def fit_asynchronously(
    task: Task, model: keras.Model, local: keras.Model, rate: Rate, cluster: ClusterDescription, handler: SignalHandler
) -> bool:
    """Train until the last step or a signal. Return True after the last step.

    Workers wait at evaluations and checkpoints. The weights of `model` are on the parameter servers; the chief copies
    them to `local`, the same network without a strategy, to evaluate them.
    """
    run = task.run
    steps = task.settings.recipe.steps
    intervals = task.settings.run
    done = saved.restore(model, run.checkpoints_path, task.identity, VARIABLES, repair=True) or 0
    trainer = AsynchronousTrainer(model, rate, task.settings.recipe.clip_norm, cluster.workers, done)
    batch_size, options = task.settings.recipe.batch_size, task.settings.data
    images = options.test_batches(batch_size)

    def test() -> Measured:
        local.set_weights(model.get_weights())
        return measure(local, images, options.counts[1])

    reports = Reports(task, local, test)
    reports.begin(done, [record for record in run.metrics() if record["step"] <= done] if done else [])
    batches = trainer.batches(options.train_batches(batch_size, task.settings.recipe.seed))
    print_message("compiling the training step ...")
    with reports:

        def stops():
            return handler.received is not None

        def log(step, scheduled):
            nonlocal started
            if scheduled:
                values = np.stack([trainer.value(each) for each in scheduled]).astype(float)
                means = dict(zip(MEANS, [*values.mean(0)[:3].tolist(), float(values[-1, 3])], strict=True))
                reports.progress.advance(len(values), text=None)
                reports.log(step, means, len(values), time.monotonic() - started)
            started = time.monotonic()

        started = time.monotonic()
        if reports.evaluation_is_due(done):
            reports.evaluate(done)
        while done < steps and not stops():
            target = min(steps, *(n * (done // n + 1) for n in (intervals.evaluate_every, intervals.checkpoint_every)))
            previous: list[RemoteValue] = []
            while done < target and not stops():
                window = min(target - done, intervals.log_every - done % intervals.log_every)
                results = trainer.schedule(window, batches, stops)
                # One window late, so that the workers are never idle.
                log(done, previous)
                done = done + len(results)
                previous = results
            trainer.join()
            log(done, previous)
            counted = int(trainer.step.numpy())
            if counted < done:
                raise RunError(f"the parameter server counted {counted} updates, but the workers made {done}.")
            # The count is larger if a worker was lost after counting and another worker repeated its update.
            trainer.step.assign(done)
            if done % intervals.evaluate_every == 0 or done == steps:
                reports.evaluate(done)
            saved.save(model, run.checkpoints_path, done, task.identity, VARIABLES)
            remove_steps(run.checkpoints_path, list_steps(run.checkpoints_path)[:-KEPT])
    return done == steps
