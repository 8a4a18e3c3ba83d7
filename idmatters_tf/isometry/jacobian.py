"""Jacobians of blocks and models at given inputs, as SciPy operators."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np
import scipy.sparse.linalg
from keras import ops
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import (
    AttachedMasks,
    Call,
    get_mask,
    graph_calls,
    graph_inputs,
    run_calls,
    set_mask,
    substitute_values,
)
from idmatters_tf._keras_types import Tensor
from idmatters_tf.autodiff import Linearization, linearize
from idmatters_tf.isometry.blocks import Block, find_blocks

DEFAULT_CHUNK = 16

Array = NDArray[np.floating[Any]]


class JacobianOperator(scipy.sparse.linalg.LinearOperator):
    """Matrix-free Jacobian of a function at a point, with products from both sides.

    The function is linearized once, when the operator is built. Unlike a `HessianOperator`, the operator does not
    follow a model in training. J v costs about one evaluation of the function, J^T u about one and a half.

    The shape is `(output entries, input entries)`, both flattened by rows. For several examples it is the Jacobian of
    the whole batch, which is block-diagonal for a separable function. The dtype is float64 for functions of float64,
    otherwise float32.

    Args:
        function: function of Keras operations and layers, from one tensor to one tensor.
        point: floating-point tensor, (examples, ...).
        separable: True if the function treats the examples of a batch independently. Several products are then
            computed at once, on copies of the point.
        chunk: number of copies at once. Memory grows with it.

    Example:

    >>> jacobian = JacobianOperator(keras.ops.square, np.array([[1.0, 2.0, 3.0]], "float32"))
    >>> jacobian @ np.ones(3)
    array([2., 4., 6.], dtype=float32)
    """

    if TYPE_CHECKING:
        # SciPy annotates `__new__` with the arguments of operators made from functions.
        def __new__(cls, *args: Any, **options: Any) -> Self: ...

    def __init__(
        self, function: Callable[[Any], Any], point: Tensor, separable: bool = True, chunk: int = DEFAULT_CHUNK
    ):
        self._function = function
        self._point: Any = ops.convert_to_tensor(point)
        self._separable, self._chunk = separable, positive_integer("chunk", chunk)
        self._single = linearize(function, self._point)
        self._copies: Linearization | None = None
        self.input_shape, self.output_shape = tuple(self._point.shape), tuple(self._single.value.shape)
        shape = int(np.prod(self.output_shape)), int(np.prod(self.input_shape))
        double = keras.backend.standardize_dtype(self._point.dtype) == "float64"
        super().__init__(np.dtype("float64" if double else "float32"), shape)  # pyright: ignore[reportCallIssue]

    def _matvec(self, vector: ArrayLike) -> Array:
        return self._product(self._single.jvp, np.asarray(vector, self.dtype).reshape(self.input_shape)).ravel()

    def _rmatvec(self, vector: ArrayLike) -> Array:
        return self._product(self._single.vjp, np.asarray(vector, self.dtype).reshape(self.output_shape)).ravel()

    def _matmat(self, matrix: ArrayLike) -> Array:
        return self._products("jvp", np.asarray(matrix, self.dtype).T, self.input_shape)

    def _rmatmat(self, matrix: ArrayLike) -> Array:
        return self._products("vjp", np.asarray(matrix, self.dtype).T, self.output_shape)

    def _product(self, linear_map: Callable[[Any], Tensor], vector: Array) -> Array:
        return np.asarray(ops.convert_to_numpy(ops.cast(linear_map(vector), self.dtype.name)))

    def _products(self, kind: str, vectors: Array, shape: tuple[int, ...]) -> Array:
        """Return the products with the rows, as columns."""
        vectors = vectors.reshape(len(vectors), *shape)
        if not self._separable or len(vectors) < self._chunk // 2:
            single = getattr(self._single, kind)
            return np.stack([self._product(single, vector).ravel() for vector in vectors], axis=1)
        if self._copies is None:
            copies: Any = ops.concatenate([self._point] * self._chunk)
            mask = get_mask(self._point)
            set_mask(copies, None if mask is None else ops.concatenate([mask] * self._chunk))
            self._copies = linearize(self._function, copies)
        columns = []
        for start in range(0, len(vectors), self._chunk):
            part = vectors[start : start + self._chunk]
            missing = [(0, self._chunk - len(part)), *[(0, 0)] * len(shape)]
            stacked = np.pad(part, missing).reshape(-1, *shape[1:])
            products = self._product(getattr(self._copies, kind), stacked).reshape(self._chunk, -1)
            columns.append(products[: len(part)])
        return np.concatenate(columns).T


@dataclasses.dataclass(frozen=True)
class BlockAtInputs:
    """A block together with its inputs, computed from given inputs of the model.

    Attributes:
        block: see `Block`; None for the whole model.
        places: (function, point) for each example, or one pair for the whole batch. The function maps the input of the
            block to its output, with the current weights of the model and the masks of these examples. The point is the
            input of the block, (examples, ...).
        separable: True if examples are treated independently.
    """

    block: Any
    places: Sequence[tuple[Callable[[Any], Any], Tensor]]
    separable: bool

    def jacobians(self, chunk: int = DEFAULT_CHUNK) -> Iterator[JacobianOperator]:
        """Yield the Jacobian at each point."""
        for function, point in self.places:
            yield JacobianOperator(function, point, self.separable, chunk)


def jacobian(
    model: keras.Model, inputs: Any, block: Any = None, training: bool = False, chunk: int = DEFAULT_CHUNK
) -> JacobianOperator:
    """Return the Jacobian of a model, or of one of its blocks, at given inputs of the model.

    Args:
        model: built model; for a block, functional or Sequential.
        inputs: batch of inputs of the model. The Jacobian is that of the whole batch; one example has shape (1, ...).
        block: name of a layer or pair of names (from, to), see `find_blocks`. If None, the whole model.
        training: mode in which the model is called. If True, batch normalization uses the statistics of the batch,
            which couples the examples.
        chunk: see `JacobianOperator`.
    """
    if block is None:
        found = whole_at_inputs(model, inputs, training, together=True)
    else:
        (found,) = blocks_at_inputs(model, inputs, [block], training, together=True)
    (operator,) = found.jacobians(chunk)
    return operator


def whole_at_inputs(model: keras.Model, inputs: Any, training: bool = False, together: bool = False) -> BlockAtInputs:
    """Return a model as one block, from its input to its output; the arguments are those of `blocks_at_inputs`.

    Raises:
        ValueError: if the input is of an integer dtype, or if the model has several inputs or outputs.
    """
    _check_model(model)
    symbolic = keras.tree.flatten(getattr(model, "inputs", None) or [])
    if len(symbolic) > 1 or len(keras.tree.flatten(inputs)) > 1:
        raise ValueError(f"The model {model.name!r} has {max(len(symbolic), 2)} inputs. Name a block with one input.")
    batch: Tensor = ops.convert_to_tensor(keras.tree.flatten(inputs)[0], dtype=symbolic[0].dtype if symbolic else None)
    _check_float(batch.dtype, f"The input of the model {model.name!r}")

    def function(tensor: Tensor) -> Tensor:
        outputs = keras.tree.flatten(model(tensor, training=training))
        if len(outputs) != 1:
            raise ValueError(f"The model {model.name!r} has {len(outputs)} outputs. Name a block with one output.")
        return outputs[0]

    mask = get_mask(batch)
    places = []
    for rows in _rows(batch, training or together):
        point = batch[rows]
        set_mask(point, None if mask is None else mask[rows])
        places.append((function, point))
    return BlockAtInputs(None, places, not training)


def blocks_at_inputs(
    model: keras.Model, inputs: Any, blocks: Any = None, training: bool = False, together: bool = False
) -> Iterator[BlockAtInputs]:
    """Yield the blocks of a model, each with its inputs.

    The state of the model does not change, neither moving averages nor random seeds: dropout draws the same numbers
    each time.

    Args:
        model: functional or Sequential model.
        inputs: batch of inputs of the model, as NumPy arrays or tensors.
        blocks: see `find_blocks`.
        training: mode in which the layers are called.
        together: True to treat the batch as one point. With `training` it always is.
    """
    _check_model(model)
    found = find_blocks(model, blocks)
    values = graph_inputs(model, inputs)
    given, calls = dict(values), graph_calls(model) or []
    with substitute_values():
        attached = run_calls(calls, values, training)
    has_masks = any(call.masks for block in found for call in block.calls)
    shared = _shared_tensors(calls, given, values, len(values[id(found[0].start)]), training) if has_masks else set()
    for block in found:
        batch = values[id(block.start)]
        _check_float(batch.dtype, f"The input of the block {block.name!r}")
        places = []
        for rows in _rows(batch, training or together):
            places.append((_function(block, values, attached, shared, rows, training), batch[rows]))
        yield BlockAtInputs(block, places, not training)


def _shared_tensors(
    calls: Sequence[Call], inputs: dict[int, Tensor], values: dict[int, Tensor], examples: int, training: bool
) -> set[int]:
    """Return the symbolic tensors that all examples share, such as causal attention masks, by their identity.

    Their lengths do not change if the examples are given twice. Symbolic shapes do not distinguish unknown sizes.
    """
    twice: Any = {
        key: ops.concatenate([tensor, tensor]) if len(tensor) == examples else tensor for key, tensor in inputs.items()
    }
    with substitute_values():
        run_calls(calls, twice, training)
    return {key for key, tensor in values.items() if tuple(tensor.shape[:1]) == tuple(twice[key].shape[:1])}


def _function(
    block: Block, values: dict[int, Tensor], attached: AttachedMasks, shared: set[int], rows: slice, training: bool
) -> Callable[[Any], Any]:
    """Return the function from a block's input to its output at some examples, with the masks of these examples.

    `values` and `attached` are the values and masks of the whole model, from `run_calls`. `shared` are tensors that all
    examples share.
    """
    batch = values[id(block.start)]
    examples = len(batch[rows])
    own = {(id(call.outputs[0]), place) for call in block.calls for place in range(len(call.inputs))}
    of_inputs = {key: mask for key, mask in attached.items() if key in own}
    masks = {id(tensor): values[id(tensor)] for call in block.calls for tensor in call.masks}
    of_all = {key: mask for key, mask in masks.items() if key in shared}
    of_examples = {key: mask for key, mask in masks.items() if key not in shared}

    def chosen(masks: dict[Any, Tensor], copies: int) -> dict[Any, Tensor]:
        found = {key: mask[rows] if len(mask) == len(batch) else mask for key, mask in masks.items()}
        return found if copies == 1 else {key: ops.concatenate([mask] * copies) for key, mask in found.items()}

    def function(tensor: Tensor) -> Tensor:
        # Several products are computed at once, on copies of the point.
        copies = tensor.shape[0] // examples
        computed = {id(block.start): tensor, **of_all, **chosen(of_examples, copies)}
        run_calls(block.calls, computed, training, chosen(of_inputs, copies))
        return computed[id(block.end)]

    return function


def _rows(batch: Tensor, together: bool) -> list[slice]:
    """Return the slices of the batch, one for each point."""
    if not len(batch):
        raise ValueError("Argument `inputs` must contain at least one example. Received: an empty batch.")
    return [slice(None)] if together else [slice(place, place + 1) for place in range(len(batch))]


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model) or not model.built:
        received = f"{model.name!r}, not built" if isinstance(model, keras.Model) else type(model).__name__
        raise ValueError(f"Argument `model` must be a built keras.Model. Received: {received}")


def _check_float(dtype: Any, what: str) -> None:
    name = keras.backend.standardize_dtype(dtype)
    if not keras.backend.is_float_dtype(name):
        raise ValueError(
            f"{what} must be of a floating-point dtype. Received: {name}. Name a block that starts after the first "
            f"layer with floating-point outputs, e.g. blocks=[(layer, last layer)]."
        )
