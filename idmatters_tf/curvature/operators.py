"""Hessian and Gauss-Newton matrices of a Keras model, as SciPy operators.

Products with vectors are exact and cost a few gradients each; the matrix is not formed. Vectors are in the order of the
variables, each flattened by rows.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from idmatters_tf._arguments import positive_integer
from idmatters_tf._evaluation.batches import length
from idmatters_tf._evaluation.losses import ModelLoss, check_single_batch
from idmatters_tf._keras_types import Data, Loss, Structure, Tensor, Variables
from idmatters_tf.curvature._objective import Objective
from idmatters_tf.spectra.operators import Array, Operator, columns

# Allowed difference of two evaluations, in units of rounding: sums over shuffled batches differ by rounding.
TOLERANCE = 300.0
# Steps of central differences of the loss, in units of the root mean square of each variable, and the allowed
# difference from the gradient, relative to its size. A wrong gradient differs at all points.
STEP, LONG_STEP, POINTS = 1e-3, 1e-2, 3
GRADIENT_TOLERANCE = 1e-2


class NotFiniteError(ValueError):
    """The loss on the data is not a finite number."""


class CurvatureOperator(Operator):
    """Base class of the operators. `HessianOperator` describes the arguments.

    Loss, gradient and products are sums of compiled functions over the batches of the data.
    """

    # Method of `Objective` that computes the products.
    kind: ClassVar[Literal["hessian", "gauss_newton"]]
    # Name of the matrix in error messages, if it requires derivatives of the outputs.
    needs_outputs: ClassVar[str | None] = None

    def __init__(
        self,
        model: keras.Model,
        loss: Loss | ModelLoss = None,
        data: Data | None = None,
        variables: Variables = None,
        *,
        regularization: bool = True,
        training: bool = False,
        batch_size: int = 256,
        chunk: int = 64,
        check: bool = True,
        progress: bool = False,
    ):
        self.chunk = positive_integer("chunk", chunk)
        self.progress = progress
        objective = Objective(model, loss, data, variables, regularization, training, batch_size)
        self._objective = objective
        self._compiler = objective.backend.Compiler(objective.arguments)
        self._scales: tuple[Array, int] | None = None
        # The last batch and its tensors, to convert the arrays of a single batch only once.
        self._last: tuple[Structure, Structure] = (None, None)
        # False after the backend has failed to vectorize the model, e.g. TensorFlow for RNNs that are not unrolled.
        self._vectorizes = True
        _check_kind_of_loss(objective, self.needs_outputs)
        super().__init__(objective.dtype, (objective.size, objective.size))
        batch = next(iter(objective.batches), None)
        if batch is None:
            raise ValueError("Argument `data` must contain at least one example. Received: empty data.")
        outputs = self._outputs(objective.backend.tensors(batch))
        if not objective.loss.takes_model:
            objective.loss.build(model, batch, outputs)
        if check:
            self._check_derivatives()
        else:
            _check_finite(self.loss())

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self._objective.model.name!r}, {self.shape[0]:,} parameters, {self.dtype}, "
            f"loss {self._objective.loss!r}>"
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """Variables in the order of the vectors."""
        return list(self._objective.variables)

    @property
    def layers(self) -> dict[str, slice]:
        """Slice of a vector for each layer, by layer name. A second layer of the same name is "name:2"."""
        return dict(self._objective.slices)

    def loss(self) -> float:
        """Compute the loss on all data."""
        return self._loss_beside(np.zeros(self.shape[0], self.dtype))

    def gradient(self) -> Array:
        """Compute the gradient of the loss on all data, (P,)."""
        return self._loss_and_gradient()[1]

    def to_dense(self) -> Array:
        """Compute the dense symmetric matrix, (P, P), by products with unit vectors."""
        size = self.shape[0]
        dense = np.empty(self.shape, self.dtype)
        for span, products in columns(self, slice(0, size), f"columns of {size:,}", self.progress):
            dense[:, span] = products
        # Symmetrized in place by blocks, without a second matrix of this size.
        for start in range(0, size, 1024):
            rows = slice(start, start + 1024)
            mean = (dense[rows, start:] + dense[start:, rows].T) / 2
            dense[rows, start:] = mean
            dense[start:, rows] = mean.T
        return dense

    def blocks(self) -> dict[str, Array]:
        """Compute the dense diagonal blocks of the matrix by layer, {layer name: (p, p)}."""
        return {
            name: np.concatenate(
                [products[layer] for _, products in columns(self, layer, f"columns of {name}", self.progress)], axis=1
            )
            for name, layer in self.layers.items()
        }

    def _matvec(self, vector: ArrayLike) -> Array:
        return self._product(np.asarray(vector, self.dtype).reshape(1, -1))[0]

    def _matmat(self, matrix: ArrayLike) -> Array:
        vectors = np.ascontiguousarray(np.asarray(matrix).T, self.dtype)
        parts = [self._product(vectors[start : start + self.chunk]) for start in range(0, len(vectors), self.chunk)]
        return np.concatenate(parts).T

    def _adjoint(self) -> "CurvatureOperator":
        return self

    def _product(self, vectors: Array) -> Array:
        """Return the products with vectors, (k, P) -> (k, P), in one pass through the data."""
        method = getattr(self._objective, self.kind)
        backend = self._objective.backend
        if self._vectorizes and len(vectors) >= backend.FEWEST_VECTORS:
            try:
                return np.asarray(self._sum(method, backend.tensors(vectors)))
            except backend.VECTORIZATION_ERRORS:
                # If single products also fail, they raise the error.
                self._vectorizes = False
        products = np.empty(vectors.shape, self.dtype)
        for vector, product in zip(vectors, products, strict=True):
            parts = self._sum(method, backend.tensors(vector))
            # Concatenated with NumPy, to copy each part only once.
            np.concatenate([np.ravel(np.asarray(part)) for part in parts], out=product)
        return products

    def _loss_beside(self, shift: Array) -> float:
        """Return the loss for shifted variables."""
        return float(self._sum(self._objective.loss_beside, self._objective.backend.tensors(shift)))

    def _loss_and_gradient(self, shift: Array | None = None, draw: int = 0) -> tuple[float, Array]:
        shift = np.zeros(self.shape[0], self.dtype) if shift is None else shift
        # Tensors, so that all calls share one trace.
        arguments = self._objective.backend.tensors((shift, np.asarray(draw, np.int32)))
        value, gradient = self._sum(self._objective.loss_and_gradient, *arguments)
        return float(value), np.asarray(gradient)

    def _sum(self, method: Callable[..., Structure], *arguments: Tensor) -> Structure:
        """Return the sum over the batches of a method of the objective."""
        factors, examples = self._compute_scales()
        batches = self._objective.batches
        backend = self._objective.backend
        sums = None
        for batch in batches:
            if self._last[0] is not batch or not batches.kept:
                self._last = batch, backend.tensors(batch)
            scales = np.array([*factors, length(batch) / examples], self.dtype)
            result = self._compiler(method, self._last[1], backend.tensors(scales), *arguments)
            sums = result if sums is None else keras.tree.map_structure(lambda a, b: a + b, sums, result)
        return sums

    def _compute_scales(self) -> tuple[Array, int]:
        """Return (factors of the loss terms, number of examples). The first call passes through the data."""
        objective = self._objective
        loss = objective.loss
        # The outputs may have changed with the variables.
        if self._scales is None or any(term.couples_examples for term in loss.terms):
            divisors = np.zeros(len(loss.terms))
            sizes: list[int] = []
            for batch in objective.batches:
                tensors = objective.backend.tensors(batch)
                divisors += np.asarray(ops.convert_to_numpy(objective.divisors(tensors, self._outputs(tensors))))
                sizes.append(length(batch))
            check_single_batch(objective.coupling, sizes)
            self._scales = (np.array(loss.factors(divisors.tolist())), sum(sizes))
        return self._scales

    def _outputs(self, batch: Structure) -> Structure:
        """Return the model's outputs for a batch of tensors, or the value of a loss of the model."""
        return self._objective.forward([variable.value for variable in self._objective.arguments], batch)[0]

    def _check_derivatives(self) -> None:
        """Raise ValueError if evaluations differ, or the gradient is not the derivative of the loss.

        The evaluations are at random points near the values of the variables, because rectified units whose biases and
        inputs are zero have kinks there.
        """
        _check_finite(self.loss())
        rng = np.random.default_rng(0)
        scales = self._objective.magnitudes()
        expected = difference = 0.0
        for number in range(POINTS):
            shift, direction = (scales * rng.standard_normal(self.shape[0], self.dtype) for _ in range(2))
            shift *= LONG_STEP
            loss, gradient = self._loss_and_gradient(shift)
            if not number:
                self._check_reproducible(loss, gradient, *self._loss_and_gradient(shift, draw=1))
            expected = float(gradient @ direction)
            difference = self._central_difference(shift, direction, STEP)
            allowed = GRADIENT_TOLERANCE * (float(np.linalg.norm(gradient * scales)) + abs(difference))
            # At a critical point, the difference consists of the rounding errors of two losses.
            allowed += float(np.finfo(self.dtype).eps) * abs(loss) / STEP
            if not abs(expected - difference) > allowed:
                return
            # Rounding errors, kinks and higher derivatives depend on the step.
            error = abs(difference - self._central_difference(shift, direction, LONG_STEP))
            if not abs(expected - difference) > allowed + 3 * error:
                return
        raise ValueError(
            f"The gradient must be the derivative of the loss, but along a random direction it gave {expected:.6g} and "
            f"a difference of losses {difference:.6g}. Remove `stop_gradient` and custom gradients, or pass "
            f"check=False to differentiate as they define."
        )

    def _central_difference(self, shift: Array, direction: Array, step: float) -> float:
        losses = [self._loss_beside(shift + self.dtype.type(sign * step) * direction) for sign in (1, -1)]
        return (losses[0] - losses[1]) / (2 * step)

    def _check_reproducible(self, loss: float, gradient: Array, second: float, other: Array) -> None:
        """Raise ValueError if two passes with different random numbers of the model differ by more than rounding."""
        tolerance = TOLERANCE * float(np.finfo(self.dtype).eps)
        tiny = float(np.finfo(self.dtype).tiny)
        # The gradient is also compared with the loss, because at a minimum it consists of rounding errors.
        size = float(np.linalg.norm(gradient)) + abs(loss) + tiny
        if (
            abs(loss - second) > tolerance * (abs(loss) + tiny)
            or float(np.linalg.norm(gradient - other)) > 10 * tolerance * size
        ):
            raise ValueError(
                f"The loss must be reproducible, but two evaluations gave {loss:.9g} and {second:.9g}. Pass data that "
                f"are the same at each pass, without augmentation and shuffling, e.g. list(data). Use training=False "
                f"for a model that draws random numbers, as in dropout."
            )


class HessianOperator(CurvatureOperator):
    """Hessian of a model's loss on a data set, as a SciPy `LinearOperator`.

    It contains the second derivatives of

        L(theta) = (1/N) sum_i loss(y_i, model(x_i; theta)) + sum(model.losses)

    for all data as one batch. The division into batches does not matter if the model treats the examples of a batch
    independently. With `training=True`, batch normalization does not. A product with a vector is the derivative of
    <gradient, vector> (Pearlmutter, 1994). It costs about 2.6 gradients, or 2.3 where four products are computed at
    once. Each product reads the current values of the variables, so that an operator follows a model in training.
    Variables outside the model, such as a factor of the loss or a teacher, are followed as well.

    The second derivative of ReLU at 0 is taken as 0, as usual in automatic differentiation.

    Args:
        model: a built `keras.Model`, on Keras' TensorFlow or JAX backend.
        loss: None for the compiled loss with its output weights, or for `compute_loss` if the model overrides it; a
            Keras loss or its name; a dict or list of these by output, as in `model.compile`; a callable
            `loss(y, outputs)` that returns a value for each example or a scalar, the mean over the batch, with labels
            cast and aligned as in `fit`; or `ModelLoss(function)` with a function of the model and a batch. With
            reduction "sum" of a Keras loss, L is the sum over the data; "mean_with_sample_weight" divides by the sum of
            the weights. Keras' masks count as in `fit`: L is the mean over unmasked entries.
        data: a `tf.data.Dataset` of batches `(x, y)` or `(x, y, sample_weight)`, arrays `(x, y)`, or an iterable of
            batches that can be iterated repeatedly. Every product uses all data. Arrays must not be changed.
        variables: variables of the model, or layers (for their trainable variables); all trainable variables if None.
        regularization: True includes `model.losses` in L.
        training: `training` argument of the model. True requires data in a single batch, and raises an error for layers
            that draw random numbers.
        batch_size: batch size for arrays.
        chunk: number of products computed at once, where there are several. Memory grows with it.
        check: True evaluates loss and gradient twice with different random numbers, and compares the gradient with a
            central difference of the loss along a random direction. It raises an error if the values differ.
        progress: True shows a progress bar for dense matrices and blocks on standard error.

    Raises:
        ValueError: if the model is not built, the variables are missing or not the model's, the data are empty or
            infinite, the loss is not finite, evaluations differ, the gradient is not the derivative of the loss, the
            loss does not fit the data, or the data are in several batches with `training=True`.

    Shape `(P, P)`, with P the number of entries of the variables, in float64 for variables of float64 and otherwise in
    float32. `@`, `matvec` and `matmat` work as in SciPy.

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


class GaussNewtonOperator(CurvatureOperator):
    """Generalized Gauss-Newton matrix (Schraudolph, 2002), as a SciPy `LinearOperator`.

        G = (1/N) sum_i J_i^T [d^2 loss / d outputs^2] J_i + Hessian of sum(model.losses),

    with J_i the derivative of the outputs with respect to the variables. It is positive semidefinite for a loss that is
    convex in the outputs (and convex penalties). For cross-entropy on logits and for squared errors it is the Fisher
    matrix of the model's distribution, up to a factor for squared errors.

    Args, errors and shape: as `HessianOperator`, without `ModelLoss`, which has no outputs.
    """

    kind = "gauss_newton"
    needs_outputs = "The Gauss-Newton matrix"


def dense_hessian(
    model: keras.Model | CurvatureOperator,
    loss: Loss | ModelLoss = None,
    data: Data | None = None,
    variables: Variables = None,
    **options: Any,
) -> Array:
    """Compute the dense Hessian of a model's loss on a data set.

    The matrix is computed by products with unit vectors, `chunk` at once. The memory beside the matrix is that of
    `chunk` Hessian-vector products on one batch.

    Args:
        model: a `keras.Model`, or an operator without further arguments.
        loss: see `HessianOperator`.
        data: see `HessianOperator`.
        variables: see `HessianOperator`.
        **options: see `HessianOperator`.

    Returns:
        Symmetric matrix (P, P) in the order of the variables, each flattened by rows.

    Raises:
        ValueError: as `HessianOperator`.
    """
    if isinstance(model, CurvatureOperator):
        if options or not (loss is data is variables is None):
            raise ValueError("Arguments `loss`, `data` and options are not allowed with an operator. Pass it alone.")
        return model.to_dense()
    return HessianOperator(model, loss, data, variables, **options).to_dense()


def _check_kind_of_loss(objective: Objective, needs_outputs: str | None) -> None:
    """Raise ValueError if the matrix is not defined for the kind of loss."""
    loss = objective.loss
    if needs_outputs is not None and loss.takes_model:
        received = "a `compute_loss` that the model overrides" if loss.is_compute_loss else "a `ModelLoss`"
        raise ValueError(
            f"{needs_outputs} requires a loss of the outputs, loss(y, outputs). Received: {received}. Use "
            f"HessianOperator, or pass a loss of the outputs."
        )
    if loss.is_compute_loss and not objective.regularization:
        raise ValueError(
            "Argument `regularization` must be True for a model that overrides `compute_loss`, which adds the "
            "penalties. Received: regularization=False. Pass `loss`."
        )


def _check_finite(loss: float) -> None:
    if not np.isfinite(loss):
        raise NotFiniteError(
            f"The loss on the data must be finite. Received: {loss}. Check for data or weights that are not finite, or "
            f"a model that has diverged."
        )
