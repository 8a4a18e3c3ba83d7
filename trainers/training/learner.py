"""Network, optimizer and step counter, and the computations of one replica.

Every number used by an update is a function of the weights, the velocities and the step. A checkpoint contains all of
them, so that a run that is killed and resumed has the same weights as an uninterrupted run.
"""

import bisect
import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf._keras_internals import seed_states
from idmatters_tf.optimizers import Muon
from trainers.training.lookahead import Lookahead
from trainers.training.schedule import LinearSchedule, Schedule
from trainers.training.settings import Recipe
from trainers.training.sizes import accept_any_size, resize

# With fewer classes the top-5 error is not informative.
TOP5_CLASSES = 50


class Learner:
    """Network and optimizer trained by `SynchronousTrainer` and `AsynchronousTrainer`.

    Args:
        strategy: a `tf.distribute.Strategy`.
        build_model: returns the network, a `keras.Model` from standardized images to logits.
        make_optimizer: returns a Keras optimizer of the SGD family, with `use_ema` if the recipe has lookahead.
        schedule: learning rate.
        recipe: other settings of an update. The batch size is that of the global batch. Clipping bounds the gradient of
            all replicas. With label smoothing, the reported cross-entropy is that of the original labels.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        build_model: Callable[[], keras.Model],
        make_optimizer: Callable[[], keras.optimizers.Optimizer],
        schedule: Schedule | LinearSchedule,
        recipe: Recipe,
    ):
        self.strategy, self.schedule, self.recipe = strategy, schedule, recipe
        with strategy.scope():
            self.model = build_model()
            self.optimizer = make_optimizer()
            # Inside the scope: slot variables created while tracing break under several replicas.
            self.optimizer.build(self.model.trainable_variables)
            self._rate: Any = self.optimizer.learning_rate
            self._first_rate = float(np.array(self._rate))
            self._lookahead = Lookahead(recipe, self.optimizer, self.model.trainable_variables)
            self._train_model = accept_any_size(self.model) if recipe.train_sizes else self.model
            # Not weights, and not saved with them.
            self._random_states = [(int(state.numpy()[0]), state) for state in seed_states(self.model)]
            self.step = tf.Variable(
                0,  # pyright: ignore[reportArgumentType]
                dtype=tf.int64,
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                name="step",
            )

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(int(np.prod(variable.shape)) for variable in self.model.trainable_variables)

    def reseed(self) -> None:
        """Set the random states of dropout to functions of seed, step and replica, independent of earlier draws."""
        replica = tf.distribute.get_replica_context()
        number = self.step * replica.num_replicas_in_sync + tf.cast(replica.replica_id_in_sync_group, tf.int64)
        for seed, state in self._random_states:
            state.value.assign(tf.cast(tf.stack([seed, number]), state.value.dtype))

    def set_rate(self) -> tf.Tensor:
        """Assign the schedule's rate at the current step to the optimizer, and return it, a float32 scalar.

        The returned tensor is computed, not read back: asynchronous workers share the optimizer's variable, which may
        already contain another worker's rate.
        """
        rate = self.schedule.rate(self.step)
        self._rate.assign(rate)
        return rate

    @contextlib.contextmanager
    def first_rate(self) -> Iterator[None]:
        """Reset the optimizer's rate to its initial value inside the block, for a checkpoint.

        The rate is a function of the step. The checksums of recorded runs include the optimizer's variable with its
        initial value.
        """
        current = np.array(self._rate)
        self._rate.assign(self._first_rate)
        try:
            yield
        finally:
            self._rate.assign(current)

    def train_size(self, step: int) -> int | None:
        """Return the side in pixels of the training images after `step` updates; None for the full size."""
        place = bisect.bisect_right(self.recipe.size_steps, step)
        return self.recipe.train_sizes[place] if place < len(self.recipe.train_sizes) else None

    def gradients(self, images: tf.Tensor, labels: tf.Tensor, size: int | None = None) -> tuple[list[Any], tf.Tensor]:
        """Return this replica's part of the gradient and of `[cross-entropy, weight penalty, error]`."""
        replica = tf.distribute.get_replica_context()
        recipe, batch_size = self.recipe, self.recipe.batch_size
        if size is not None:
            images = resize(images, size)
        with tf.GradientTape() as tape:
            logits = self._train_model(images, training=True)
            cross_entropy = tf.reduce_sum(_cross_entropy(labels, logits)) / batch_size
            penalty = tf.add_n(self.model.losses or [tf.zeros(())]) / replica.num_replicas_in_sync
            loss = cross_entropy + penalty
            if recipe.label_smoothing:
                excess = tf.reduce_sum(_uniform_cross_entropy(logits)) / batch_size - cross_entropy
                loss += recipe.label_smoothing * excess
        gradients = tape.gradient(loss, [variable.value for variable in self.model.trainable_variables])
        error = tf.reduce_sum(_is_wrong(labels, logits)) / batch_size
        return gradients, tf.stack([cross_entropy, penalty, error])

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor) -> tf.Tensor:
        """Clip the gradient and update the weights. Returns the norm of the gradient before clipping."""
        norm = tf.linalg.global_norm(gradients)
        if self.recipe.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.recipe.clip_norm, use_norm=norm)
        weights = [variable.value for variable in self.model.trainable_variables]
        # The optimizer's updates are called directly: `optimizer.apply` would reduce the gradients a second time, and
        # its counter of iterations can lose counts if replicas are not synchronous.
        if self.optimizer.weight_decay:
            for weight in weights:
                weight.assign(weight * (1 - rate * self.optimizer.weight_decay))
        if isinstance(self.optimizer, Muon):
            self.optimizer.update_steps(gradients, weights, rate)
        else:
            for gradient, weight in zip(gradients, weights, strict=True):
                self.optimizer.update_step(gradient, weight, rate)
        self._lookahead.update(self.step)
        return norm

    def evaluation_sums(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, mirror: bool = False
    ) -> tf.Tensor:
        """Return `[cross-entropy, errors, images, top-5 errors]`, summed over this replica's images of weight 1.

        With `mirror`, the logits are averaged over each image and its mirror image.
        """
        logits = self.model(images, training=False)
        if mirror:
            logits = (logits + self.model(images[:, :, ::-1], training=False)) / 2
        return tf.stack(
            [
                tf.reduce_sum(weights * _cross_entropy(labels, logits)),
                tf.reduce_sum(weights * _is_wrong(labels, logits)),
                tf.reduce_sum(weights),
                tf.reduce_sum(weights * _is_wrong(labels, logits, top=min(5, logits.shape[-1]))),
            ]
        )

    def evaluation(self, sums: np.ndarray) -> dict[str, float]:
        """Return the means of `evaluation_sums` over all images.

        Returns:
            A dict with `loss` (mean cross-entropy), `error` (top-1, a fraction), `count` and, for at least 50 classes,
            `top5_error`.
        """
        means = {"loss": float(sums[0] / sums[2]), "error": float(sums[1] / sums[2]), "count": int(sums[2])}
        if self.model.output_shape[-1] >= TOP5_CLASSES:
            means["top5_error"] = float(sums[3] / sums[2])
        return means

    def digest(self) -> str:
        """Return a checksum of all weights and velocities: the first 16 hexadecimal digits of SHA-256."""
        sha = hashlib.sha256()
        for variable in (*self.model.variables, *self.optimizer.variables):
            sha.update(np.ascontiguousarray(variable).data)
        return sha.hexdigest()[:16]


def _cross_entropy(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))


def _uniform_cross_entropy(logits):
    """Return the cross-entropy with a uniform label."""
    return -tf.reduce_mean(tf.nn.log_softmax(tf.cast(logits, tf.float32)), axis=1)


def _is_wrong(labels, logits, top=1):
    """Return 1 where the label is not among the `top` largest logits, and 0 elsewhere.

    Of equal logits the first ones are chosen, as in the predictions of the model.
    """
    if top == 1:
        return tf.cast(tf.argmax(logits, axis=1, output_type=tf.int32) != labels, tf.float32)
    _, chosen = tf.math.top_k(logits, top)
    return tf.cast(tf.reduce_all(chosen != labels[:, None], axis=1), tf.float32)
