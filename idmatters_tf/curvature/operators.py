"""Hessian, Gauss-Newton and empirical Fisher matrices of a Keras model, as SciPy operators.

All of them are exact: a product with a vector costs a few gradients, the matrix is never formed. Vectors are in the
order of the variables, each flattened by rows.
"""

import numpy as np
import scipy.sparse.linalg
import tensorflow as tf

from idmatters_tf.curvature.determinism import check_reproducible
from idmatters_tf.curvature.memory import check_fits
from idmatters_tf.curvature.objective import Objective
from idmatters_tf.progress import Bar

DEFAULT_CHUNK = 64


class CurvatureOperator(scipy.sparse.linalg.LinearOperator):
    """What the three operators have in common; see `HessianOperator` for the arguments."""

    def __init__(
        self,
        model,
        loss,
        data,
        variables=None,
        *,
        regularization=True,
        training=False,
        batch_size=256,
        chunk=DEFAULT_CHUNK,
        check=True,
        progress: bool = False,
    ):
        if chunk < 1:
            raise ValueError(f"Argument `chunk` must be a positive integer. Received: chunk={chunk!r}")
        self._objective = Objective(model, loss, data, variables, regularization, training, batch_size)
        self.chunk, self.progress = int(chunk), progress
        super().__init__(dtype=np.dtype(self._objective.dtype), shape=(self._objective.size,) * 2)
        self._check_loss()
        if check:
            check_reproducible(self._objective)

    @property
    def variables(self):
        """The variables, in the order of the vectors."""
        return list(self._objective.variables)

    @property
    def layers(self):
        """By layer, the slice of a vector that holds its variables."""
        return dict(self._objective.slices)

    def loss(self):
        """The loss on all the data, a float."""
        return float(self._objective.sum_over_data("value", self._objective.value))

    def gradient(self):
        """The gradient of the loss on all the data, (P,)."""
        return self._objective.sum_over_data("gradient", self._gradient).numpy()

    def to_dense(self, chunk=None):
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

    def blocks(self, off_diagonal=False, chunk=None):
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
            strips = {row: [] for row in rows}
            for _, products in self._columns(layer, chunk, f"columns of {name}"):
                for row, of_row in rows.items():
                    strips[row].append(products[of_row])
            for row, parts in strips.items():
                found[(row, name) if off_diagonal else name] = np.concatenate(parts, axis=1)
        return found

    def _columns(self, columns, chunk, title):
        """The matrix' columns, a chunk at a time: (slice, (P, up to chunk))."""
        chunk = self.chunk if chunk is None else chunk
        with Bar(columns.stop - columns.start, title, self.progress) as bar:
            for start in range(columns.start, columns.stop, chunk):
                stop = min(start + chunk, columns.stop)
                # The last chunk has the size of the others, so that it needs no trace of its own.
                first = max(min(start, columns.stop - chunk), columns.start)
                units = np.zeros((stop - first, self.shape[0]), self.dtype)
                units[np.arange(stop - first), np.arange(first, stop)] = 1
                products = self._products(units)[start - first :]
                bar.advance(stop - start)
                yield slice(start, stop), products.T

    def _matvec(self, vector):
        vector = tf.constant(np.ravel(vector), self.dtype)
        return self._objective.sum_over_data("product", self._product, vector).numpy()

    def _matmat(self, matrix):
        vectors = np.ascontiguousarray(matrix.T, self.dtype)
        parts = [self._products(vectors[start : start + self.chunk]) for start in range(0, len(vectors), self.chunk)]
        return np.concatenate(parts).T

    def _products(self, vectors):
        """(k, P) to (k, P), all at once."""
        if len(vectors) == 1:
            return self._matvec(vectors[0])[None]
        return self._objective.sum_over_data("products", self._product, tf.constant(vectors)).numpy()

    def _adjoint(self):
        return self

    def _gradient(self, theta, batch, scales):
        with tf.GradientTape() as tape:
            tape.watch(theta)
            value = self._objective.value(theta, batch, scales)
        gradient = tape.gradient(value, theta, unconnected_gradients="zero")
        return self._objective.flatten(gradient)

    def _product(self, theta, batch, scales, vectors):
        """The part of the products that a batch contributes. vectors: (P,) or (k, P)."""
        pull = self._linear_map(theta, batch, scales)

        def product(vector):
            return self._objective.flatten(pull(self._objective.split(vector)))

        return product(vectors) if vectors.shape.rank == 1 else tf.vectorized_map(product, vectors)

    def _linear_map(self, theta, batch, scales):
        """The part of the matrix that a batch contributes, as a function of tensors like theta."""
        raise NotImplementedError

    def _check_loss(self):
        value = self.loss()
        if not np.isfinite(value):
            raise ValueError(
                f"The loss on the data is {value}: it has no curvature. Look for data or weights that are not finite, "
                f"or a model that has diverged."
            )


class HessianOperator(CurvatureOperator):
    """The Hessian of a model's loss on a data set: the second derivatives of

        L(theta) = (1/N) sum_i loss(y_i, model(x_i; theta)) + sum(model.losses).

    It is that of all the data as if they were one batch, however they are cut into batches. A product with a vector is
    the derivative of <gradient, vector> (Pearlmutter, 1994): about 2.5 gradients, and as much memory. The variables'
    values are read at each product, so that an operator follows a model in training.

    ReLU has no second derivative at 0; there, as everywhere in automatic differentiation, it counts as 0.

    Args:
        model: a built `keras.Model`, on Keras' TensorFlow backend.
        loss: a Keras loss or its name; a callable `loss(y, outputs)` that returns a value for each example or a scalar,
            the mean over the batch; or a callable `loss(model, batch)`, known by the name of its first parameter, that
            returns a scalar, the mean over the batch. With a Keras loss with reduction "sum" L is the sum over the
            data; "mean_with_sample_weight" divides by the weights' sum.
        data: a `tf.data.Dataset` of batches `(x, y)` or `(x, y, sample_weight)`, arrays `(x, y)`, or an iterable of
            batches that can be gone through repeatedly. Every product goes through all of it.
        variables: variables of the model or layers (then their trainable variables); all trainable variables if None.
        regularization: whether `model.losses` is part of L.
        training: how the model is called. With True, layers that draw random numbers are refused.
        batch_size: for arrays.
        chunk: how many products are computed at once where there are several; memory grows with it.
        check: whether two evaluations are compared when the operator is made.
        progress: whether a bar on standard error shows how far dense matrices and blocks are.

    Raises:
        ValueError: an unbuilt model, no variables or some that are not the model's, empty data, a loss that is not
            finite, evaluations that differ, and what else cannot be used; the message says which and what to do.

    Shape `(P, P)`, P the number of entries of the variables; dtype that of the variables. `@`, `matvec` and `matmat` as
    in SciPy. Inside the scope of a `tf.distribute.MirroredStrategy` the batches are split over its replicas.

    Example:

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    >>> x, y = np.eye(2, dtype="float32"), np.zeros((2, 1), "float32")
    >>> hessian = HessianOperator(model, "mse", (x, y))  # of the mean of squares: 2 X X^T / N
    >>> hessian @ np.array([3.0, 4.0])
    array([3., 4.], dtype=float32)
    """

    def _linear_map(self, theta, batch, scales):
        with tf.GradientTape() as outer:
            outer.watch(theta)
            with tf.GradientTape() as inner:
                inner.watch(theta)
                value = self._objective.value(theta, batch, scales)
            gradient = inner.gradient(value, theta, unconnected_gradients="zero")
        return lambda vector: outer.gradient(gradient, theta, output_gradients=vector, unconnected_gradients="zero")


class GaussNewtonOperator(CurvatureOperator):
    """The generalised Gauss-Newton matrix (Schraudolph, 2002), J^T H J summed as the loss is:

        G = (1/N) sum_i J_i^T [d^2 loss / d outputs^2] J_i + Hessian of sum(model.losses),

    J_i the derivative of the outputs by the variables. Positive semidefinite for a loss convex in the outputs (and
    convex penalties). For cross-entropy on logits and for squares it is the Fisher matrix of the model's own
    distribution, up to the factor of the squares.

    Args, errors and shape: as `HessianOperator`, but no loss(model, batch), which has no outputs.
    """

    def __init__(self, model, loss, data, variables=None, **options):
        super().__init__(model, loss, data, variables, **options)

    def _linear_map(self, theta, batch, scales):
        _needs_outputs(self._objective, "The Gauss-Newton matrix")
        with tf.GradientTape(persistent=True) as second:
            second.watch(theta)
            with tf.GradientTape(persistent=True) as first:
                first.watch(theta)
                outputs, penalties = self._objective.forward(theta, batch)
                structure, outputs = outputs, tf.nest.flatten(outputs)
            bent = None if penalties is None else first.gradient(penalties, theta, unconnected_gradients="zero")
        push = _jacobian_product(first, theta, outputs)
        # The Hessian at the outputs, as a function of them alone.
        points = [tf.identity(tf.stop_gradient(output)) for output in outputs]
        with tf.GradientTape() as outer:
            outer.watch(points)
            with tf.GradientTape() as inner:
                inner.watch(points)
                packed = tf.nest.pack_sequence_as(structure, points)
                value = self._objective.data_sum(batch, packed) * scales[0]
            slope = inner.gradient(value, points, unconnected_gradients="zero")

        def product(vector):
            moved = outer.gradient(slope, points, output_gradients=push(vector), unconnected_gradients="zero")
            pulled = first.gradient(outputs, theta, output_gradients=moved, unconnected_gradients="zero")
            if bent is None:
                return pulled
            added = second.gradient(bent, theta, output_gradients=vector, unconnected_gradients="zero")
            return [part + scales[1] * other for part, other in zip(pulled, added, strict=True)]

        return product


class FisherOperator(CurvatureOperator):
    """The empirical Fisher matrix, the second moment of the examples' gradients (without penalties):

        F = (1/N) sum_i w_i g_i g_i^T,  g_i the gradient of the loss of example i, w_i its sample weight.

    It is neither the Fisher matrix nor an approximation of the Hessian away from a good fit (Kunstner et al., 2019).
    With `training=True` layers that mix examples, such as batch normalisation, make g_i something else.

    Args, errors and shape: as `HessianOperator`, without `regularization`; the loss must give a value for each example.
    """

    def __init__(self, model, loss, data, variables=None, **options):
        if "regularization" in options:
            raise ValueError("Argument `regularization` has no meaning here: penalties belong to no example.")
        super().__init__(model, loss, data, variables, regularization=False, **options)

    def _linear_map(self, theta, batch, scales):
        from idmatters_tf.curvature.losses import split_batch

        _needs_outputs(self._objective, "The empirical Fisher matrix")
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(theta)
            outputs, _ = self._objective.forward(theta, batch)
            losses = self._objective.example_losses(batch, outputs)
        push = _jacobian_product(tape, theta, [losses])
        weights = split_batch(batch)[2]
        factor = scales[0] if weights is None else scales[0] * tf.reshape(tf.cast(weights, losses.dtype), [-1])

        def product(vector):
            return tape.gradient(losses, theta, output_gradients=factor * push(vector)[0], unconnected_gradients="zero")

        return product


def _jacobian_product(tape, theta, outputs):
    """The product of the outputs' Jacobian with tensors like theta: J v is the derivative of J^T u by u."""
    directions = [tf.zeros_like(output) for output in outputs]
    with tf.GradientTape() as transposed:
        transposed.watch(directions)
        pulled = tape.gradient(outputs, theta, output_gradients=directions, unconnected_gradients="zero")
    return lambda vector: transposed.gradient(pulled, directions, output_gradients=vector, unconnected_gradients="zero")


def _needs_outputs(objective, what):
    if objective.loss.of_model:
        raise ValueError(
            f"{what} needs a loss of the outputs, loss(y, outputs). Received: a loss(model, batch). Use "
            f"HessianOperator, or write the loss as one of the outputs."
        )
