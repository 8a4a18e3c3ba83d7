"""Optimizers and learning rate schedules of the recipes."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from idmatters_tf._keras_internals import GradientObserver, optimized_variables
from idmatters_tf._keras_types import Tensor
from idmatters_tf.optimizers import Momentum, Muon
from trainers.training.settings import Recipe

LOOKAHEAD_STEPS = 5
"""Number of steps between two moves of the weights to their running averages, as in the airbench94 recipe."""
MOMENTUM = 0.9
LOOKAHEAD = 0.95
# By schedule: factor on the learning rate at each drop or decay (section 4.2 of Hardt & Ma), or at the last step.
FACTORS = {"drops": 0.1, "decay": 0.94, "linear": 0.0, "airbench": 0.07}
DECAY_EPOCHS = 2


def make_optimizer(recipe: Recipe, drop_steps: Sequence[int] = ()) -> "RecipeMomentum | RecipeMuon":
    """Return the optimizer of a recipe, whose rate drops or decays at `drop_steps`."""
    rate = RecipeSchedule(recipe.schedule, recipe.learning_rate, recipe.steps, recipe.warm_up_steps, drop_steps)
    lookahead = LOOKAHEAD if recipe.schedule == "airbench" else 0.0
    shared = {"momentum": MOMENTUM, "global_clipnorm": recipe.clip_norm, "lookahead": lookahead, "steps": recipe.steps}
    if recipe.optimizer in ("momentum", "nesterov"):
        return RecipeMomentum(rate, nesterov=recipe.optimizer == "nesterov", **shared)
    norm = "keep" if recipe.optimizer == "muon" else "free"
    if norm == "free" and recipe.weight_decay:
        shared["weight_decay"] = recipe.weight_decay
    return RecipeMuon(rate, nesterov=True, norm=norm, other_rate=recipe.other_rate, **shared)


def find_drop_steps(recipe: Recipe, images: int) -> tuple[int, ...]:
    """Return the steps at which the learning rate drops: the first updates with a lower rate, in ascending order.

    With `--schedule decay`, they are the first steps after each multiple of `DECAY_EPOCHS` epochs.
    """
    if recipe.depends_on_steps:
        return ()
    if recipe.schedule == "drops":
        return recipe.drop_steps
    every = DECAY_EPOCHS * images / recipe.batch_size
    return tuple(math.ceil(number * every - 1e-9) for number in range(1, math.ceil(recipe.steps / every)))


class RecipeSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of a recipe as a function of the step.

    With "linear" and "airbench", the rate increases linearly to its peak and then decreases linearly to a fraction of
    it (Smith & Topin, arXiv 1708.07120, with linear segments and without the last phase). With "drops" and "decay" it
    is multiplied by a factor at each of `drop_steps`, after a warm-up at a tenth of the rate.

    Args:
        kind: key of `FACTORS`.
        rate: peak of the rate.
        steps: number of steps of the run.
        warm_up_steps: number of steps of the increase, or of the warm-up.
        drop_steps: first steps with a lower rate.
    """

    def __init__(self, kind: str, rate: float, steps: int, warm_up_steps: int = 0, drop_steps: Sequence[int] = ()):
        self.kind, self.rate, self.steps = kind, rate, steps
        self.warm_up_steps, self.drop_steps = warm_up_steps, drop_steps

    def __call__(self, step: Tensor) -> Tensor:
        factor = FACTORS[self.kind]
        step = ops.cast(step, "float32")
        if self.kind in ("linear", "airbench"):
            rising = (step + 1) / (self.warm_up_steps + 1)
            falling = factor + (1 - factor) * ((self.steps - step) / (self.steps - self.warm_up_steps))
            fraction: Tensor = ops.minimum(rising, falling)
            return self.rate * fraction
        drops = ops.zeros((), "float32")
        for drop in self.drop_steps:
            drops = drops + ops.cast(step >= drop, "float32")
        power: Tensor = ops.power(factor, drops)
        rate = self.rate * power
        return ops.where(step < self.warm_up_steps, self.rate / 10, rate) if self.warm_up_steps else rate

    def get_config(self) -> dict[str, object]:
        # A run whose rates do not depend on the number of steps may be extended.
        names = ("kind", "rate", "warm_up_steps", *(["steps"] if self.kind in ("linear", "airbench") else []))
        return {name: getattr(self, name) for name in names}


class _Recipe(GradientObserver):
    """Part of an optimizer that sums the norms of the gradients, and moves weights to their running averages.

    The average moves to `d * average + (1 - d) * weights` every `LOOKAHEAD_STEPS` steps, with
    `d = lookahead^5 (step / steps)^3`, and the weights are set to the average. After the last step they are the average
    itself. The average therefore has little effect at first and smooths the end of the training. Without `lookahead`,
    there is no average.

    Attributes:
        norms: sum of the norms of the gradients of all steps, before clipping.

    References:
        - Zhang et al., *Lookahead optimizer* (2019).
        - Jordan, *94% on CIFAR-10 in 3.29 seconds* (arXiv 2404.00498), section 3.4, for the decay.
    """

    def __init__(self, schedule: "RecipeSchedule", lookahead: float = 0.0, steps: int = 1, **kwargs: Any):
        super().__init__(learning_rate=schedule, **kwargs)
        self.schedule, self.lookahead, self.steps = schedule, lookahead, steps

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.norms = self.add_variable((), dtype="float32", name="norms")
        if self.lookahead:
            self._averages = [self.add_variable_from_reference(each, "average") for each in variables]

    def observe_gradients(self, gradients: Sequence[Tensor]) -> None:
        self.assign_add(self.norms, _compute_norm([ops.cast(gradient, "float32") for gradient in gradients]))

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        super().apply(grads, trainable_variables)
        if self.lookahead:
            self._look_ahead()

    def _look_ahead(self) -> None:
        done: Tensor = self.iterations
        is_last = done == self.steps
        is_due = (done % LOOKAHEAD_STEPS == 0) | is_last
        count: Tensor = ops.cast(done, "float32")
        decay: Tensor = self.lookahead**LOOKAHEAD_STEPS * (count / self.steps) ** 3
        # The first average is the weights.
        decay = ops.where(done > LOOKAHEAD_STEPS, decay, 0.0)
        # A last step off the regular schedule keeps the average.
        decay = ops.where(is_last & (done % LOOKAHEAD_STEPS != 0) & (done > LOOKAHEAD_STEPS), 1.0, decay)
        for variable, average in zip(optimized_variables(self), self._averages, strict=True):
            moved = decay * average.value + (1 - decay) * variable.value
            self.assign(average, ops.where(is_due, moved, average.value))
            self.assign(variable, ops.where(is_due, moved, variable.value))


def _compute_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # In one pass over each gradient, without its square in memory. Clipping computes the same norm once.
        return tf.linalg.global_norm(gradients)
    squares: list[Tensor] = [ops.sum(ops.square(gradient)) for gradient in gradients]
    return ops.sqrt(sum(squares))


class RecipeMomentum(_Recipe, Momentum):
    """Momentum with the options of a recipe."""


class RecipeMuon(_Recipe, Muon):
    """Muon with the options of a recipe."""
