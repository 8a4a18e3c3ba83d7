"""Loss on the data, its gradient, and products of the two matrices with vectors."""

from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf._keras_types import Tensor
from idmatters_tf.autodiff import current_backend
from idmatters_tf.curvature._batch_functions import BatchFunctions
from idmatters_tf.curvature._batches import length
from idmatters_tf.curvature._objective import Objective

Kind = Literal["hessian", "gauss_newton"]
Array = NDArray[np.floating[Any]]


class Products:
    """Loss, gradient and matrix-vector products of an `Objective`, summed over the data.

    Attributes:
        objective: the objective.
    """

    def __init__(self, objective: Objective):
        self.objective = objective
        self._backend = current_backend()
        self._functions = BatchFunctions(objective, self._backend)
        self._compiler = self._backend.Compiler(objective.arguments)
        self._scales: tuple[NDArray[np.float64], int] | None = None
        # The last batch and its tensors, to convert the arrays of a single batch only once.
        self._last: tuple[Any, Any] = (None, None)
        # False after the backend has failed to vectorize the model, e.g. TensorFlow for RNNs that are not unrolled.
        self._vectorizes = True

    def scales(self) -> tuple[NDArray[np.float64], int]:
        """Return (factors of the loss terms, number of examples). The first call passes through the data."""
        loss, terms = self.objective.loss, self.objective.loss.terms
        coupling = self.objective.coupling
        # The outputs may have changed with the variables.
        if self._scales is None or any(term.couples_examples for term in terms):
            divisors, sizes = np.zeros(len(terms)), []
            for batch in self.objective.batches:
                divisors += self._divisors(batch)
                sizes.append(length(batch))
            if len(sizes) > 1 and coupling:
                raise ValueError(
                    f"{coupling} couples the examples of a batch and requires a single batch. Received: data in "
                    f"{len(sizes)} batches. Pass batch_size={sum(sizes)}."
                )
            self._scales = (np.array(loss.factors(divisors.tolist())), sum(sizes))
        return self._scales

    def outputs(self, batch: Any) -> Any:
        """Return the model's outputs for a batch, or the value of a loss(model, batch)."""
        return self._forward(self._backend.tensors(batch))

    def loss(self) -> float:
        """Return the loss on all data."""
        return float(self._sum(self.objective.value))

    def loss_and_gradient(self, draw: int = 0) -> tuple[float, Array]:
        """Return the loss and its gradient, (P,).

        Args:
            draw: offset of the seeds of the model's random generators.
        """
        # A tensor, so that all calls share one trace.
        number = self._backend.tensors(np.asarray(draw, np.int32))
        value, gradient = self._sum(self._functions.loss_and_gradient, number)
        return float(value), np.asarray(gradient)

    def product(self, kind: Kind, vectors: Array) -> Array:
        """Return the products of a matrix with vectors, (k, P) -> (k, P), in one pass through the data."""
        method = getattr(self._functions, kind)
        vectors = np.asarray(vectors, self.objective.dtype)
        if self._vectorizes and len(vectors) >= self._backend.FEWEST_VECTORS:
            try:
                return np.asarray(self._sum(method, self._backend.tensors(vectors)))
            except self._backend.VECTORIZATION_ERRORS:
                # If single products also fail, they raise the error.
                self._vectorizes = False
        products = np.empty(vectors.shape, self.objective.dtype)
        for vector, product in zip(vectors, products, strict=True):
            parts = self._sum(method, self._backend.tensors(vector))
            # Concatenated with NumPy, to copy each part only once.
            np.concatenate([np.ravel(np.asarray(part)) for part in parts], out=product)
        return products

    # Passes through the data.

    def _forward(self, batch: Any) -> Any:
        return self.objective.forward([variable.value for variable in self.objective.arguments], batch)[0]

    def _divisors(self, batch: Any) -> NDArray[np.float64]:
        batch = self._backend.tensors(batch)
        return np.asarray(ops.convert_to_numpy(self.objective.divisors(batch, self._forward(batch))), np.float64)

    def _sum(self, method: Callable[..., Any], *arguments: Tensor) -> Any:
        """Return the sum over the batches of a compiled function."""
        factors, examples = self.scales()
        sums = None
        for batch in self.objective.batches:
            if self._last[0] is not batch or not self.objective.batches.kept:
                self._last = batch, self._backend.tensors(batch)
            scales = np.array([*factors, length(batch) / examples], self.objective.dtype)
            result = self._compiler(method, self._last[1], self._backend.tensors(scales), *arguments)
            sums = result if sums is None else keras.tree.map_structure(lambda a, b: a + b, sums, result)
        return sums
