"""Synchronous training on tf.distribute's public API, in which all replicas make each update together.

`keras.Model.fit` does not replace this loop on one machine: several workers would still need the loop, because `fit`
fails under `MultiWorkerMirroredStrategy` (keras issue 20585, observed with Keras 3.15.1), and its results differ by
rounding.

- Here, one all-reduce combines gradients, float32 sums of the loss and a request to stop. `fit` reduces the gradients
  in the optimizer and cannot stop all workers after the same step.
- Here, the rate, lookahead and the random numbers of dropout are functions of the step. In `fit`, layers
  have random states and the optimizer counts iterations.
- Here, each size of training images has a trace, and evaluation counts each image once on any number of replicas.
- `fit` is not faster: for a small network on two CPU cores both make the same number of steps per second.
"""

import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from idmatters_tf._progress import Progress
from idmatters_tf.data.protocols import EvaluationBatchSource, TrainBatchSource
from trainers.cluster.strategy import distribute
from trainers.run.signals import SignalHandler
from trainers.training.learner import Learner
from trainers.training.session import Callback, Session


class SynchronousTrainer:
    """Compiled update and evaluation, and the training loop.

    Args:
        learner: network and optimizer.
    """

    def __init__(self, learner: Learner):
        self.learner = learner

    @tf.function(autograph=False)
    def update(self, batches: Any, stop: tuple | tf.Tensor = (), size: int | None = None) -> tf.Tensor:
        """Make one update.

        Args:
            batches: iterator of a distributed data set.
            stop: in a cluster, a float32 scalar: 1 if this worker has received a signal to stop, else 0.
            size: side of the training images in pixels, see `Learner.train_size`; each size is traced once.

        Returns:
            float32 `[cross-entropy, weight penalty, error, gradient norm, learning rate]`, followed, with `stop`, by
            its sum over all replicas, by which all workers stop at the same step.
        """
        learner = self.learner
        learner.set_rate()
        results = learner.strategy.run(self._replica_update, args=(*next(batches), stop, size))
        learner.step.assign_add(1)
        # The results are equal on all replicas.
        return learner.strategy.experimental_local_results(results)[0]

    def _replica_update(self, images, labels, stop, size):
        replica = tf.distribute.get_replica_context()
        self.learner.reseed()
        gradients, measured = self.learner.gradients(images, labels, size)
        measured = tf.concat([measured, tf.reshape(stop, [-1])], 0)
        if replica.num_replicas_in_sync > 1:
            # A single exchange, because each one costs a round through the replicas, independent of its size.
            *gradients, measured = replica.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, measured])
        norm = self.learner.apply(gradients)
        return tf.concat([measured[:3], [norm, self.learner.rate], measured[3:]], 0)

    @tf.function(autograph=False)
    def _evaluate_batch(self, batches, mirror):
        sums = self.learner.strategy.run(self.learner.evaluation_sums, args=(*next(batches), mirror))
        return self.learner.strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    def evaluate(
        self,
        batches: EvaluationBatchSource,
        progress: bool = True,
        mirror: bool = False,
        *,
        between: Callable[[], object] = lambda: None,
    ) -> dict[str, float]:
        """Evaluate the network once on every image, see `Learner.evaluation`.

        With `mirror`, logits are averaged over each image and its mirror image. `between` is called before each batch;
        an exception that it raises ends the evaluation.
        """
        iterator = iter(distribute(self.learner.strategy, batches.dataset))
        sums = np.zeros(4)
        with Progress(batches.steps, "evaluating", progress, unit="batches", delay=0) as bar:
            for _ in range(batches.steps):
                between()
                sums += self._evaluate_batch(iterator, mirror).numpy()
                bar.advance(text=f"error {100 * sums[1] / max(sums[2], 1):.2f} %")
        return self.learner.evaluation(sums)

    def fit(self, session: Session, train: TrainBatchSource, callback: Callback | None = None) -> signal.Signals | None:
        """Train to the end of a session. Returns None, or the signal that stopped it after a checkpoint was saved.

        Args:
            session: records, evaluations and checkpoints between the updates.
            train: training images.
            callback: called after each step, see `trainers.training.curvature.curvature_callback`.
        """
        first, steps, intervals = session.begin(), session.steps, session.intervals
        due = session.evaluation_is_due(first)
        if first >= steps and not due:
            return None
        stop = _CommonStop(not session.cluster.is_synchronous)
        with SignalHandler() as handler, session.progress:
            if due and not session.evaluate(first, handler):
                return handler.received
            batches = iter(distribute(self.learner.strategy, lambda share: train.dataset(first, steps - first, share)))
            for step in range(first + 1, steps + 1):
                started = time.monotonic()
                result = self.update(batches, stop.request(handler), self.learner.train_size(step - 1))
                session.add(result)
                session.spent(time.monotonic() - started)
                # Read once: a signal received later stops the next step.
                stopped_by = stop.agreed(handler, result)
                saves = step % intervals.checkpoint_every == 0 or step == steps or stopped_by is not None
                finished = step == steps
                evaluates = step % intervals.evaluate_every == 0 or finished
                # Before an evaluation, so that a diverged network is not evaluated and its weights are not kept.
                if step % intervals.log_every == 0 or evaluates or saves:
                    session.log(step)
                if evaluates and not session.evaluate(step, handler):
                    # The evaluation is repeated when the run is resumed.
                    stopped_by, saves, finished = handler.received, True, False
                if callback is not None:
                    callback(step, session.seconds())
                if saves:
                    session.save(step)
                if stopped_by is not None:
                    return None if finished else stopped_by
        return None


class _CommonStop:
    """Stop of all workers after the same step: their signals are summed with the gradients of the next update."""

    def __init__(self, alone: bool) -> None:
        self._alone, self._previous = alone, None

    def request(self, handler):
        """Return the argument `stop` of the next update; empty if there are no other workers."""
        return () if self._alone else tf.constant(float(handler.received is not None))

    def agreed(self, handler, result):
        """Return the signal that ends the training after this step, or None. All workers make the same decision."""
        if self._alone:
            return handler.received
        # Read the result of the previous step, which is already available, so that the devices need not wait.
        previous, self._previous = self._previous, result
        if previous is None or not previous[-1] > 0:
            return None
        return handler.received or signal.SIGTERM
