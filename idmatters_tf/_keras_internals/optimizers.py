"""Points within the update of an optimizer for which Keras has private methods only."""

from collections.abc import Sequence

import keras

from idmatters_tf._keras_types import Tensor


class GradientObserver(keras.optimizers.Optimizer):
    """Part of an optimizer with a method that receives the gradients of each update."""

    def observe_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Receive the gradients of all variables, summed over replicas and accumulated, before they are clipped."""

    def _clip_gradients(self, grads: Sequence[Tensor]) -> Sequence[Tensor]:
        self.observe_gradients(grads)
        return super()._clip_gradients(grads)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer inside of one that scales the loss, and others as they are."""
    return getattr(optimizer, "inner_optimizer", None) or optimizer


def variable_index(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> int:
    """Return the index of a variable among those that an optimizer was built for, also of a replica's own variable."""
    return optimizer._get_variable_index(variable)
