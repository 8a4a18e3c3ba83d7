"""Orthogonalised momentum for convolution kernels of constant norm: what trains networks without normalisation fast."""

import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf.keras_types import Tensor
from idmatters_tf.optimizers import Momentum

# Jordan et al. (2024): the quintic iteration whose slope at zero is steepest among those that keep singular values
# within about 0.7 to 1.2.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Moves the singular values of a matrix towards 1 and keeps its singular vectors: U S V^T to about U V^T.

    Each iteration applies s -> a s + b s^3 + c s^5 to all singular values s at once, in matrix products alone; before
    the first one the matrix is divided by its Frobenius norm. The iteration does not converge to 1: after 5 iterations
    singular values of more than 0.004 of the Frobenius norm lie between 0.68 and 1.21; after 3, those above 0.05.

    Source: Jordan et al., *Muon: An optimizer for hidden layers in neural networks* (2024).

    Args:
        matrix: `(rows, columns)`, any float type; computed in that type.
        iterations: a positive integer.

    Returns:
        `(rows, columns)`; zeros for a matrix of zeros.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x: Any = ops.transpose(matrix) if tall else matrix
    squares: Any = ops.sum(ops.square(ops.cast(x, "float32")))
    x *= ops.cast(ops.rsqrt(squares + 1e-14), x.dtype)
    for _ in range(iterations):
        gram: Any = ops.matmul(x, ops.transpose(x))
        fourth: Any = ops.matmul(gram, gram)
        x = a * x + ops.matmul(b * gram + c * fourth, x)
    return ops.transpose(x) if tall else x


@keras.saving.register_keras_serializable(package="idmatters_tf")
class Muon(Momentum):
    """Orthogonalised momentum on kernels, each of which keeps its norm; plain momentum on everything else.

    For a kernel W, seen as a matrix of `fan_in` rows and a column for each output channel:

        v = m v + g
        D = orthogonalize(g + m v)                      (v in place of g + m v without `nesterov`)
        W = W - lr * ||W|| / sqrt(min(rows, columns)) * D
        W = W * ||W before|| / ||W||

    so that the learning rate is the angle, in radians, by which a kernel turns in one step, whatever the size of its
    gradient, and the network's scale is that of its start: with a trained gain for each output channel
    (`layers.ResidualConv2D(..., gains=True)`) that takes the place of batch normalisation in deep networks. Norms are
    Frobenius'. Variables of fewer than `least_rank` axes (biases, gains, the last layer) descend by
    `optimizers.Momentum` with the rate multiplied by `other_rate`.

    So kernels have to start at the size they are to have, as `HeNormal`'s do: the paper's start near the identity would
    stay there, and zeros are refused.

    Source: Jordan et al., *Muon* (2024) for the orthogonalised step, and the airbench94_muon recipe of the same author
    for kernels of constant norm; the rate as an angle is this package's form.

    Args:
        learning_rate: a float or a Keras schedule, in radians a step.
        momentum: the factor m, in [0, 1).
        nesterov: whether the step looks ahead.
        iterations: of Newton and Schulz' iteration in `orthogonalize`.
        other_rate: the factor on the learning rate of all other variables.
        least_rank: how many axes a variable has to have to be taken for a kernel.
        orthogonalize_dtype: in which the iteration is computed; bfloat16 is what its authors use.
        kwargs: as for `keras.optimizers.SGD`.

    Raises:
        ValueError: by `build`, for a kernel of zeros.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        nesterov: bool = True,
        iterations: int = 3,
        other_rate: float = 0.5,
        least_rank: int = 3,
        orthogonalize_dtype: str = "float32",
        name: str = "muon",
        **kwargs: Any,
    ):
        super().__init__(learning_rate, momentum=momentum, nesterov=nesterov, name=name, **kwargs)
        self.iterations_of_orthogonalization = int(iterations)
        self.other_rate = float(other_rate)
        self.least_rank = int(least_rank)
        self.orthogonalize_dtype = orthogonalize_dtype

    def build(self, variables: Any) -> None:
        for variable in self.kernels_of_zeros(variables):
            raise ValueError(
                f"Muon keeps the norm of every kernel, and {variable.path!r} is zero: it would never learn. "
                f"Initialise it otherwise, as with HeNormal; or let a gain start at zero that multiplies it "
                f"(`layers.ScaledResidualConv2D(branch_gain=0)`)."
            )
        super().build(variables)

    def kernels_of_zeros(self, variables: Iterable[keras.Variable]) -> list[keras.Variable]:
        """Those of the variables that would stay zero; none while a function is traced, for values are not known."""
        return [variable for variable in variables if len(variable.shape) >= self.least_rank and _is_zero(variable)]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        learning_rate = ops.cast(learning_rate, variable.dtype)
        if len(variable.shape) < self.least_rank:
            super().update_step(gradient, variable, self.other_rate * learning_rate)
            return
        step = self.advance_velocity(gradient, variable)
        rows, columns = math.prod(variable.shape[:-1]), variable.shape[-1]
        matrix = ops.cast(ops.reshape(step, (rows, columns)), self.orthogonalize_dtype)
        direction = ops.cast(orthogonalize(matrix, self.iterations_of_orthogonalization), variable.dtype)
        direction = ops.reshape(direction, variable.shape)
        # The value, also where Keras hands over the variable itself.
        kernel = ops.convert_to_tensor(variable)
        norm = _norm(kernel)
        moved = kernel - learning_rate * (norm / math.sqrt(min(rows, columns))) * direction
        self.assign(variable, moved * (norm / ops.maximum(_norm(moved), 1e-30)))

    def get_config(self) -> dict[str, Any]:
        config = {
            "iterations": self.iterations_of_orthogonalization,
            "other_rate": self.other_rate,
            "least_rank": self.least_rank,
            "orthogonalize_dtype": self.orthogonalize_dtype,
        }
        return {**super().get_config(), **config}


def _norm(tensor: Any) -> Any:
    return ops.sqrt(ops.sum(ops.square(tensor)))


def _is_zero(variable: Any) -> bool:
    try:
        return not np.any(ops.convert_to_numpy(variable.value))
    except (NotImplementedError, TypeError):
        # While a function is traced values are not known.
        return False
