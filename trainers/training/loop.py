"""One training loop, on tf.distribute's public API: the update, the evaluation, and what happens around them.

Every number that the update uses is a function of the weights, the velocities and the step, all of which a checkpoint
holds: a run that is killed and resumed goes through the same weights as one that is not.
"""

import dataclasses
import hashlib
import signal
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
from idmatters_tf.randomness import seed_states
from trainers.cli.arguments import RunError
from trainers.cluster.strategy import distribute
from trainers.run.folder import Run
from trainers.run.progress import Progress
from trainers.run.signals import SignalHandler
from trainers.training.checkpoints import Checkpoints

# With fewer classes the right one is among the first five too easily.
TOP5_CLASSES = 50


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        steps: updates in all.
        learning_rate, drop_steps, drop_factor: the rate, divided by the factor at each of the steps.
        make_optimizer: called with the rate, returns a Keras optimizer of the SGD family.
        clip_norm: bound on the global norm of the gradient over all replicas, or None.
        log_every, evaluate_every, checkpoint_every: in steps.
        keep_checkpoints: how many are kept.
        warm_up_steps, warm_up_rate: the first steps, and their rate.
    """

    steps: int
    learning_rate: float
    drop_steps: tuple
    drop_factor: float
    make_optimizer: Callable
    clip_norm: float | None
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    keep_checkpoints: int
    warm_up_steps: int = 0
    warm_up_rate: float = 0.0

    def rate(self, step):
        """The learning rate of the update that follows `step` updates, a float32 tensor."""
        step = tf.cast(step, tf.int64)
        drops = tf.reduce_sum(tf.cast(step >= tf.constant(self.drop_steps, tf.int64), tf.float32))
        rate = self.learning_rate * tf.pow(1.0 / self.drop_factor, drops)
        return tf.where(step < self.warm_up_steps, self.warm_up_rate, rate) if self.warm_up_steps else rate


class Trainer:
    """The network, its optimizer and the compiled update and evaluation.

    Args:
        strategy: a `tf.distribute.Strategy`.
        build_model: returns the network, a `keras.Model` from standardised pictures to logits.
        recipe: a `Recipe`.
        batch_size: of the global batch.
        finish: turns what the batches hold into pictures for the network, on the devices; None where they are that.
    """

    def __init__(self, strategy, build_model, recipe, batch_size, finish=None):
        self.strategy, self.recipe, self.batch_size, self.finish = strategy, recipe, batch_size, finish
        with strategy.scope():
            self.model = build_model()
            self.optimizer = recipe.make_optimizer(recipe.learning_rate)
            # Inside the scope: slot variables made while tracing break under several replicas.
            self.optimizer.build(self.model.trainable_variables)
            # Neither weights nor saved with them.
            self._random_states = [(int(state.numpy()[0]), state) for state in seed_states(self.model)]
            self.step = tf.Variable(
                0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="step"
            )

    @tf.function
    def update(self, batches, stop=()):
        """One update.

        Args:
            batches: the iterator of a distributed data set.
            stop: in a cluster, a float32 scalar, 1 where this worker has been asked to stop, else 0.

        Returns:
            float32 `[cross-entropy, weight penalty, error, gradient norm, learning rate]`, and with `stop` its sum over
            all replicas, by which all workers learn of it at the same step.
        """
        rate = self.recipe.rate(self.step)
        results = self.strategy.run(self._replica_update, args=(*next(batches), rate, stop))
        self.step.assign_add(1)
        # The same on every replica.
        return self.strategy.experimental_local_results(results)[0]

    def _replica_update(self, images, labels, rate, stop):
        replica = tf.distribute.get_replica_context()
        self._seed(replica)
        gradients, measured = self._gradients(images, labels)
        measured = tf.concat([measured, tf.reshape(stop, [-1])], 0)
        if replica.num_replicas_in_sync > 1:
            # All in one go: each exchange costs a round through the replicas, however small it is.
            *gradients, measured = replica.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, measured])
        norm = self._apply(gradients, rate)
        return tf.concat([measured[:3], [norm, rate], measured[3:]], 0)

    def _seed(self, replica):
        """Makes what dropout draws a function of its seed, the step and the replica, whatever was drawn before."""
        number = self.step * replica.num_replicas_in_sync + tf.cast(replica.replica_id_in_sync_group, tf.int64)
        for seed, state in self._random_states:
            state.value.assign(tf.cast(tf.stack([seed, number]), state.value.dtype))

    def _logits(self, images, training):
        return self.model(images if self.finish is None else self.finish(images), training=training)

    def _gradients(self, images, labels):
        """This replica's part of the gradient, and of `[cross-entropy, penalty, error]`."""
        replica = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            logits = self._logits(images, training=True)
            cross_entropy = tf.reduce_sum(_cross_entropy(labels, logits)) / self.batch_size
            penalty = tf.add_n(self.model.losses or [tf.zeros(())]) / replica.num_replicas_in_sync
            loss = cross_entropy + penalty
        gradients = tape.gradient(loss, [variable.value for variable in self.model.trainable_variables])
        error = tf.reduce_sum(_is_wrong(labels, logits)) / self.batch_size
        return gradients, tf.stack([cross_entropy, penalty, error])

    def _apply(self, gradients, rate):
        """Clips the whole gradient and updates the weights. Returns its norm."""
        norm = tf.linalg.global_norm(gradients)
        if self.recipe.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.recipe.clip_norm, use_norm=norm)
        # Each variable's update is called directly: `optimizer.apply` would reduce the gradients a second time, and
        # would count its own iterations, which can lose counts where replicas are not synchronous.
        for gradient, variable in zip(gradients, self.model.trainable_variables, strict=True):
            self.optimizer.update_step(gradient, variable.value, rate)
        return norm

    def digest(self):
        """A checksum of all weights and velocities (SHA-256, its first 16 hexadecimal digits)."""
        sha = hashlib.sha256()
        for variable in (*self.model.variables, *self.optimizer.variables):
            sha.update(np.ascontiguousarray(variable))
        return sha.hexdigest()[:16]

    @tf.function
    def _evaluate_batch(self, batches):
        sums = self.strategy.run(self._replica_evaluation, args=next(batches))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    def _replica_evaluation(self, images, labels, weights):
        logits = self._logits(images, training=False)
        return tf.stack(
            [
                tf.reduce_sum(weights * _cross_entropy(labels, logits)),
                tf.reduce_sum(weights * _is_wrong(labels, logits)),
                tf.reduce_sum(weights),
                tf.reduce_sum(weights * _is_wrong(labels, logits, top=min(5, logits.shape[-1]))),
            ]
        )

    def evaluate(self, batches, title="evaluating", progress=True):
        """Evaluates the network on every picture of an `EvaluationBatches`, once.

        Returns:
            A dict with `loss` (mean cross-entropy), `error` (top-1, a fraction) and `count`, and from 50 classes on
            with `top5_error`.
        """
        iterator = iter(distribute(self.strategy, batches.dataset))
        sums = np.zeros(4)
        bar = Progress(batches.steps, title, progress, unit="batches", leave=False)
        for _ in range(batches.steps):
            sums += self._evaluate_batch(iterator).numpy()
            bar.advance()
            bar.show(f"error {100 * sums[1] / max(sums[2], 1):.2f} %")
        bar.close()
        return self._means(sums)

    def _means(self, sums):
        means = {"loss": float(sums[0] / sums[2]), "error": float(sums[1] / sums[2]), "count": int(sums[2])}
        if self.model.output_shape[-1] >= TOP5_CLASSES:
            means["top5_error"] = float(sums[3] / sums[2])
        return means


def _cross_entropy(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))


def _is_wrong(labels, logits, top=1):
    """1 where the label is not among the `top` largest logits, else 0."""
    if top == 1:
        return tf.cast(tf.argmax(logits, axis=1, output_type=tf.int32) != labels, tf.float32)
    return 1.0 - tf.cast(tf.math.in_top_k(labels, tf.cast(logits, tf.float32), top), tf.float32)


class Session:
    """One sitting at a run: from the newest checkpoint to the end, or to a signal.

    Args:
        run: a `trainers.run.folder.Run` that has been started.
        trainer: a `Trainer`.
        train: `TrainBatches`.
        test: `EvaluationBatches`.
        events: a `trainers.run.events.Events`.
        cluster: this task's place among those that train together, see `trainers.cluster.join`.
    """

    def __init__(self, run: Run, trainer: Trainer, train: TrainBatches, test: EvaluationBatches, events, cluster):
        self.run, self.trainer, self.train, self.test, self.events = run, trainer, train, test, events
        self.cluster = cluster
        self.recipe = trainer.recipe
        self.checkpoints = Checkpoints(
            run.checkpoints_path,
            self.recipe.keep_checkpoints,
            model=trainer.model,
            optimizer=trainer.optimizer,
            step=trainer.step,
        )
        # Called after each step with the step and the seconds so far, such as `CurvatureWatch`.
        self.watches = []
        self._pending = []
        self._newest = None
        self._window_seconds = 0.0
        self._seconds_before = 0.0

    def resume(self, say):
        """Restores the newest intact checkpoint, and forgets metrics beyond it. Returns the step, 0 for a new run."""
        step = (self.checkpoints.restore(say) or 0) if self.run.writes else None
        step = self.cluster.gather("the step to go on from", step)[self.cluster.chief]
        if step and not self.run.writes:
            self.checkpoints.restore_step(step)
        records = self.run.keep_metrics_until(step)
        self._seconds_before = max((record.get("seconds", 0.0) for record in records), default=0.0)
        return step

    def work(self):
        """Trains to the end. Returns None, or the signal that stopped it after a checkpoint was saved."""
        recipe, first = self.recipe, int(self.trainer.step.numpy())
        if first >= recipe.steps:
            return None
        batches = iter(
            distribute(self.trainer.strategy, lambda share: self.train.dataset(first, recipe.steps - first, share))
        )
        self._began = time.monotonic()
        progress = Progress(recipe.steps, "training", self.run.writes, done=first)
        with SignalHandler() as stop:
            for step in range(first + 1, recipe.steps + 1):
                before = time.monotonic()
                self._pending.append(self.trainer.update(batches, *self._wish(stop)))
                self._window_seconds += time.monotonic() - before
                progress.advance()
                # Read once: a signal that comes during what follows is for the next step.
                stopped_by = self._agreed(stop)
                saves = step % recipe.checkpoint_every == 0 or step == recipe.steps or stopped_by is not None
                if step % recipe.log_every == 0 or saves:
                    self._log(step, progress)
                if step % recipe.evaluate_every == 0 or step == recipe.steps:
                    self._evaluate(step, progress)
                for watch in self.watches:
                    watch(step, self._seconds())
                if saves:
                    self._save(step)
                if stopped_by is not None:
                    break
        progress.close()
        return stopped_by if step < recipe.steps else None

    def _wish(self, stop):
        """What the update is told of a signal: nothing on one machine, else whether this worker got one."""
        return () if self.cluster.alone else (tf.constant(float(stop.received is not None)),)

    def _agreed(self, stop):
        """The signal that ends the training after this step, or None: the same on all workers of a cluster."""
        if self.cluster.alone:
            return stop.received
        # The step before is asked, whose result is there already: so the devices need not wait for this thread.
        asked, self._newest = self._newest, self._pending[-1]
        if asked is None or not asked[-1] > 0:
            return None
        return stop.received or signal.SIGTERM

    def _save(self, step):
        if not self.cluster.alone:
            self.cluster.agree(f"the weights at step {step}", self.trainer.digest())
        if self.run.writes:
            self.checkpoints.save(step)

    def _seconds(self):
        return round(self._seconds_before + time.monotonic() - self._began, 3)

    def _log(self, step, progress):
        if not self._pending:
            return
        before = time.monotonic()
        values = np.stack([tensor.numpy() for tensor in self._pending]).astype(float)
        seconds = self._window_seconds + time.monotonic() - before
        bad = ~np.isfinite(values[:, :4]).all(axis=1)
        if bad.any():
            self._diverged(step - len(values) + 1 + int(np.argmax(bad)))
        loss, penalty, error, norm = values[:, :4].mean(axis=0)
        record = {
            "loss": loss,
            "penalty": penalty,
            "error": error,
            "gradient_norm": norm,
            "learning_rate": values[-1, 4],
            "images_per_second": len(values) * self.trainer.batch_size / max(seconds, 1e-9),
        }
        self.run.record(kind="train", step=step, seconds=self._seconds(), **record)
        self.events.scalars(step, {f"train/{name}": value for name, value in record.items()})
        progress.show(f"loss {loss:.4f} error {100 * error:.1f} % {record['images_per_second']:.0f} images/s")
        self._pending, self._window_seconds = [], 0.0

    def _evaluate(self, step, progress):
        measured = self.trainer.evaluate(self.test, progress=self.run.writes)
        norms = self.events.norms(self.trainer.model)
        self.run.record(kind="test", step=step, seconds=self._seconds(), **measured, norms=norms)
        self.events.scalars(step, {f"test/{name}": value for name, value in measured.items() if name != "count"})
        self.events.write_norms(step, norms)
        progress.say(f"step {step}: test error {100 * measured['error']:.2f} %, test loss {measured['loss']:.4f}")

    def _diverged(self, step):
        clip = self.recipe.clip_norm
        advice = (
            "Start again with --clip-norm 1 or a lower --learning-rate, and another --out."
            if clip is None or clip > 1
            else "Start again with a lower --learning-rate, and another --out."
        )
        raise RunError(
            f"the loss or its gradient is no longer finite at step {step}: training has diverged. "
            f"{self.checkpoints.last_good_sentence()} {advice}"
        )
