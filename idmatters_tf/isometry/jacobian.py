"""Jacobians of blocks and models at given inputs, as SciPy operators."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._evaluation.batches import length, to_tensors
from idmatters_tf._keras_internals import (
    Call,
    ModelGraph,
    get_mask,
    graph_inputs,
    intercepted,
    recurrent_states,
    run_calls,
    substitute_values,
)
from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf.autodiff import Linearization, linearize
from idmatters_tf.isometry.blocks import Block, BlockName, checked_graph, select_blocks
from idmatters_tf.spectra.operators import Operator

DEFAULT_CHUNK = 16
# Rounding errors of products on copies of a point, in 16 bits.
COPY_TOLERANCE = 0.05

Array = NDArray[np.floating[Any]]


class MaskedInputError(ValueError):
    """Error of a block whose inputs have masks."""


class JacobianOperator(Operator):
    """Matrix-free Jacobian of a function at a point, with products from both sides.

    The function is linearized once, when the operator is built. Unlike a `HessianOperator`, the operator does not
    follow a model in training. J v costs about one evaluation of the function, J^T u about one and a half.

    The shape is `(output entries, input entries)`, both flattened by rows. For several examples it is the Jacobian of
    the whole batch, which is block-diagonal for a separable function. The dtype is float64 for functions of float64,
    otherwise float32. `idmatters_tf.autodiff.jacobian` returns a dense matrix.

    Args:
        function: function of Keras operations and layers, from one tensor to one tensor.
        point: floating-point tensor, (examples, ...).
        separable: False if the function couples the examples of a batch. If True, several products are computed at
            once, on copies of the point, unless a first product shows that the copies affect one another.
        chunk: number of copies at once. Memory grows with it.

    Raises:
        ValueError: if the point has a mask that Keras has attached.

    Example:

    >>> jacobian = JacobianOperator(keras.ops.square, np.array([[1.0, 2.0, 3.0]], "float32"))
    >>> jacobian @ np.ones(3)
    array([2., 4., 6.], dtype=float32)
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], point: Tensor, separable: bool = True, chunk: int = DEFAULT_CHUNK
    ):
        self._function = function
        self._point: Any = ops.convert_to_tensor(point)
        _check_unmasked(self._point, "Argument `point`")
        self._separable = separable
        self._chunk = positive_integer("chunk", chunk)
        self._single = linearize(function, self._point)
        self._copies: Linearization | None = None
        self.input_shape = tuple(self._point.shape)
        self.output_shape = tuple(self._single.value.shape)
        double = keras.backend.standardize_dtype(self._point.dtype) == "float64"
        shape = int(np.prod(self.output_shape)), int(np.prod(self.input_shape))
        super().__init__("float64" if double else "float32", shape)

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
        if len(vectors) >= self._chunk // 2 and self._separable and self._copies is None:
            self._linearize_copies()
        if self._copies is None or len(vectors) < self._chunk // 2:
            single = getattr(self._single, kind)
            return np.stack([self._product(single, vector).ravel() for vector in vectors], axis=1)
        columns = []
        for start in range(0, len(vectors), self._chunk):
            part = vectors[start : start + self._chunk]
            stacked = np.zeros((self._chunk, *shape), self.dtype)
            stacked[: len(part)] = part
            products = self._product(getattr(self._copies, kind), stacked.reshape(-1, *shape[1:])).reshape(
                self._chunk, -1
            )
            columns.append(products[: len(part)])
        return np.concatenate(columns).T

    def _linearize_copies(self) -> None:
        """Linearize the function at copies of the point, unless a product shows that it couples its examples."""
        copies: Any = ops.concatenate([self._point] * self._chunk)
        linearized = linearize(self._function, copies)
        vector = np.random.default_rng(0).standard_normal(self.input_shape).astype(self.dtype)
        single = self._product(self._single.jvp, vector).ravel()
        # A change of the first copy alone.
        changed = np.concatenate([vector, np.zeros((len(copies) - len(vector), *vector.shape[1:]), self.dtype)])
        first, *others = self._product(linearized.jvp, changed).reshape(self._chunk, -1)
        is_equal = np.linalg.norm(first - single) <= COPY_TOLERANCE * np.linalg.norm(single)
        self._separable = bool(is_equal) and not np.any(others)
        self._copies = linearized if self._separable else None


def jacobian(
    model: keras.Model,
    inputs: Structure,
    block: BlockName | None = None,
    training: bool = False,
    chunk: int = DEFAULT_CHUNK,
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
        (operator,) = model_jacobians(model, inputs, training, together=True, chunk=chunk)
    else:
        _check_model(model)
        graph = checked_graph(model)
        chosen = select_blocks(model, graph, [block])
        ((_, (operator,)),) = block_jacobians(model, graph, inputs, chosen, training, together=True, chunk=chunk)
    return operator


def model_jacobians(
    model: keras.Model, inputs: Structure, training: bool, together: bool = False, chunk: int = DEFAULT_CHUNK
) -> Iterator[JacobianOperator]:
    """Yield the Jacobian of a model at each example; the arguments are those of `block_jacobians`.

    Raises:
        ValueError: if the input is of an integer dtype, or if the model has several inputs or outputs.
    """
    _check_model(model)
    symbolic = keras.tree.flatten(getattr(model, "inputs", None) or [])
    if len(symbolic) > 1 or len(keras.tree.flatten(inputs)) > 1:
        raise ValueError(f"The model {model.name!r} has {max(len(symbolic), 2)} inputs. Name a block with one input.")

    def function(tensor: Tensor) -> Tensor:
        outputs = keras.tree.flatten(model(tensor, training=training))
        if len(outputs) != 1:
            raise ValueError(f"The model {model.name!r} has {len(outputs)} outputs. Name a block with one output.")
        return outputs[0]

    for part in _points(model, inputs, training or together):
        (point,) = keras.tree.flatten(part)
        if symbolic and point.dtype != symbolic[0].dtype:
            point = ops.cast(point, symbolic[0].dtype)
        _check_float(point, f"The input of the model {model.name!r}")
        yield JacobianOperator(function, point, not training, chunk)


class _Run(NamedTuple):
    """Run of a model: tensors by `id` of symbolic ones, calls with masks, and `_recorded_arguments` of inner layers."""

    values: dict[int, Tensor]
    masked: list[Call]
    arguments: dict[int, Any]


def block_jacobians(
    model: keras.Model,
    graph: ModelGraph,
    inputs: Structure,
    blocks: Sequence[Block],
    training: bool,
    together: bool = False,
    chunk: int = DEFAULT_CHUNK,
) -> Iterator[tuple[Block, Iterator[JacobianOperator]]]:
    """Yield blocks of a model, found in its graph, each with its Jacobian at each example.

    The state of the model does not change, neither moving averages nor random seeds. Arguments called "..._mask", and
    the other arguments of a block that is a layer, have their values at the example. The remaining arguments are those
    of `jacobian`. With `together` or `training` the batch is one point.

    Raises:
        ValueError: if a layer of a block receives a mask that Keras has attached to a tensor.
    """
    runs: list[_Run] = []
    inner = [block.operation for block in blocks if not block.calls]
    for part in _points(model, inputs, training or together):
        values = graph_inputs(model, part)
        with substitute_values(), _recorded_arguments(inner) as arguments:
            masked = run_calls(graph.calls, values, training)
        runs.append(_Run(values, masked, arguments))
    for block in blocks:
        yield block, (_block_jacobian(block, run, training, chunk) for run in runs)


@contextlib.contextmanager
def _recorded_arguments(layers: Sequence[Any]) -> Iterator[dict[int, Any]]:
    """Record (args, kwargs, True for tensors with masks) of the last call of each layer, by `id` of the layer."""
    recorded: dict[int, Any] = {}

    def record(key: int, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        tensors = filter(ops.is_tensor, keras.tree.flatten([*args, *kwargs.values()]))
        # Attention removes masks from its inputs.
        recorded[key] = args, kwargs, any(get_mask(tensor) is not None for tensor in tensors)
        return call(*args, **kwargs)

    with intercepted((layer, functools.partial(record, id(layer))) for layer in layers):
        yield recorded


def _block_jacobian(block: Block, run: _Run, training: bool, chunk: int) -> JacobianOperator:
    """Return the Jacobian of a block in a run of the whole model."""
    if block.calls:
        own = {id(call.outputs[0]) for call in block.calls}
        for call in run.masked:
            if id(call.outputs[0]) in own:
                raise _mask_error(f"The input of the layer {call.name!r} in the block {block.name!r}")
        function, point = _graph_function(block, run.values, training)
    else:
        args, options, is_masked = run.arguments[id(block.operation)]
        if is_masked:
            raise _mask_error(f"The input of the layer {block.name!r}")
        function, point = _inner_function(block.operation, args, options)
    _check_float(point, f"The input of the block {block.name!r}")
    # The masks of several examples and those that all examples share are not distinguished.
    return JacobianOperator(function, point, len(point) == 1 and not training, chunk)


def _graph_function(
    block: Block, values: dict[int, Tensor], training: bool
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return a block as a function of its input, on one or more copies of one example, and its input."""
    point = values[id(block.start)]
    computed = {id(block.start)} | {id(tensor) for call in block.calls for tensor in call.outputs}
    taken = {id(tensor) for call in block.calls for tensor in (*call.inputs, *call.masks)}
    fixed = {key: values[key] for key in taken - computed}

    def function(tensor: Tensor) -> Tensor:
        copies = len(tensor) // len(point)
        results = {**_copied(fixed, copies), id(block.start): tensor}
        run_calls(block.calls, results, training)
        return results[id(block.end)]

    return function, point


def _inner_function(
    layer: Any, args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return a layer as a function of its first tensor, as `_graph_function`."""
    leaves = keras.tree.flatten([*args, *options.values()])
    index = next(index for index, leaf in enumerate(leaves) if ops.is_tensor(leaf))
    others = {key: leaf for key, leaf in enumerate(leaves) if ops.is_tensor(leaf)}

    def function(tensor: Tensor) -> Tensor:
        copied = {**dict(enumerate(leaves)), **_copied(others, len(tensor) // len(leaves[index])), index: tensor}
        packed = keras.tree.pack_sequence_as([*args, *options.values()], list(copied.values()))
        return layer(*packed[: len(args)], **dict(zip(options, packed[len(args) :], strict=True)))

    return function, leaves[index]


def _copied(tensors: dict[Any, Tensor], copies: int) -> dict[Any, Tensor]:
    """Return other arguments of copies of one example."""
    return {
        key: ops.concatenate([tensor] * copies) if len(tensor.shape) and len(tensor) == 1 else tensor
        for key, tensor in tensors.items()
    }


def _points(model: keras.Model, inputs: Structure, together: bool) -> list[Any]:
    """Return the inputs of a model for each example, or the whole batch as one point."""
    tensors: Any = to_tensors(inputs)
    for tensor in keras.tree.flatten(tensors):
        if tensor is not None:
            _check_unmasked(tensor, "Argument `inputs`")
    examples = length(tensors)
    if not examples:
        raise ValueError("Argument `inputs` must contain at least one example. Received: an empty batch.")
    if together:
        return [tensors]
    if examples > 1 and recurrent_states(model):
        raise ValueError(
            f"The model {model.name!r} has stateful recurrent layers, whose batch size is fixed, but each example is "
            f"measured alone. Build it with stateful=False or a batch size of 1, and copy the weights."
        )

    def select(index: int) -> Any:
        return keras.tree.map_structure(lambda part: None if part is None else part[index : index + 1], tensors)

    return [select(index) for index in range(examples)]


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model) or not model.built:
        received = f"{model.name!r}, not built" if isinstance(model, keras.Model) else type(model).__name__
        raise ValueError(f"Argument `model` must be a built keras.Model. Received: {received}")


def _check_float(tensor: Tensor, title: str) -> None:
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise ValueError(
            f"{title} must be of a floating-point dtype. Received: {dtype}. Name a block that starts after the first "
            f"layer with floating-point outputs, e.g. blocks=[(layer, last layer)]."
        )


def _check_unmasked(tensor: Tensor, title: str) -> None:
    if get_mask(tensor) is not None:
        raise _mask_error(title)


def _mask_error(title: str) -> "MaskedInputError":
    return MaskedInputError(
        f"{title} has a mask of Keras, which Jacobians do not support. Name blocks without masks, or build the model "
        f"without `Masking` and `mask_zero=True` for sequences of one length. `layer_influence` supports masks."
    )
