"""Learning rate schedules as functions of the step."""

import dataclasses
import math

import tensorflow as tf

from trainers.cli.arguments import UsageError
from trainers.training.settings import Recipe

# Each decay is a constant in the graph of the training step.
MOST_DECAYS = 10_000
# Factor on the rate at each decay (section 4.2 of Hardt & Ma).
DECAY_FACTOR = 0.94


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Schedule with drops by a factor at given steps, after an optional warm-up at a constant rate.

    Attributes:
        learning_rate: rate before the first drop.
        drop_steps: first updates with a lower rate, in ascending order.
        drop_factor: divisor of the rate at each drop.
        warm_up_steps: number of updates at the beginning with a tenth of the rate.
    """

    learning_rate: float
    drop_steps: tuple[int, ...] = ()
    drop_factor: float = 10.0
    warm_up_steps: int = 0

    def rate(self, step: int | tf.Tensor | tf.Variable) -> tf.Tensor:
        """Return the learning rate of the update that follows `step` updates, a float32 tensor."""
        step = tf.cast(step, tf.int64)
        drops = tf.reduce_sum(tf.cast(step >= tf.constant(self.drop_steps, tf.int64), tf.float32))
        rate = self.learning_rate * tf.pow(1.0 / self.drop_factor, drops)
        return tf.where(step < self.warm_up_steps, self.learning_rate / 10, rate) if self.warm_up_steps else rate


@dataclasses.dataclass(frozen=True)
class LinearSchedule:
    """Schedule that increases linearly to its peak and then decreases linearly to its final rate.

    Source: Smith & Topin, *Super-convergence* (arXiv 1708.07120), with linear segments and without the last phase.

    Attributes:
        learning_rate: peak rate.
        steps: number of training updates. The update after the last one would have the final rate.
        warm_up_steps: number of updates before the first one at the peak.
        final_rate: final rate as a fraction of the peak.
    """

    learning_rate: float
    steps: int
    warm_up_steps: int = 0
    final_rate: float = 0.0

    @property
    def drop_steps(self) -> tuple[int, ...]:
        """Empty: this schedule has no drops."""
        return ()

    def rate(self, step: int | tf.Tensor | tf.Variable) -> tf.Tensor:
        """Return the learning rate of the update that follows `step` updates, a float32 tensor."""
        step = tf.cast(tf.cast(step, tf.int64), tf.float32)
        rising = (step + 1) / (self.warm_up_steps + 1)
        falling = (self.steps - step) / (self.steps - self.warm_up_steps)
        if self.final_rate:
            falling = self.final_rate + (1 - self.final_rate) * falling
        return self.learning_rate * tf.minimum(rising, falling)


def build_schedule(recipe: Recipe, images: int) -> Schedule | LinearSchedule:
    """Return the learning rate schedule of a recipe.

    Args:
        recipe: settings.
        images: number of training images.

    Raises:
        UsageError: the rate decays too often.
    """
    if recipe.schedule == "linear":
        return LinearSchedule(recipe.learning_rate, recipe.steps, recipe.warm_up_steps, recipe.final_rate)
    drops, factor = recipe.drop_steps, 10.0
    if recipe.schedule == "decay":
        if recipe.steps * recipe.batch_size > MOST_DECAYS * recipe.decay_epochs * images:
            raise UsageError(
                f"--decay-epochs must be larger: the learning rate would decay more than {MOST_DECAYS:,} times in "
                f"{recipe.steps:,} steps. Received: {recipe.decay_epochs}"
            )
        drops = decay_steps(recipe.steps, images, recipe.batch_size, recipe.decay_epochs)
        factor = 1 / DECAY_FACTOR
    return Schedule(recipe.learning_rate, drops, factor, recipe.warm_up_steps)


def decay_steps(steps: int, images: int, batch_size: int, epochs: float) -> tuple[int, ...]:
    """Return the steps at which the rate decays: the first step after each multiple of `epochs` epochs."""
    every = epochs * images / batch_size
    return tuple(math.ceil(number * every - 1e-9) for number in range(1, math.ceil(steps / every)))
