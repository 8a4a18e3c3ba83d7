"""Momentum as TensorFlow 1 had it, which is how the papers' networks were trained."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from idmatters_tf._keras_types import Tensor


@keras.saving.register_keras_serializable(package="idmatters_tf")
class Momentum(keras.optimizers.SGD):
    """Gradient descent with momentum, the learning rate applied after the velocity: `v = m v + g; w = w - lr v`.

    Keras' SGD folds the rate into the velocity (`v = m v - lr g; w = w + v`). At a constant rate the two are the same;
    after a drop of the rate by 10, Keras' velocity still carries ten times too large a step for some 1 / (1 - m) steps,
    while here the step shrinks at once. TensorFlow 1's `MomentumOptimizer` (and PyTorch's SGD) are of this form.

    With `nesterov` the step is `g + m v` in place of v, as in both.

    Args:
        learning_rate: a float or a Keras schedule.
        momentum: the factor m, in [0, 1].
        nesterov: whether the step looks ahead.
        kwargs: as for `keras.optimizers.SGD`.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], float] = 0.05,
        momentum: float = 0.9,
        nesterov: bool = False,
        name: str = "momentum",
        **kwargs: Any,
    ):
        rate: Any = learning_rate
        super().__init__(rate, momentum=float(momentum), nesterov=nesterov, name=name, **kwargs)

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        learning_rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, ops.multiply(self.advance_velocity(gradient, variable), learning_rate))

    def advance_velocity(self, gradient: Tensor, variable: keras.Variable) -> Tensor:
        """Updates a variable's velocity; returns the step to take, without the learning rate."""
        step: Tensor = ops.cast(gradient, variable.dtype)
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            new_velocity: Tensor = ops.multiply(velocity, self.momentum)
            new_velocity = new_velocity + step
            step = step + self.momentum * new_velocity if self.nesterov else new_velocity
            self.assign(velocity, new_velocity)
        return step
