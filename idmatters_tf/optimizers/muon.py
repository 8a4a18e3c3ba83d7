"""Muon: momentum whose steps on kernels are orthogonalized matrices.

References:
    - Jordan et al., *Muon: An optimizer for hidden layers in neural networks* (2024): the method.
    - Jordan, the airbench94_muon recipe (2024): kernels of constant norm.
    - Bernstein, *Deriving Muon* (2025), after Bernstein & Newhouse, *Old optimizer, new norm* (arXiv 2409.20325): the
      scale of free steps.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from idmatters_tf._arguments import check_choice
from idmatters_tf._keras_internals import replicas, value_outside_functions
from idmatters_tf._keras_types import Tensor
from idmatters_tf.optimizers.momentum import Momentum

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan et al. (2024): of all odd quintic polynomials that keep singular values within about 0.7 to
1.2, this one has the steepest slope at zero.
"""

Norm = Literal["keep", "free"]

_KERNEL_NAMES = ("kernel", "pointwise_kernel", "recurrent_kernel")


def orthogonalize(matrix: Tensor, iterations: int = 5, dtype: str | None = None) -> Tensor:
    """Move the singular values of a matrix towards 1 and keep its singular vectors: U S V^T becomes about U V^T.

    The matrix is divided by its Frobenius norm. Each iteration then applies s -> a s + b s^3 + c s^5 to all singular
    values s, by matrix products alone. The iteration does not converge to 1: after 5 iterations, singular values above
    0.004 of the Frobenius norm are between 0.68 and 1.21; after 3 iterations, those above 0.05.

    Only even powers of the matrix change between iterations, so the iterations are computed on the smaller of its two
    Gram matrices, and the matrix itself enters twice. For 2304 x 256 and 3 iterations this takes 0.47 of the
    multiplications of the plain form.

    Source: Jordan et al., *Muon: An optimizer for hidden layers in neural networks* (2024).

    Args:
        matrix: `(..., rows, columns)`, of any float type. Leading axes are a batch of matrices.
        iterations: a positive integer.
        dtype: type of the matrix products and of the result; by default that of the matrix. The norm is computed in
            float32 or float64.

    Returns:
        A tensor of the same shape. A matrix of zeros stays zero.
    """
    a, b, c = NEWTON_SCHULZ
    is_wide = matrix.shape[-2] < matrix.shape[-1]
    x: Any = ops.swapaxes(matrix, -1, -2) if is_wide else matrix
    # In float16 the norm of small matrices would be 0, and its inverse infinite.
    x = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    squares: Any = ops.sum(ops.square(x), axis=(-2, -1), keepdims=True)
    x = ops.cast(x * ops.rsqrt(squares + 1e-30), dtype or matrix.dtype)
    gram: Any = ops.matmul(ops.swapaxes(x, -1, -2), x)
    identity: Any = ops.eye(x.shape[-1], dtype=x.dtype)
    factor: Any = None
    for iteration in range(iterations):
        square: Any = ops.matmul(gram, gram)
        polynomial = a * identity + b * gram + c * square
        factor = polynomial if factor is None else ops.matmul(factor, polynomial)
        if iteration < iterations - 1:
            gram = ops.matmul(polynomial, ops.matmul(gram, polynomial))
    x = ops.matmul(x, factor)
    return ops.swapaxes(x, -1, -2) if is_wide else x


@keras.saving.register_keras_serializable(package="idmatters_tf")
class Muon(Momentum):
    """Orthogonalized momentum on kernels, plain momentum on all other variables.

    A kernel W is used as a matrix of `fan_in` rows and one column for each output channel:

        v = m v + g
        D = orthogonalize(g + m v)                             (v in place of g + m v without `nesterov`)

    With `norm="keep"` each kernel keeps its Frobenius norm:

        W = W - lr ||W|| / sqrt(min(rows, columns)) D
        W = W ||W before|| / ||W||

    The learning rate is then the angle, in radians, by which a kernel turns in one step. Gains that multiply the
    kernel's outputs (`layers.ScaledResidualConv2D`) take the place of batch normalization in deep networks. The
    initial norm must be the final one, as with `HeNormal`. Kernels of zeros would stay zero and raise an error.

    With `norm="free"` the norm changes with the steps:

        W = W - lr sqrt(columns / rows) D

    The largest singular value of D is about 1. So a step changes the root mean square of a kernel's outputs by at most
    about lr times that of the patches that it is applied to, for kernels of any shape. Networks that start near the
    identity, as the paper's, need this mode. Weight decay is decoupled: `weight_decay=` subtracts `lr * weight_decay *
    W` first, as in all Keras optimizers.

    Only kernels whose last axis is known to be that of the outputs are orthogonalized: those of dense layers (with
    `least_rank=2`), of ordinary convolutions and of the 1x1 convolutions of separable ones, see `select_kernels`. All
    other variables are updated as by `Momentum`, with the learning rate multiplied by `other_rate`: biases, gains,
    embeddings, the query, key and value kernels of attention, and depthwise and transposed convolutions.

    Kernels of equal shape are orthogonalized in one batched product, except in `model.fit` under a `tf.distribute`
    strategy of several replicas.

    References: see the module.

    Args:
        learning_rate: A float or a Keras schedule. Defaults to 0.1. In the paper's network with 9 blocks per stage and
            `norm="free"`, 0.036 is near the highest rate that trains.
        momentum: The factor m, in [0, 1).
        nesterov: If True, the step is Nesterov's.
        norm: `"keep"` or `"free"`.
        iterations: Number of Newton-Schulz iterations in `orthogonalize`.
        other_rate: Factor on the learning rate of all other variables.
        least_rank: Number of axes from which on a variable may count as a kernel. With 2, the kernels of dense layers
            count as well, the last layer's included.
        orthogonalize_dtype: Type of the orthogonalization, such as `"bfloat16"`.
        kwargs: See `keras.optimizers.SGD`.

    Raises:
        ValueError: For another `norm`, for `weight_decay` with `norm="keep"`, and in `build` and `model.fit` for a
            kernel of zeros with `norm="keep"`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        nesterov: bool = True,
        norm: Norm = "keep",
        iterations: int = 3,
        other_rate: float = 0.5,
        least_rank: int = 3,
        orthogonalize_dtype: str = "float32",
        name: str = "muon",
        **kwargs: Any,
    ):
        super().__init__(learning_rate, momentum=momentum, nesterov=nesterov, name=name, **kwargs)
        check_choice("norm", norm, get_args(Norm))
        if norm == "keep" and self.weight_decay is not None:
            raise ValueError(
                f"Argument `weight_decay` must be None with norm='keep', which it would undo. Received: "
                f"weight_decay={self.weight_decay}. Use norm='free'."
            )
        self.norm: Norm = norm
        self.iterations_of_orthogonalization = int(iterations)
        self.other_rate = float(other_rate)
        self.least_rank = int(least_rank)
        self.orthogonalize_dtype = orthogonalize_dtype
        self._kernel_indices: frozenset[int] = frozenset()

    def build(self, variables: Any) -> None:
        for variable in self.kernels_of_zeros(variables):
            raise ValueError(
                f"Muon with norm='keep' keeps the norm of every kernel. {variable.path!r} is zero and would never "
                f"learn. Initialize it otherwise, such as with HeNormal, or use ScaledResidualConv2D(branch_gain=0) or "
                f"norm='free'."
            )
        super().build(variables)
        self._kernel_indices = frozenset(self._get_variable_index(kernel) for kernel in self.select_kernels(variables))

    def select_kernels(self, variables: Sequence[keras.Variable]) -> list[keras.Variable]:
        """Return the variables that are orthogonalized.

        They have at least `least_rank` axes, more than one output, and the name that Keras gives to kernels. Their
        layer's name contains neither "depthwise" nor "transpose", as the default names of layers with other axes do.
        A bias of the layer must have the size of the last axis. Without a bias, kernels of three axes are not selected,
        since they may be those of attention.

        Args:
            variables: The trainable variables of a model, or of a part of it.
        """
        layers = [variable.path.rpartition("/")[0] for variable in variables]
        biases = {(layer, *v.shape) for layer, v in zip(layers, variables, strict=True) if v.name == "bias"}
        with_bias = {layer for layer, *_ in biases}

        def is_kernel(layer: str, variable: keras.Variable) -> bool:
            *_, outputs = shape = tuple(variable.shape) or (1,)
            if len(shape) < self.least_rank or outputs == 1 or variable.name not in _KERNEL_NAMES:
                return False
            layer_name = layer.rpartition("/")[2]
            if "depthwise" in layer_name or "transpose" in layer_name:
                return False
            return (layer, outputs) in biases if layer in with_bias else len(shape) != 3

        return [variable for layer, variable in zip(layers, variables, strict=True) if is_kernel(layer, variable)]

    def kernels_of_zeros(self, variables: Sequence[keras.Variable]) -> list[keras.Variable]:
        """Return the kernels that would stay zero: those whose values are all zero, with `norm="keep"`."""
        if self.norm == "free":
            return []
        return [kernel for kernel in self.select_kernels(variables) if not np.any(value_outside_functions(kernel))]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.update_steps([gradient], [variable], learning_rate)

    def update_steps(self, gradients: Sequence[Any], variables: Sequence[Any], learning_rate: Any) -> None:
        """Update all variables. Kernels of equal shape are orthogonalized in one batched product.

        Args:
            gradients: One tensor for each variable.
            variables: Variables that the optimizer was built for.
            learning_rate: A scalar.
        """
        groups: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            if self._get_variable_index(variable) in self._kernel_indices:
                key = (math.prod(variable.shape[:-1]), variable.shape[-1], variable.dtype)
                groups.setdefault(key, []).append((self.advance_velocity(gradient, variable), variable))
            else:
                rate: Any = ops.cast(learning_rate, variable.dtype)
                super().update_step(gradient, variable, self.other_rate * rate)
        for (rows, columns, _), members in groups.items():
            matrices = ops.stack([ops.reshape(step, (rows, columns)) for step, _ in members])
            directions = orthogonalize(matrices, self.iterations_of_orthogonalization, self.orthogonalize_dtype)
            for place, (_, variable) in enumerate(members):
                self._move(variable, directions[place], learning_rate)

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        # With several replicas Keras reduces the gradients and updates one variable at a time, each in its own context.
        if replicas(self) > 1:
            super()._backend_update_step(grads, trainable_variables, learning_rate)
        else:
            self.update_steps(grads, trainable_variables, learning_rate)

    def _move(self, variable: Any, direction: Any, learning_rate: Any) -> None:
        rows, columns = math.prod(variable.shape[:-1]), variable.shape[-1]
        step: Any = ops.reshape(ops.cast(direction, variable.dtype), variable.shape)
        step = step * ops.cast(learning_rate, variable.dtype)
        if self.norm == "free":
            self.assign_sub(variable, math.sqrt(columns / rows) * step)
            return
        # The value, also where Keras passes the variable itself.
        kernel: Any = ops.convert_to_tensor(variable)
        norm = _norm(kernel)
        moved = kernel - (norm / math.sqrt(min(rows, columns))) * step
        self.assign(variable, moved * (norm / ops.maximum(_norm(moved), 1e-30)))

    def get_config(self) -> dict[str, Any]:
        config = {
            "norm": self.norm,
            "iterations": self.iterations_of_orthogonalization,
            "other_rate": self.other_rate,
            "least_rank": self.least_rank,
            "orthogonalize_dtype": self.orthogonalize_dtype,
        }
        return {**super().get_config(), **config}


def _norm(tensor: Any) -> Any:
    return ops.sqrt(ops.sum(ops.square(tensor)))
