"""The learning rate as a function of the step."""

import dataclasses
import math

import tensorflow as tf

from trainers.cli.arguments import UsageError
from trainers.training.settings import Recipe

# Each one is a number in the graph of the training step.
MOST_DECAYS = 10_000


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A rate that drops by a factor at given steps, after an optional warm-up at a constant rate.

    Attributes:
        learning_rate: the rate before the first drop.
        drop_steps: the first updates with a lower rate, ascending.
        drop_factor: by which the rate is divided at each of them.
        warm_up_steps, warm_up_rate: the number of updates at the beginning that have a rate of their own, and that
            rate.
    """

    learning_rate: float
    drop_steps: tuple[int, ...] = ()
    drop_factor: float = 10.0
    warm_up_steps: int = 0
    warm_up_rate: float = 0.0

    def rate(self, step: int | tf.Tensor | tf.Variable) -> tf.Tensor:
        """The learning rate of the update that follows `step` updates, a float32 tensor."""
        step = tf.cast(step, tf.int64)
        drops = tf.reduce_sum(tf.cast(step >= tf.constant(self.drop_steps, tf.int64), tf.float32))
        rate = self.learning_rate * tf.pow(1.0 / self.drop_factor, drops)
        return tf.where(step < self.warm_up_steps, self.warm_up_rate, rate) if self.warm_up_steps else rate


@dataclasses.dataclass(frozen=True)
class LinearSchedule:
    """A rate that rises in equal steps to its peak and falls in equal steps to its end, one cycle of a training.

    Source: Smith & Topin, *Super-convergence* (arXiv 1708.07120), with straight lines and without the last phase.

    Attributes:
        learning_rate: the peak.
        steps: number of updates of the training; the one that would follow them has the final rate.
        warm_up_steps: number of updates up to the first one at the peak.
        final_rate: the final rate as a fraction of the peak.
    """

    learning_rate: float
    steps: int
    warm_up_steps: int = 0
    final_rate: float = 0.0

    @property
    def drop_steps(self) -> tuple[int, ...]:
        """None: nothing drops."""
        return ()

    def rate(self, step: int | tf.Tensor | tf.Variable) -> tf.Tensor:
        """The learning rate of the update that follows `step` updates, a float32 tensor."""
        step = tf.cast(tf.cast(step, tf.int64), tf.float32)
        rising = (step + 1) / (self.warm_up_steps + 1)
        falling = (self.steps - step) / (self.steps - self.warm_up_steps)
        if self.final_rate:
            falling = self.final_rate + (1 - self.final_rate) * falling
        return self.learning_rate * tf.minimum(rising, falling)


def schedule_of(recipe: Recipe, images: int) -> Schedule | LinearSchedule:
    """The learning rate that a recipe's settings name.

    Args:
        recipe: the settings.
        images: how many there are to train on.

    Raises:
        UsageError: the rate decays too often.
    """
    if recipe.schedule == "linear":
        return LinearSchedule(recipe.learning_rate, recipe.steps, recipe.warm_up_steps, recipe.final_rate)
    drops, factor = recipe.drop_steps, recipe.drop_factor
    if recipe.schedule == "decay":
        if recipe.steps * recipe.batch_size > MOST_DECAYS * recipe.decay_epochs * images:
            raise UsageError(
                f"--decay-epochs must be larger: the learning rate would decay more than {MOST_DECAYS:,} times in "
                f"{recipe.steps:,} steps. Received: {recipe.decay_epochs}"
            )
        drops = decay_steps(recipe.steps, images, recipe.batch_size, recipe.decay_epochs)
        factor = 1 / recipe.decay_factor
    return Schedule(recipe.learning_rate, drops, factor, recipe.warm_up_steps, recipe.warm_up_rate)


def decay_steps(steps: int, images: int, batch_size: int, epochs: float) -> tuple[int, ...]:
    """The steps at which the rate decays: the first ones that have seen each multiple of `epochs` epochs."""
    every = epochs * images / batch_size
    return tuple(math.ceil(number * every - 1e-9) for number in range(1, math.ceil(steps / every)))
