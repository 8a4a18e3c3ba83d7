"""Synchronous training on tf.distribute's public API: all replicas make each update together.

`keras.Model.fit` does not take the place of this loop on one machine: several workers would still need the loop, since
`fit` fails under `MultiWorkerMirroredStrategy` (keras issue 20585, seen with Keras 3.15.1), and its bits are others.

- Gradients, float32 sums of the loss and a request to stop take one all-reduce here. `fit` reduces the gradients in the
  optimizer, and has no means by which all workers stop after the same step.
- The rate, weight averages, mixup and the numbers of dropout are functions of the step here. In `fit` layers draw
  from states of their own, and the optimizer counts iterations.
- Each size of training images has a trace here. Evaluation counts each image once on any number of replicas.
- `fit` is not faster: for a small network on two CPU cores both make the same number of steps per second.
"""

import signal
import time
from collections.abc import Callable, Sequence
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
    """The compiled update and evaluation, and the loop that calls them.

    Args:
        learner: the network and its optimizer.
    """

    def __init__(self, learner: Learner):
        self.learner = learner

    @tf.function(autograph=False)
    def update(self, batches: Any, stop: tuple | tf.Tensor = (), size: int | None = None) -> tf.Tensor:
        """One update.

        Args:
            batches: the iterator of a distributed data set.
            stop: in a cluster, a float32 scalar, 1 where this worker has been asked to stop, else 0.
            size: side of the training images in pixels, see `Learner.train_size`; each size is traced once.

        Returns:
            float32 `[cross-entropy, weight penalty, error, gradient norm, learning rate]`, and with `stop` its sum over
            all replicas, by which all workers learn of it at the same step.
        """
        learner = self.learner
        rate = learner.set_rate()
        results = learner.strategy.run(self._replica_update, args=(*next(batches), rate, stop, size))
        learner.step.assign_add(1)
        # The same on every replica.
        return learner.strategy.experimental_local_results(results)[0]

    def _replica_update(self, images, labels, rate, stop, size):
        replica = tf.distribute.get_replica_context()
        self.learner.reseed()
        gradients, measured = self.learner.gradients(images, labels, size)
        measured = tf.concat([measured, tf.reshape(stop, [-1])], 0)
        if replica.num_replicas_in_sync > 1:
            # All in one go: each exchange costs a round through the replicas, however small it is.
            *gradients, measured = replica.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, measured])
        norm = self.learner.apply(gradients, rate)
        return tf.concat([measured[:3], [norm, rate], measured[3:]], 0)

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
        """Evaluates the network on every image, once; see `Learner.evaluation`.

        With `mirror`, the logits of each image are the mean of its own and of its mirror image's. `between` is called
        before each batch; what it raises ends the evaluation.
        """
        iterator = iter(distribute(self.learner.strategy, batches.dataset))
        sums = np.zeros(4)
        with Progress(batches.steps, "evaluating", progress, unit="batches", delay=0) as bar:
            for _ in range(batches.steps):
                between()
                sums += self._evaluate_batch(iterator, mirror).numpy()
                bar.advance(text=f"error {100 * sums[1] / max(sums[2], 1):.2f} %")
        return self.learner.evaluation(sums)

    def fit(
        self, session: Session, train: TrainBatchSource, callbacks: Sequence[Callback] = ()
    ) -> signal.Signals | None:
        """Trains to the end of a session. Returns None, or the signal that stopped it once a checkpoint was saved.

        Args:
            session: what happens between the updates.
            train: the training images.
            callbacks: called after each step, see `trainers.training.curvature.curvature_callback`.
        """
        first, steps, intervals = session.begin(), session.steps, session.intervals
        due = session.evaluation_is_due(first)
        if first >= steps and not due:
            return None
        stop = _CommonStop(session.cluster.alone)
        with SignalHandler() as handler, session.progress, session.checkpoints:
            if due and not session.evaluate(first, handler):
                return handler.received
            batches = iter(distribute(self.learner.strategy, lambda share: train.dataset(first, steps - first, share)))
            for step in range(first + 1, steps + 1):
                started = time.monotonic()
                result = self.update(batches, stop.request(handler), self.learner.train_size(step - 1))
                session.add(result)
                session.spent(time.monotonic() - started)
                # Read once: a signal that comes during what follows is for the next step.
                stopped_by = stop.agreed(handler, result)
                saves = step % intervals.checkpoint_every == 0 or step == steps or stopped_by is not None
                if step % intervals.log_every == 0 or saves:
                    session.log(step)
                finished = step == steps
                if (step % intervals.evaluate_every == 0 or finished) and not session.evaluate(step, handler):
                    # What is left of it is done when the run is resumed.
                    stopped_by, saves, finished = handler.received, True, False
                    session.log(step)
                for callback in callbacks:
                    callback(step, session.seconds())
                if saves:
                    session.save(step)
                if stopped_by is not None:
                    return None if finished else stopped_by
        return None


class _CommonStop:
    """How all workers stop after the same step: each one's signal is summed with the gradients of the next update."""

    def __init__(self, alone: bool) -> None:
        self._alone, self._previous = alone, None

    def request(self, handler):
        """The argument by which the update tells the others of a signal; empty where there are no others."""
        return () if self._alone else tf.constant(float(handler.received is not None))

    def agreed(self, handler, result):
        """The signal that ends the training after this step, or None: the same decision on all workers."""
        if self._alone:
            return handler.received
        # The result of the step before is there already: so the devices need not wait for this thread.
        previous, self._previous = self._previous, result
        if previous is None or not previous[-1] > 0:
            return None
        return handler.received or signal.SIGTERM
