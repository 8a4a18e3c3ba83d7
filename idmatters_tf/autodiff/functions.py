"""Derivatives of functions of tensors, Keras models and their variables; see `idmatters_tf.autodiff`."""

import functools
import itertools
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import set_mask
from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf.autodiff._flat import FlatFunction
from idmatters_tf.autodiff._protocol import Backend, LinearMap
from idmatters_tf.spectra.operators import unit_vectors

DEFAULT_CHUNK = 64


def current_backend() -> Backend:
    """Return the implementation of derivatives for Keras' current backend.

    Raises:
        ValueError: if the backend is neither TensorFlow nor JAX.
    """
    name = keras.backend.backend()
    if name == "tensorflow":
        from idmatters_tf.autodiff import _tensorflow

        return _tensorflow
    if name == "jax":
        from idmatters_tf.autodiff import _jax

        return _jax
    raise ValueError(f"Derivatives require Keras' TensorFlow or JAX backend. Received: {name!r}. Set KERAS_BACKEND.")


def gradient(function: Callable[[Structure], Structure], point: Structure) -> Structure:
    """Return the gradient of a scalar function.

    Args:
        function: see `idmatters_tf.autodiff`. It returns a scalar.
        point: see `idmatters_tf.autodiff`.

    Returns:
        Tensors in the structure and shapes of the point.

    Raises:
        ValueError: for arguments that do not fit, and for a backend other than TensorFlow and JAX.

    >>> np.asarray(gradient(lambda x: ops.sum(x**2), np.array([1.0, 2.0], "float32"))).tolist()
    [2.0, 4.0]
    """
    flat = FlatFunction(function, point)
    _, parts = current_backend().gradient(flat.scalar, flat.point)
    return flat.like_point(parts)


def jvp(function: Callable[[Structure], Structure], point: Structure, vector: Structure) -> Structure:
    """Return the product J v of the Jacobian with a vector, the derivative of the function along the vector.

    Args:
        function: see `idmatters_tf.autodiff`.
        point: see `idmatters_tf.autodiff`.
        vector: tensors or arrays in the structure and shapes of the point.

    Returns:
        Tensors in the structure and shapes of the outputs. `linearize` is faster for several products.

    Raises:
        ValueError: as `gradient`.
    """
    return linearize(function, point).jvp(vector)


def vjp(function: Callable[[Structure], Structure], point: Structure, vector: Structure) -> Structure:
    """Return the product J^T u of the transposed Jacobian with a vector, the gradient of <function(x), u>.

    Args:
        function: see `idmatters_tf.autodiff`.
        point: see `idmatters_tf.autodiff`.
        vector: tensors or arrays in the structure and shapes of the outputs.

    Returns:
        Tensors in the structure and shapes of the point.

    Raises:
        ValueError: as `gradient`.
    """
    flat = FlatFunction(function, point)

    def projected(tensors: list[Tensor]) -> Tensor:
        outputs, _ = flat(tensors)
        products = [ops.sum(a * b) for a, b in zip(outputs, flat.vector_at_outputs(vector, outputs), strict=True)]
        return functools.reduce(ops.add, products)

    _, parts = current_backend().gradient(projected, flat.point)
    return flat.like_point(parts)


def hvp(function: Callable[[Structure], Structure], point: Structure, vector: Structure) -> Structure:
    """Return the product H v of the Hessian of a scalar function with a vector (Pearlmutter, 1994).

    A product costs about two to three gradients. For many products of a model's loss on a data set, use
    `idmatters_tf.curvature.HessianOperator`, which compiles them.

    Args:
        function: see `idmatters_tf.autodiff`. It returns a scalar.
        point: see `idmatters_tf.autodiff`.
        vector: tensors or arrays in the structure and shapes of the point.

    Returns:
        Tensors in the structure and shapes of the point.

    Raises:
        ValueError: as `gradient`, and if TensorFlow has no second derivative.
    """
    flat = FlatFunction(function, point)
    vectors = flat.vector_at_point(vector)
    return flat.like_point(current_backend().hessian_product(flat.scalar, flat.point)(vectors))


class Linearization:
    """Derivative J of a function at a point, as returned by `linearize`.

    The function has been evaluated once, and the intermediate results for the products are stored.

    Attributes:
        value: outputs of the function at the point.
    """

    def __init__(self, flat: FlatFunction):
        self._flat = flat
        self._outputs, masks, self._jvp, self._vjp = current_backend().linearize(flat, flat.point)
        for output, mask in zip(self._outputs, masks, strict=True):
            set_mask(output, mask)
        self.value = flat.like_outputs(self._outputs)

    def jvp(self, vector: Structure) -> Structure:
        """Return J v, in the structure of the outputs, for a vector in the structure of the point."""
        return self._flat.like_outputs(self._jvp(self._flat.vector_at_point(vector)))

    def vjp(self, vector: Structure) -> Structure:
        """Return J^T u, in the structure of the point, for a vector in the structure of the outputs."""
        return self._flat.like_point(self._vjp(self._flat.vector_at_outputs(vector, self._outputs)))


def linearize(function: Callable[[Structure], Structure], point: Structure) -> Linearization:
    """Evaluate a function once and return its derivative as a linear map, for products from both sides.

    Args:
        function: see `idmatters_tf.autodiff`.
        point: see `idmatters_tf.autodiff`.

    Returns:
        `Linearization` with the attribute `value` and the methods `jvp(vector)` and `vjp(vector)`. For a scalar
        function, `value` and `vjp(1.0)` are its value and gradient.

    Raises:
        ValueError: as `gradient`, and if TensorFlow cannot differentiate the function twice: J v is computed as the
            derivative of J^T u with respect to u.

    >>> linear = linearize(lambda x: x**3, np.array([1.0, 2.0]))
    >>> np.asarray(linear.value).tolist(), np.asarray(linear.jvp(np.array([1.0, 1.0]))).tolist()
    ([1.0, 8.0], [3.0, 12.0])
    """
    return Linearization(FlatFunction(function, point))


def jacobian(function: Callable[[Structure], Structure], point: Structure, chunk: int = DEFAULT_CHUNK) -> Structure:
    """Return the dense Jacobian, computed by products with unit vectors on the side with fewer entries.

    `idmatters_tf.isometry.jacobian` returns an operator that does not form the matrix.

    Args:
        function: see `idmatters_tf.autodiff`.
        point: see `idmatters_tf.autodiff`.
        chunk: products computed at once; memory grows with it.

    Returns:
        A tensor of shape `output.shape + point.shape` for one output tensor and one tensor as point. Otherwise, such
        tensors in the structure of the outputs, each replaced by the structure of the point.

    Raises:
        ValueError: as `linearize`, and for unknown shapes, as inside some graphs.

    >>> np.asarray(jacobian(lambda x: ops.stack([x[0] * x[1], x[0]]), np.array([2.0, 3.0]))).tolist()
    [[3.0, 2.0], [1.0, 0.0]]
    """
    chunk = positive_integer("chunk", chunk)
    flat = FlatFunction(function, point)
    outputs, _, forward, transposed = current_backend().linearize(flat, flat.point)
    if _entries(flat.point) < _entries(outputs):
        columns = _rows(forward, flat.point, chunk)
        rows = [
            [_rows_first(column[index], len(part.shape)) for column, part in zip(columns, flat.point, strict=True)]
            for index in range(len(outputs))
        ]
    else:
        rows = _rows(transposed, outputs, chunk)
    return flat.like_outputs([flat.like_point(row) for row in rows])


def hessian(function: Callable[[Structure], Structure], point: Structure, chunk: int = DEFAULT_CHUNK) -> Structure:
    """Return the dense Hessian of a scalar function, computed by products with unit vectors.

    Args:
        function: see `idmatters_tf.autodiff`. It returns a scalar.
        point: see `idmatters_tf.autodiff`.
        chunk: products computed at once; memory grows with it.

    Returns:
        A tensor of shape `point.shape + point.shape` for one tensor as point. Otherwise, such tensors in the structure
        of the point, each replaced by the structure of the point: `found["a"]["b"]` is the derivative with respect to
        "a" and "b".

    Raises:
        ValueError: as `hvp`, and for unknown shapes, as inside some graphs.

    >>> np.asarray(hessian(lambda x: x[0] ** 2 * x[1], np.array([1.0, 3.0]))).tolist()
    [[6.0, 2.0], [2.0, 0.0]]
    """
    chunk = positive_integer("chunk", chunk)
    flat = FlatFunction(function, point)
    product = current_backend().hessian_product(flat.scalar, flat.point)
    return flat.like_point([flat.like_point(row) for row in _rows(product, flat.point, chunk)])


def _rows(linear_map: LinearMap, sources: Sequence[Tensor], chunk: int) -> list[list[Tensor]]:
    """Return the matrix of a linear map as tensors of shape `source.shape + result.shape`, by source and result."""
    backend = current_backend()
    total = _entries(sources)
    chunks = []
    batched = backend.batched(linear_map)
    shapes = [tuple(source.shape) for source in sources]
    bounds = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
    slices = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
    for span, units in unit_vectors(total, chunk, slice(0, total)):
        vectors: list[Tensor] = [
            ops.convert_to_tensor(units[:, entries].reshape(len(units), *shape), source.dtype)
            for entries, shape, source in zip(slices, shapes, sources, strict=True)
        ]
        try:
            products = batched(vectors)
        except backend.VECTORIZATION_ERRORS:
            single = [linear_map([vector[index] for vector in vectors]) for index in range(len(units))]
            products: list[Tensor] = [ops.stack(parts) for parts in zip(*single, strict=True)]
        chunks.append([product[span.start - span.stop :] for product in products])
    results: list[Tensor] = [
        parts[0] if len(parts) == 1 else ops.concatenate(parts) for parts in zip(*chunks, strict=True)
    ]
    return [
        [ops.reshape(part[entries], (*shape, *part.shape[1:])) for part in results]
        for entries, shape in zip(slices, shapes, strict=True)
    ]


def _entries(tensors: Sequence[Tensor]) -> int:
    """Return the number of entries of tensors."""
    if any(None in tuple(tensor.shape) for tensor in tensors):
        raise ValueError("Dense matrices require tensors of known shapes. Use jvp, vjp or hvp.")
    return sum(int(np.prod(tensor.shape)) for tensor in tensors)


def _rows_first(tensor: Tensor, axes: int) -> Tensor:
    """Return a tensor with its first `axes` axes moved behind the others."""
    return ops.moveaxis(tensor, list(range(axes)), list(range(-axes, 0)))
