"""What a backend computes: the loss, its gradient, and products of the three matrices with vectors."""

import abc
from typing import Any, Literal

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.curvature._batches import length
from idmatters_tf.curvature._objective import Objective

Kind = Literal["hessian", "gauss_newton", "fisher"]
Array = NDArray[np.floating[Any]]


class Products(abc.ABC):
    """Sums over the data of what is derived from an `Objective`. One sub-class for each backend.

    Attributes:
        objective: the function.
        replicas: number of devices that share each batch.
    """

    replicas = 1

    def __init__(self, objective: Objective):
        self.objective = objective
        self._scales: tuple[NDArray[np.float64], int] | None = None

    def scales(self) -> tuple[NDArray[np.float64], int]:
        """(factors of the loss' terms, number of examples); from a pass through the data the first time."""
        terms = self.objective.loss.terms
        # The variables may have changed since the last time, and with them the outputs.
        if self._scales is None or any(term.counts_by_outputs for term in terms):
            counts, sizes = np.zeros((len(terms), 3)), []
            for batch in self.objective.batches:
                counts += self.counts(batch)
                sizes.append(length(batch))
            if len(sizes) > 1 and any(term.joins_examples for term in terms):
                raise ValueError(
                    f"The loss {self.objective.loss!r} joins the examples of a batch, so that each way to cut the data "
                    f"gives another one. Received: data in {len(sizes)} batches. Pass them as one: "
                    f"batch_size={sum(sizes)}."
                )
            self._scales = (np.array(self.objective.loss.factors(counts.tolist())), sum(sizes))
        return self._scales

    @abc.abstractmethod
    def counts(self, batch: Any) -> NDArray[np.float64]:
        """`Objective.counts` of a batch."""

    @abc.abstractmethod
    def outputs(self, batch: Any) -> Any:
        """The model's outputs for a batch; for a loss(model, batch), its value."""

    @abc.abstractmethod
    def loss(self) -> float:
        """The loss on all the data."""

    @abc.abstractmethod
    def loss_and_gradient(self, draw: int = 0, offset: Array | None = None, batch: Any = None) -> tuple[float, Array]:
        """The loss and its gradient, (P,).

        Args:
            draw: which random numbers the model's generators give.
            offset: a vector to add to the variables' values, (P,).
            batch: one batch to look at in place of all the data.
        """

    @abc.abstractmethod
    def product(self, kind: Kind, vectors: Array) -> Array:
        """The products of a matrix with vectors, (k, P) -> (k, P), in one pass through the data."""


def products_for(objective: Objective) -> Products:
    """The products on Keras' current backend.

    Raises:
        ValueError: for a backend other than TensorFlow and JAX.
    """
    if backend_of("Curvature needs") == "jax":
        from idmatters_tf.curvature._jax_products import JaxProducts

        return JaxProducts(objective)
    from idmatters_tf.curvature._tensorflow_products import TensorFlowProducts

    return TensorFlowProducts(objective)


def backend_of(needs: str) -> str:
    """Keras' current backend, "tensorflow" or "jax".

    Args:
        needs: how the message begins: what cannot do without one of the two.

    Raises:
        ValueError: for another backend.
    """
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax"):
        raise ValueError(f"{needs} Keras' TensorFlow or JAX backend. Received: {backend!r}. Set KERAS_BACKEND.")
    return backend


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
