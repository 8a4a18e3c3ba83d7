"""Optimizers that record the norms of the gradients, and move weights to their running averages (lookahead)."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from idmatters_tf._keras_internals import GradientObserver, optimized_variables
from idmatters_tf._keras_types import Tensor
from idmatters_tf.optimizers import Momentum, Muon

LOOKAHEAD_STEPS = 5
"""Number of steps between two moves of the weights to their running averages, as in the airbench94 recipe."""


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

    def __init__(self, *, lookahead: float = 0.0, steps: int = 1, **kwargs: Any):
        super().__init__(**kwargs)
        self.lookahead, self.steps = lookahead, steps

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
