"""Momentum as in TensorFlow 1, the optimizer of the papers' networks."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, Unpack

import keras
from keras import ops

from idmatters_tf._keras_internals import dense_gradient, variable_index
from idmatters_tf._keras_types import OptimizerOptions, Tensor

LearningRate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], float]


@keras.saving.register_keras_serializable(package="idmatters_tf")
class Momentum(keras.optimizers.SGD):
    """Gradient descent with momentum and the learning rate outside the velocity: `v = m v + g; w = w - lr v`.

    In Keras' SGD the velocity contains the rate (`v = m v - lr g; w = w + v`). At a constant rate the two are equal.
    When the rate falls by a factor of 10, the steps of this optimizer shrink at once, those of Keras' SGD over about
    1 / (1 - m) steps. TensorFlow 1's `MomentumOptimizer` and PyTorch's SGD have this form.

    With `nesterov` the step is `g + m v` in place of v, as in both.

    Args:
        learning_rate: A float or a Keras schedule.
        momentum: The factor m, in [0, 1].
        nesterov: If True, the step is Nesterov's.
        name: Name of the optimizer.
        kwargs: See `keras.optimizers.SGD`.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.05,
        momentum: float = 0.9,
        nesterov: bool = False,
        name: str = "momentum",
        **kwargs: Unpack[OptimizerOptions],
    ):
        rate: Any = learning_rate
        super().__init__(rate, momentum=float(momentum), nesterov=nesterov, name=name, **kwargs)

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        # Keras clips and squares the rows of sparse gradients one by one, also if several belong to one token.
        super().apply([dense_gradient(gradient) for gradient in grads], trainable_variables)

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        learning_rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, ops.multiply(self.advance_velocity(gradient, variable), learning_rate))

    def advance_velocity(self, gradient: Tensor, variable: keras.Variable) -> Tensor:
        """Update the velocity of a variable. Return the step without the learning rate."""
        step: Tensor = ops.cast(gradient, variable.dtype)
        if self.momentum:
            velocity = self.momentums[variable_index(self, variable)]
            new_velocity: Tensor = ops.multiply(velocity, self.momentum)
            new_velocity = new_velocity + step
            step = step + self.momentum * new_velocity if self.nesterov else new_velocity
            self.assign(velocity, new_velocity)
        return step
