"""Hessian, Gauss-Newton and empirical Fisher matrices of a Keras model, as SciPy operators.

All of them are exact: a product with a vector costs a few gradients, the matrix is never formed. Vectors are in the
order of the variables, each flattened by rows.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
import numpy as np
import scipy.sparse.linalg
from numpy.typing import ArrayLike

from idmatters_tf._arguments import positive_integer
from idmatters_tf._progress import Progress
from idmatters_tf.curvature._batches import check_batch
from idmatters_tf.curvature._checks import (
    DifferenceCheck,
    check_finite,
    check_reproducible,
    check_value,
    compare_with_differences,
    warn_of_difference,
)
from idmatters_tf.curvature._losses import split_batch
from idmatters_tf.curvature._memory import check_fits
from idmatters_tf.curvature._objective import Objective
from idmatters_tf.curvature._products import Array, Kind, Products

DEFAULT_CHUNK = 64


class CurvatureOperator(scipy.sparse.linalg.LinearOperator):
    """What the three operators have in common; see `HessianOperator` for the arguments."""

    # Which of the backend's products it stands for.
    kind: ClassVar[Kind]
    # Name of the matrix in error messages, where it needs the derivatives of the outputs.
    needs_outputs: ClassVar[str | None] = None

    if TYPE_CHECKING:
        # SciPy's own is annotated with the arguments of operators made from functions.
        def __new__(cls, *args: Any, **options: Any) -> Self: ...

    def __init__(
        self,
        model: keras.Model,
        loss: Any = None,
        data: Any = None,
        variables: Any = None,
        *,
        regularization: bool = True,
        training: bool = False,
        class_weight: Mapping[int, float] | None = None,
        batch_size: int = 256,
        chunk: int = DEFAULT_CHUNK,
        check: bool = True,
        progress: bool = False,
    ):
        self.chunk, self.progress = positive_integer("chunk", chunk), progress
        objective = Objective(model, loss, data, variables, regularization, training, batch_size, class_weight)
        self._objective, self._products = objective, Products(objective)
        _check_kind_of_loss(objective, self.needs_outputs)
        super().__init__(np.dtype(objective.dtype), (objective.size,) * 2)  # pyright: ignore[reportCallIssue]
        self.difference: DifferenceCheck | None = None
        batch = next(iter(objective.batches), None)
        if batch is None:
            raise ValueError("Argument `data` is empty: it gives no example. Pass at least one batch.")
        if not objective.loss.of_model:
            check_batch(model, batch)
        outputs = self._products.outputs(batch)
        if not objective.loss.of_model:
            objective.loss.build(model, split_batch(batch), outputs)
        if not check:
            check_finite(self.loss())
            return
        gradient = check_reproducible(self._products)
        check_value(self._products, batch, outputs)
        if not objective.loss.of_model:
            objective.warn_of_outputs(batch, outputs)
        self._check_products(gradient)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self._objective.model.name!r}, {self.shape[0]:,} parameters, {self.dtype}, "
            f"loss {self._objective.loss!r}>"
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables, in the order of the vectors."""
        return list(self._objective.variables)

    @property
    def layers(self) -> dict[str, slice]:
        """By layer, the slice of a vector that holds its variables."""
        return dict(self._objective.slices)

    def loss(self) -> float:
        """The loss on all the data."""
        return self._products.loss()

    def gradient(self) -> Array:
        """The gradient of the loss on all the data, (P,)."""
        return self._products.loss_and_gradient()[1]

    def to_dense(self, chunk: int | None = None) -> Array:
        """The whole matrix, (P, P), symmetric, by products with unit vectors, `chunk` of them at once.

        Raises:
            ValueError: where it would not fit into half of the machine's memory.
        """
        size = self.shape[0]
        check_fits(size, size, self.dtype, f"the dense matrix of {size:,} parameters")
        dense = np.empty(self.shape, self.dtype)
        for columns, products in self._columns(slice(0, size), chunk, f"columns of {size:,}"):
            dense[:, columns] = products
        # In place by blocks: no second matrix of this size.
        for start in range(0, size, 1024):
            rows = slice(start, start + 1024)
            mean = (dense[rows, start:] + dense[start:, rows].T) / 2
            dense[rows, start:], dense[start:, rows] = mean, mean.T
        return dense

    def blocks(self, off_diagonal: bool = False, chunk: int | None = None) -> dict[Any, Array]:
        """The blocks of the matrix by layer, dense.

        Args:
            off_diagonal: also those between different layers.
            chunk: unit vectors at once.

        Returns:
            A dict: by layer's name its diagonal block, (p, p); with `off_diagonal` by pairs of names (row, column),
            (p_row, p_column).

        Raises:
            ValueError: where they would not fit into half of the machine's memory.
        """
        layers, size = self._objective.slices, self.shape[0]
        widths = [layer.stop - layer.start for layer in layers.values()]
        entries = size if off_diagonal else max(sum(width**2 for width in widths) / size, 1)
        check_fits(size, entries, self.dtype, f"the blocks of {size:,} parameters")
        found = {}
        for name, layer in layers.items():
            rows = layers if off_diagonal else {name: layer}
            strips: dict[str, list[Array]] = {row: [] for row in rows}
            for _, products in self._columns(layer, chunk, f"columns of {name}"):
                for row, of_row in rows.items():
                    strips[row].append(products[of_row])
            for row, parts in strips.items():
                found[(row, name) if off_diagonal else name] = np.concatenate(parts, axis=1)
        return found

    def _columns(self, columns: slice, chunk: int | None, title: str) -> Iterator[tuple[slice, Array]]:
        """The matrix' columns, a chunk at a time: (slice, (P, up to chunk))."""
        chunk = self.chunk if chunk is None else positive_integer("chunk", chunk)
        with Progress(columns.stop - columns.start, title, self.progress, unit="columns") as bar:
            for start in range(columns.start, columns.stop, chunk):
                stop = min(start + chunk, columns.stop)
                # The last chunk has the size of the others, so that it needs no trace of its own.
                first = max(min(start, columns.stop - chunk), columns.start)
                units = np.zeros((stop - first, self.shape[0]), self.dtype)
                units[np.arange(stop - first), np.arange(first, stop)] = 1
                products = self._products.product(self.kind, units)[start - first :]
                bar.advance(stop - start)
                yield slice(start, stop), products.T

    def _matvec(self, vector: ArrayLike) -> Array:
        return self._products.product(self.kind, np.asarray(vector, self.dtype).reshape(1, -1))[0]

    def _matmat(self, matrix: ArrayLike) -> Array:
        vectors = np.ascontiguousarray(np.asarray(matrix).T, self.dtype)
        parts = [
            self._products.product(self.kind, vectors[start : start + self.chunk])
            for start in range(0, len(vectors), self.chunk)
        ]
        return np.concatenate(parts).T

    def _adjoint(self) -> "CurvatureOperator":
        return self

    def _check_products(self, gradient: Array) -> None:
        """Compare products with differences of the gradient, which is given at the current weights."""


class HessianOperator(CurvatureOperator):
    """The Hessian of a model's loss on a data set: the second derivatives of

        L(theta) = (1/N) sum_i loss(y_i, model(x_i; theta)) + sum(model.losses).

    It is that of all the data as if they were one batch, however they are cut into batches. A product with a vector is
    the derivative of <gradient, vector> (Pearlmutter, 1994): about 2.6 gradients, 2.3 each where four are computed at
    once. The variables' values are read at each product, so that an operator follows a model in training.

    ReLU has no second derivative at 0; there, as everywhere in automatic differentiation, it counts as 0.

    Args:
        model: a built `keras.Model`, on Keras' TensorFlow or JAX backend.
        loss: None for the loss that the model was compiled with, its weights of the outputs included, or for its
            `compute_loss` if the model overrides that; a Keras loss or its name; a dict or list of these by output, as
            in `model.compile`; a callable `loss(y, outputs)` that returns a value for each example or a scalar, the
            mean over the batch, with labels cast and aligned as in `fit`; or a callable `loss(model, batch)`, known by
            the name of its first parameter, that returns a scalar, the mean over the batch. With a Keras loss with
            reduction "sum" L is the sum over the data; "mean_with_sample_weight" divides by the weights' sum. Keras'
            masks count as in `fit`: L is then the mean over what they let through.
        data: a `tf.data.Dataset` of batches `(x, y)` or `(x, y, sample_weight)`, arrays `(x, y)`, or an iterable of
            batches that can be gone through repeatedly. Every product goes through all of it; arrays must stay as they
            are meanwhile.
        variables: variables of the model or layers (then their trainable variables); all trainable variables if None.
        regularization: whether `model.losses` is part of L.
        training: how the model is called. With True, layers that draw random numbers are refused.
        class_weight: by class, the weight of the examples with that label, as in `fit`.
        batch_size: for arrays.
        chunk: how many products are computed at once where there are several; memory grows with it.
        check: whether, when the operator is made, the loss of the first batch is compared with its value by Keras, two
            evaluations with each other, and H v along one direction with central differences of the gradient;
            `difference` then holds the result of the last, a `DifferenceCheck`, and a warning says where H v is off or
            the differences are inconclusive. It costs nine gradients.
        progress: whether a bar on standard error shows how far dense matrices and blocks are.

    Raises:
        ValueError: an unbuilt model, no variables or some that are not the model's, empty or infinite data, a loss that
            is not finite, evaluations that differ, and what else cannot be used; the message says which and what to do.

    Shape `(P, P)`, P the number of entries of the variables; dtype that of the variables. `@`, `matvec` and `matmat` as
    in SciPy. Inside the scope of a `tf.distribute.MirroredStrategy` the batches are split over its replicas.

    Example:

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)], name="line")
    >>> x, y = np.eye(2, dtype="float32"), np.zeros((2, 1), "float32")
    >>> hessian = HessianOperator(model, "mse", (x, y))  # of the mean of squares: 2 X X^T / N
    >>> hessian @ np.array([3.0, 4.0])
    array([3., 4.], dtype=float32)
    >>> hessian
    <HessianOperator of 'line', 2 parameters, float32, loss mean_squared_error>
    """

    kind = "hessian"

    def _check_products(self, gradient: Array) -> None:
        self.difference = compare_with_differences(self._products, gradient)
        warn_of_difference(self.difference)


class GaussNewtonOperator(CurvatureOperator):
    """The generalised Gauss-Newton matrix (Schraudolph, 2002), J^T H J summed as the loss is:

        G = (1/N) sum_i J_i^T [d^2 loss / d outputs^2] J_i + Hessian of sum(model.losses),

    J_i the derivative of the outputs by the variables. Positive semidefinite for a loss convex in the outputs (and
    convex penalties). For cross-entropy on logits and for squares it is the Fisher matrix of the model's own
    distribution, up to the factor of the squares.

    Args, errors and shape: as `HessianOperator`, but no loss(model, batch), which has no outputs.
    """

    kind = "gauss_newton"
    needs_outputs = "The Gauss-Newton matrix"


class FisherOperator(CurvatureOperator):
    """The empirical Fisher matrix, the second moment of the examples' gradients (without penalties):

        F = (1/N) sum_i w_i g_i g_i^T,  g_i the gradient of the loss of example i, w_i its sample weight.

    It is neither the Fisher matrix nor an approximation of the Hessian away from a good fit (Kunstner et al., 2019).
    With `training=True` layers that mix examples, such as batch normalisation, make g_i something else.

    Args, errors and shape: as `HessianOperator`, without `regularization`; the loss must give a value for each example.
    """

    kind = "fisher"
    needs_outputs = "The empirical Fisher matrix"

    def __init__(self, model: keras.Model, loss: Any = None, data: Any = None, variables: Any = None, **options: Any):
        if "regularization" in options:
            raise ValueError("Argument `regularization` has no meaning here: penalties belong to no example.")
        super().__init__(model, loss, data, variables, regularization=False, **options)


def _check_kind_of_loss(objective: Objective, needs_outputs: str | None) -> None:
    """Raise ValueError for a loss that a matrix cannot be taken of."""
    loss = objective.loss
    if needs_outputs is not None and loss.of_model:
        received = "a `compute_loss` that the model overrides" if loss.is_compute_loss else "a loss(model, batch)"
        raise ValueError(
            f"{needs_outputs} needs a loss of the outputs, loss(y, outputs). Received: {received}. Use "
            f"HessianOperator, or pass the loss as one of the outputs."
        )
    if loss.is_compute_loss and not objective.regularization:
        raise ValueError(
            "Argument `regularization` must be True where the model overrides `compute_loss`, which adds the penalties "
            "itself. Received: regularization=False. Pass `loss`."
        )
