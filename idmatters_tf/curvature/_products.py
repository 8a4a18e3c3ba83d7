"""The loss on the data, its gradient, and products of the three matrices with vectors."""

import itertools
from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf._keras_types import Tensor
from idmatters_tf.autodiff._backend import current_backend
from idmatters_tf.autodiff._interface import CannotVectorize
from idmatters_tf.curvature._batch_functions import BatchFunctions
from idmatters_tf.curvature._batches import length
from idmatters_tf.curvature._objective import Objective, penalty_share

Kind = Literal["hessian", "gauss_newton", "fisher"]
Array = NDArray[np.floating[Any]]


class Products:
    """Sums over the data of what is derived from an `Objective`.

    Attributes:
        objective: the function.
        replicas: number of devices that share each batch.
    """

    def __init__(self, objective: Objective):
        self.objective = objective
        self._backend = current_backend()
        self._functions = BatchFunctions(objective, self._backend)
        self._compiler = self._backend.Compiler([*objective.variables, *objective.others])
        self.replicas = self._compiler.replicas
        self._scales: tuple[NDArray[np.float64], int] | None = None
        # A batch and its tensors: arrays of one batch, as they are for small models, are converted once.
        self._last: tuple[Any, Any] = (None, None)
        # False once the backend has failed to vectorize this model, as TensorFlow does for RNNs that are not unrolled.
        self._vectorizes = True

    def scales(self) -> tuple[NDArray[np.float64], int]:
        """Return (factors of the loss's terms, number of examples), from a pass through the data the first time."""
        loss, terms = self.objective.loss, self.objective.loss.terms
        if self.replicas > 1 and any(term.joins_examples for term in terms):
            raise ValueError(
                f"The loss {loss!r} joins the examples of a batch, which would be split over {self.replicas} "
                f"replicas. Leave the strategy's scope."
            )
        if self.replicas > 1 and (loss.is_compute_loss or any(term.is_opaque for term in terms)):
            raise ValueError(
                f"The loss {loss!r} reduces by itself, and Keras divides losses by the number of replicas, here "
                f"{self.replicas}. Leave the strategy's scope."
            )
        # The variables may have changed since the last time, and with them the outputs.
        if self._scales is None or any(term.counts_by_outputs for term in terms):
            counts, sizes = np.zeros((len(terms), 3)), []
            for batch in self.objective.batches:
                counts += self._counts(batch)
                sizes.append(length(batch))
            if len(sizes) > 1 and any(term.joins_examples for term in terms):
                raise ValueError(
                    f"The loss {loss!r} joins the examples of a batch, so that each way to cut the data gives another "
                    f"one. Received: data in {len(sizes)} batches. Pass them as one: batch_size={sum(sizes)}."
                )
            self._scales = (np.array(loss.factors(counts.tolist())), sum(sizes))
        return self._scales

    def outputs(self, batch: Any) -> Any:
        """Return the model's outputs for a batch; for a loss(model, batch), its value."""
        return self._forward(self._backend.tensors(batch))

    def loss(self) -> float:
        """Return the loss on all the data."""
        return float(self._sum(self._functions.value))

    def loss_and_gradient(self, draw: int = 0, offset: Array | None = None, batch: Any = None) -> tuple[float, Array]:
        """Return the loss and its gradient, (P,).

        Args:
            draw: which random numbers the model's generators give.
            offset: a vector to add to the variables' values, (P,).
            batch: one batch to look at in place of all the data.
        """
        # Tensors, so that one trace serves all.
        offset = np.zeros(self.objective.size) if offset is None else offset
        arguments = self._backend.tensors((np.asarray(draw, np.int32), offset.astype(self.objective.dtype)))
        value, gradient = self._sum(
            self._functions.loss_and_gradient, *arguments, batches=None if batch is None else [batch]
        )
        return float(value), np.asarray(gradient)

    def product(self, kind: Kind, vectors: Array) -> Array:
        """Return the products of a matrix with vectors, (k, P) -> (k, P), in one pass through the data."""
        method = getattr(self._functions, kind)
        vectors = np.asarray(vectors, self.objective.dtype)
        if self._vectorizes and len(vectors) >= self._backend.FEWEST_VECTORS:
            try:
                with self._backend.vectorizing():
                    return np.asarray(self._sum(method, self._backend.tensors(vectors)))
            except CannotVectorize:
                # Where single products fail, too, the error is theirs.
                self._vectorizes = False
        products = np.empty(vectors.shape, self.objective.dtype)
        for vector, product in zip(vectors, products, strict=True):
            parts = self._sum(method, self._backend.tensors(vector))
            # Joined here, so that each part is copied once.
            np.concatenate([np.ravel(np.asarray(part)) for part in parts], out=product)
        return products

    # Passes through the data.

    def _forward(self, batch: Any) -> Any:
        return self.objective.forward([variable.value for variable in self.objective.variables], batch)[0]

    def _counts(self, batch: Any) -> NDArray[np.float64]:
        batch = self._backend.tensors(batch)
        return np.asarray(ops.convert_to_numpy(self.objective.counts(batch, self._forward(batch))), np.float64)

    def _sum(self, method: Callable[..., Any], *arguments: Tensor, batches: Any = None) -> Any:
        """Return the sum over the batches of a compiled function."""
        factors, examples = self.scales()
        sums = None
        for batch in self.objective.batches if batches is None else batches:
            if self._last[0] is not batch or not self.objective.batches.kept:
                self._last = batch, self._backend.tensors(batch)
            parts = []
            for part, share in _shares(self._last[1], self.replicas):
                scales = (
                    fisher_scales(self.objective, factors, examples, share)
                    if method == self._functions.fisher
                    else [*(factors * share), share * penalty_share(part, examples)]
                )
                parts.append((part, self._backend.tensors(np.array(scales, self.objective.dtype))))
            result = self._compiler(method, parts, *arguments)
            sums = result if sums is None else keras.tree.map_structure(lambda a, b: a + b, sums, result)
        return sums


def _shares(batch: Any, replicas: int) -> list[tuple[Any, float]]:
    """Return (part, factor) for each replica; parts differ in size by at most one example.

    A batch with fewer examples than replicas is given to all of them, and counts on the first alone.
    """
    if replicas == 1:
        return [(batch, 1.0)]
    size = length(batch)
    if size < replicas:
        return [(batch, float(replica == 0)) for replica in range(replicas)]
    bounds = np.linspace(0, size, replicas + 1).round().astype(int)
    return [
        (keras.tree.map_structure(lambda tensor, a=a, b=b: None if tensor is None else tensor[a:b], batch), 1.0)
        for a, b in itertools.pairwise(bounds)
    ]


def fisher_scales(objective: Objective, factors: NDArray[np.float64], examples: int, share: float = 1.0) -> list[float]:
    """The factors that make `example_losses` the examples' own, and that of the sum of g g^T.

    A loss that is a mean over N examples has g = N times the gradient of what an example contributes to it.

    Raises:
        ValueError: for outputs whose losses are reduced in different ways.
    """
    reductions = {term.reduction for term in objective.loss.terms}
    if len(reductions) > 1:
        raise ValueError(
            f"The empirical Fisher matrix takes losses of one reduction. Received: {', '.join(sorted(reductions))}"
        )
    weight = objective.loss.terms[0].weight
    divisors = {
        "mean": float(examples),
        "none": float(examples),
        "sum": 1.0,
        "mean_with_sample_weight": weight / factors[0],
    }
    scale = divisors[reductions.pop()]
    return [*(factors * scale), share / scale]
