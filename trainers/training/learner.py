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

from idmatters_tf._keras_internals import seed_states, weight_averages
from idmatters_tf.data.augment import standardize
from idmatters_tf.optimizers import Muon
from trainers.cli.arguments import UsageError
from trainers.training.settings import Recipe

LOOKAHEAD_STEPS = 5
"""Number of steps between two moves of the weights to their running averages, as in the airbench94 recipe."""
# With fewer classes the top-5 error is not informative.
TOP5_CLASSES = 50

Step = int | tf.Tensor | tf.Variable
# Learning rate of the update that follows `step` updates, a float32 scalar.
Schedule = Callable[[Step], tf.Tensor]


class Learner:
    """Network and optimizer trained by `SynchronousTrainer` and `AsynchronousTrainer`.

    Args:
        strategy: a `tf.distribute.Strategy`.
        build_model: returns the network, a `keras.Model` from standardized images to logits.
        make_optimizer: returns a Keras optimizer of the SGD family, with `use_ema` if the recipe has lookahead.
            `set_rate` assigns the current learning rate to it, and everything else reads the rate there.
        schedule: learning rate as a function of the step.
        recipe: other settings of an update. The batch size is that of the global batch. Clipping bounds the gradient of
            all replicas. With label smoothing, the reported cross-entropy is that of the original labels.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        build_model: Callable[[], keras.Model],
        make_optimizer: Callable[[], keras.optimizers.Optimizer],
        schedule: Schedule,
        recipe: Recipe,
    ):
        self.strategy, self.schedule, self.recipe = strategy, schedule, recipe
        with strategy.scope():
            self.model = build_model()
            self.optimizer = make_optimizer()
            # Inside the scope: slot variables created while tracing break under several replicas.
            self.optimizer.build(self.model.trainable_variables)
            self._first_rate = float(np.array(self.optimizer.learning_rate))
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

    def set_rate(self) -> None:
        """Assign the schedule's rate at the current step to the optimizer."""
        self.optimizer.learning_rate = self.schedule(self.step)

    @property
    def rate(self) -> tf.Tensor:
        """Current learning rate of the optimizer, a float32 scalar."""
        return tf.convert_to_tensor(self.optimizer.learning_rate)

    @contextlib.contextmanager
    def first_rate(self) -> Iterator[None]:
        """Reset the optimizer's rate to its initial value inside the block, for a checkpoint.

        The rate is a function of the step. The checksums of recorded runs include the optimizer's variable with its
        initial value.
        """
        current = float(np.array(self.optimizer.learning_rate))
        self.optimizer.learning_rate = self._first_rate
        try:
            yield
        finally:
            self.optimizer.learning_rate = current

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

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Clip the gradient and update the weights. Returns the norm of the gradient before clipping."""
        norm = tf.linalg.global_norm(gradients)
        if self.recipe.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.recipe.clip_norm, use_norm=norm)
        weights, rate = [variable.value for variable in self.model.trainable_variables], self.rate
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
        if self.recipe.lookahead:
            self._look_ahead()
        return norm

    def _look_ahead(self):
        """Move the weights to their running averages every `LOOKAHEAD_STEPS` steps.

        The average moves to `d * average + (1 - d) * weights` with `d = lookahead^5 (step / steps)^3`, and the weights
        are set to the average. After the last step they are the average itself. The average therefore has little effect
        at first and smooths the end of the training.

        References:
            - Zhang et al., *Lookahead optimizer* (2019).
            - Jordan, *94% on CIFAR-10 in 3.29 seconds* (arXiv 2404.00498), section 3.4, for the decay.
        """
        done: Any = tf.cast(self.step, tf.int64) + 1
        steps = self.recipe.steps
        is_last = done == steps
        is_due = (done % LOOKAHEAD_STEPS == 0) | is_last
        share = tf.cast(done, tf.float32) / steps
        decay = self.recipe.lookahead**LOOKAHEAD_STEPS * share**3
        # The first average is the weights.
        decay = tf.where(done > LOOKAHEAD_STEPS, decay, 0.0)
        # A last step off the regular schedule keeps the average.
        decay = tf.where(is_last & (done % LOOKAHEAD_STEPS != 0) & (done > LOOKAHEAD_STEPS), 1.0, decay)
        for variable, average in zip(self.model.trainable_variables, weight_averages(self.optimizer), strict=True):
            moved = decay * average.value + (1 - decay) * variable.value
            self.optimizer.assign(average, tf.where(is_due, moved, average.value))
            self.optimizer.assign(variable, tf.where(is_due, moved, variable.value))

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


def accept_any_size(model: keras.Model) -> keras.Model:
    """Return a model with the same layers and weights for images of any size.

    Args:
        model: functional model of one input, `(rows, cols, channels)`.

    Raises:
        UsageError: the layers require a fixed image size.
    """
    channels = model.input_shape[-1]
    try:
        any_size = keras.Input((None, None, channels), dtype=model.inputs[0].dtype, name="images")
        return keras.models.clone_model(model, input_tensors=any_size, clone_function=lambda layer: layer)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--train-sizes needs a network for images of any size, not {model.name}.") from error


def resize(images: tf.Tensor, size: int) -> tf.Tensor:
    """Scale standardized images and standardize them again: scaling reduces the variance of the pixels.

    Args:
        images: float32, `(batch, rows, cols, channels)`.
        size: rows and columns of the result.

    Returns:
        float32, `(batch, size, size, channels)`, each image of mean 0 and variance 1; an image of one color is zero.
    """
    return standardize(tf.image.resize(images, (size, size), antialias=True))
