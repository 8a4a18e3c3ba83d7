"""Loss, gradient and matrix-vector products of one batch, as functions of the variables' values."""

from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._keras_internals import get_mask, set_mask
from idmatters_tf._keras_types import Tensor
from idmatters_tf.autodiff import Backend, LinearMap
from idmatters_tf.curvature._objective import Objective


class BatchFunctions:
    """Functions to be compiled, whose sums over the batches are the values for all data.

    All methods take the values of the objective's arguments, a batch, and the scales: one factor for the sum of each
    loss term and a last one for the penalties. `vectors` is one vector (P,), with
    a list of tensors like the variables as the product, or k vectors (k, P).
    """

    def __init__(self, objective: Objective, backend: Backend):
        self._objective, self._backend = objective, backend

    def loss_and_gradient(
        self, values: Sequence[Tensor], batch: Any, scales: Tensor, draw: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return `Objective.value` and its gradient, (P,). `Products.loss_and_gradient` describes the arguments."""
        theta, others = self._separate(values)
        value, gradient = self._backend.gradient(
            lambda theta: self._objective.value([*theta, *others], batch, scales, draw), theta
        )
        return value, self._objective.flatten(gradient)

    def hessian(self, values: Sequence[Tensor], batch: Any, scales: Tensor, vectors: Tensor) -> Any:
        """Return products of the Hessian with vectors."""
        theta, others = self._separate(values)
        product = self._backend.hessian_product(
            lambda theta: self._objective.value([*theta, *others], batch, scales), theta
        )
        return self._mapped(product, vectors)

    def gauss_newton(self, values: Sequence[Tensor], batch: Any, scales: Tensor, vectors: Tensor) -> Any:
        """Return products of the Gauss-Newton matrix with vectors, J^T H J and the Hessian of the penalties."""
        theta, others = self._separate(values)
        # Structure of the outputs, indices of those of floating-point dtypes, and presence of penalties, set by the
        # first call.
        traced: dict[str, Any] = {}

        def outputs_at(theta: list[Tensor]) -> tuple[list[Tensor], Any]:
            traced["structure"], penalties = self._objective.forward([*theta, *others], batch)
            traced["penalized"] = penalties is not None
            outputs = keras.tree.flatten(traced["structure"])
            traced["floats"] = [place for place, output in enumerate(outputs) if _is_float(output)]
            return [outputs[place] for place in traced["floats"]], (outputs, [get_mask(output) for output in outputs])

        def loss_at(floats: list[Tensor]) -> Tensor:
            outputs: list[Any] = list(values_at)
            for place, output in zip(traced["floats"], floats, strict=True):
                # Masks are attached to the tensors that the model returned, not to these replacements.
                set_mask(output, masks[place])
                outputs[place] = output
            return self._objective.data_loss(
                batch, keras.tree.pack_sequence_as(traced["structure"], outputs), scales[:-1]
            )

        def penalty_at(theta: list[Tensor]) -> Tensor:
            return self._objective.forward([*theta, *others], batch)[1] * scales[-1]

        floats, (values_at, masks), jvp, vjp = self._backend.linearize(outputs_at, theta)
        curved = self._backend.hessian_product(loss_at, floats)
        added = self._backend.hessian_product(penalty_at, theta) if traced["penalized"] else None

        def product(vector: list[Tensor]) -> list[Tensor]:
            transposed = vjp(curved(jvp(vector)))
            if added is None:
                return transposed
            return [part + other for part, other in zip(transposed, added(vector), strict=True)]

        return self._mapped(product, vectors)

    def _mapped(self, linear_map: LinearMap, vectors: Tensor) -> Any:
        """Return tensors like the variables for a vector (P,), and (k, P) for k vectors."""
        flat, split = self._objective.flatten, self._objective.split
        if len(vectors.shape) == 1:
            return linear_map(split(vectors))
        return self._backend.batched(lambda vector: flat(linear_map(split(vector))))(vectors)

    def _separate(self, values: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the values of the flat vector's variables, and those of all others."""
        count = len(self._objective.variables)
        return list(values[:count]), list(values[count:])


def _is_float(tensor: Tensor) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))
