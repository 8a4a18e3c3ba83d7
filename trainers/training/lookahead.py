"""Lookahead: the weights move to their running average every few steps."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from idmatters_tf._keras_internals import weight_averages
from trainers.training.settings import Recipe

LOOKAHEAD_STEPS = 5
"""Number of steps between two moves of the weights, as in the airbench94 recipe."""


class Lookahead:
    """Running average of the weights, in the variables that Keras' `use_ema` provides.

    Every `LOOKAHEAD_STEPS` steps the average moves to `d * average + (1 - d) * weights` with
    `d = lookahead^5 (step / steps)^3`, and the weights are set to the average. After the last step they are the
    average itself. The average therefore has little effect at first and smooths the end of the training.

    References:
        - Zhang et al., *Lookahead optimizer* (2019).
        - Jordan, *94% on CIFAR-10 in 3.29 seconds* (arXiv 2404.00498), section 3.4, for the decay.

    Args:
        recipe: The recipe. Without lookahead there is nothing to update.
        optimizer: The built optimizer, with `use_ema` if the recipe has lookahead.
        variables: The variables that the optimizer was built for.
    """

    def __init__(
        self, recipe: Recipe, optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
    ) -> None:
        self._recipe, self._optimizer = recipe, optimizer
        self._pairs = list(zip(variables, weight_averages(optimizer), strict=False))

    def update(self, step: tf.Tensor | tf.Variable) -> None:
        """Update the average after an update of the weights; `step` is the number of updates before it."""
        if not self._pairs:
            return
        done: Any = tf.cast(step, tf.int64) + 1
        steps = self._recipe.steps
        is_last = done == steps
        is_due = (done % LOOKAHEAD_STEPS == 0) | is_last
        share = tf.cast(done, tf.float32) / steps
        decay = self._recipe.lookahead**LOOKAHEAD_STEPS * share**3
        # The first average is the weights.
        decay = tf.where(done > LOOKAHEAD_STEPS, decay, 0.0)
        # A last step off the regular schedule keeps the average.
        decay = tf.where(is_last & (done % LOOKAHEAD_STEPS != 0) & (done > LOOKAHEAD_STEPS), 1.0, decay)
        for variable, average in self._pairs:
            moved = decay * average.value + (1 - decay) * variable.value
            self._optimizer.assign(average, tf.where(is_due, moved, average.value))
            self._optimizer.assign(variable, tf.where(is_due, moved, variable.value))
