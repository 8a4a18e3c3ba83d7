"""Blocks and models as functions of their input near examples, with their Jacobians."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

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
from idmatters_tf.autodiff import linearize
from idmatters_tf.isometry.blocks import Block, BlockName, checked_graph, select_blocks
from idmatters_tf.isometry.operators import (
    DEFAULT_CHUNK,
    Array,
    JacobianOperator,
    check_unmasked,
    couples_rows,
    mask_error,
)
from idmatters_tf.spectra.singular import dense

# Copies of all examples at once, for dense matrices of small blocks.
ROWS = 64

# Arguments of a block: tensors by the `id` of symbolic ones, or the leaves of a layer's arguments by their number.
Arguments: TypeAlias = dict[int, Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class LocalFunction:
    """A block or a model as a function of its input near given examples, with its other inputs fixed.

    Attributes:
        name: name of the block or model.
        points: inputs at the examples, (examples, ...).
        output_shape: shape of the output at all examples.
        fixed: other tensors, by the keys of `execute`. Without them there may be several examples.
        execute: function of all tensors by key, with the input at `start`.
        is_coupled: True if the examples are one point, because they affect one another or belong together.
    """

    name: str
    points: Tensor
    output_shape: tuple[int, ...]
    fixed: Arguments
    execute: Callable[[Arguments], Tensor]
    start: int
    is_coupled: bool

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the outputs at copies of all examples."""
        copies = len(tensor) // len(self.points)
        return self.execute({**{key: _repeat(part, copies) for key, part in self.fixed.items()}, self.start: tensor})

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one point, with an axis of examples."""
        return tuple(self.points.shape) if self.is_coupled else (1, *self.points.shape[1:])

    @property
    def outputs(self) -> tuple[int, ...]:
        """Shape of the output at one point."""
        return self.output_shape if self.is_coupled else (1, *self.output_shape[1:])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the Jacobian at one point."""
        return math.prod(self.outputs), math.prod(self.inputs)

    @property
    def count(self) -> int:
        """Number of points."""
        return 1 if self.is_coupled else len(self.points)

    def at(self, first: int, last: int) -> "LocalFunction":
        """Return the function near some of the examples."""
        shape = (last - first, *self.output_shape[1:])
        return dataclasses.replace(self, points=self.points[first:last], output_shape=shape)

    def operators(self, chunk: int = DEFAULT_CHUNK) -> Iterator[JacobianOperator]:
        """Yield the Jacobian at each point."""
        for index in range(self.count):
            function = self if self.is_coupled else self.at(index, index + 1)
            yield JacobianOperator(function, function.points, not self.is_coupled, chunk)

    def matrices(self, chunk: int = DEFAULT_CHUNK) -> Iterator[Array]:
        """Yield the Jacobian at each point as a dense matrix in its own dtype, from products at all points at once.

        Raises:
            ValueError: if the function couples several examples.
        """
        rows, columns = self.shape
        if self.is_coupled:
            yield from (dense(operator) for operator in self.operators(chunk))
            return
        width = min(chunk, rows, columns)
        step = max(1, ROWS // width)
        for first in range(0, self.count, step):
            part = self.at(first, min(first + step, self.count))
            points: Tensor = ops.concatenate([part.points] * width)
            linearized = linearize(part, points)
            if len(points) > 1 and couples_rows(linearized, tuple(points.shape), 1):
                if self.count > 1:
                    raise ValueError(
                        f"The block {self.name!r} couples the examples of a batch. Pass one example at a time, or "
                        f"training=True to measure the whole batch as one point."
                    )
                yield from (dense(operator) for operator in self.operators(chunk))
                return
            is_tall = rows >= columns
            product = linearized.jvp if is_tall else linearized.vjp
            side = part.inputs if is_tall else part.outputs
            least = min(self.shape)
            found = [_unit_products(product, side, start, width, part.count) for start in range(0, least, width)]
            # (examples, directions, entries of the other side)
            matrices = np.concatenate(found, axis=1)[:, :least]
            yield from (matrix.T if is_tall else matrix for matrix in matrices)


def _unit_products(
    product: Callable[[Array], Tensor], side: Sequence[int], start: int, width: int, examples: int
) -> Array:
    """Return the products with `width` unit vectors, from `start` on, at each example: (examples, width, entries)."""
    units = np.eye(math.prod(side), dtype="float32")[start : start + width]
    stacked = np.zeros((width, examples, math.prod(side)), "float32")
    stacked[: len(units)] = units[:, None]
    products: Tensor = ops.convert_to_numpy(product(stacked.reshape(-1, *side[1:])))
    if products.dtype != np.float64:
        products = products.astype(np.float32)
    return np.swapaxes(products.reshape(width, examples, -1), 0, 1)


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
        function = model_function(model, inputs, training, together=True)
    else:
        _check_model(model)
        graph = checked_graph(model)
        chosen = select_blocks(model, graph, [block])
        ((_, (function,)),) = block_functions(model, graph, inputs, chosen, training, together=True)
    # Copies of a batch with other inputs are not supported.
    is_separable = not training and (not function.fixed or len(function.points) == 1)
    return JacobianOperator(function, function.points, is_separable, chunk)


def model_function(model: keras.Model, inputs: Structure, training: bool, together: bool = False) -> LocalFunction:
    """Return a model as a function of its input near each example; the arguments are those of `block_functions`.

    Raises:
        ValueError: if the input is of an integer dtype, or if the model has several inputs or outputs.
    """
    _check_model(model)
    symbolic = keras.tree.flatten(getattr(model, "inputs", None) or [])
    if len(symbolic) > 1 or len(keras.tree.flatten(inputs)) > 1:
        raise ValueError(f"The model {model.name!r} has {max(len(symbolic), 2)} inputs. Name a block with one input.")

    def execute(tensors: Arguments) -> Tensor:
        outputs = keras.tree.flatten(model(keras.tree.pack_sequence_as(inputs, [tensors[0]]), training=training))
        if len(outputs) != 1:
            raise ValueError(f"The model {model.name!r} has {len(outputs)} outputs. Name a block with one output.")
        return outputs[0]

    (points,) = keras.tree.flatten(_checked_inputs(model, inputs, together or training))
    if symbolic and points.dtype != symbolic[0].dtype:
        points = ops.cast(points, symbolic[0].dtype)
    _check_float(points, f"The input of the model {model.name!r}")
    with substitute_values():
        shape = tuple(execute({0: points}).shape)
    return LocalFunction(model.name, points, shape, {}, execute, 0, together or training)


class _LayerCall(NamedTuple):
    """Call of a layer: its arguments, the shape of its output, and True for inputs with masks."""

    args: tuple[Structure, ...]
    kwargs: dict[str, Structure]
    shape: tuple[int, ...]
    is_masked: bool


class _Run(NamedTuple):
    """Run of a model: tensors by `id` of symbolic ones, calls with masks, and calls of inner layers by their `id`."""

    values: Arguments
    masked: list[Call]
    inner: dict[int, _LayerCall]


def block_functions(
    model: keras.Model,
    graph: ModelGraph,
    inputs: Structure,
    blocks: Sequence[Block],
    training: bool,
    together: bool = False,
) -> Iterator[tuple[Block, list[LocalFunction]]]:
    """Yield blocks of a model, found in its graph, each as functions that contain all examples.

    The state of the model does not change, neither moving averages nor random seeds. Arguments called "..._mask", and
    the other arguments of a block that is a layer, have their values at the examples. With `together` or `training` the
    batch is one point. Otherwise an example must not affect the others.

    Raises:
        ValueError: if a layer of a block receives a mask that Keras has attached to a tensor.
    """
    tensors = _checked_inputs(model, inputs, together or training)
    inner = [block.operation for block in blocks if not block.calls]
    # Which of the other inputs have an axis of examples is known for single examples only.
    is_free = not inner and not any(map(_fixed_inputs, blocks))
    whole = together or training or (is_free and all(tensor.shape[0] is None for tensor in model.inputs))
    runs: list[_Run] = []
    for part in [tensors] if whole else _examples(tensors):
        values = graph_inputs(model, part)
        with substitute_values(), _recorded_calls(inner) as recorded:
            masked = run_calls(graph.calls, values, training)
        runs.append(_Run(values, masked, recorded))
    for block in blocks:
        yield block, [_local_function(block, run, training, together or training) for run in runs]


@contextlib.contextmanager
def _recorded_calls(layers: Sequence[keras.Operation]) -> Iterator[dict[int, _LayerCall]]:
    """Record the last call of each layer, by its `id`."""
    recorded: dict[int, _LayerCall] = {}

    def record(key: int, call: Callable[..., Structure], /, *args: Structure, **kwargs: Structure) -> Structure:
        tensors = filter(ops.is_tensor, keras.tree.flatten([*args, *kwargs.values()]))
        # Attention removes masks from its inputs.
        is_masked = any(get_mask(tensor) is not None for tensor in tensors)
        outputs = call(*args, **kwargs)
        recorded[key] = _LayerCall(args, kwargs, tuple(keras.tree.flatten(outputs)[0].shape), is_masked)
        return outputs

    with intercepted((layer, functools.partial(record, id(layer))) for layer in layers):
        yield recorded


def _local_function(block: Block, run: _Run, training: bool, is_coupled: bool) -> LocalFunction:
    """Return a block as a function near the examples of a run of the whole model."""
    if block.calls:
        own = {id(call.outputs[0]) for call in block.calls}
        masked = [call.name for call in run.masked if id(call.outputs[0]) in own]
        fixed = {key: run.values[key] for key in _fixed_inputs(block)}
        start, points = id(block.start), run.values[id(block.start)]
        shape = tuple(run.values[id(block.end)].shape)

        def execute(tensors: Arguments) -> Tensor:
            run_calls(block.calls, tensors, training)
            return tensors[id(block.end)]
    else:
        args, options, shape, is_masked = run.inner[id(block.operation)]
        masked = [block.name] if is_masked else []
        leaves = keras.tree.flatten([*args, *options.values()])
        start = next(index for index, leaf in enumerate(leaves) if ops.is_tensor(leaf))
        points = leaves[start]
        fixed = {key: leaf for key, leaf in enumerate(leaves) if key != start}

        def execute(tensors: Arguments) -> Tensor:
            flat = [tensors[key] for key in range(len(leaves))]
            packed = keras.tree.pack_sequence_as([*args, *options.values()], flat)
            return block.operation(*packed[: len(args)], **dict(zip(options, packed[len(args) :], strict=True)))

    if masked:
        raise mask_error(f"The input of the layer {masked[0]!r} in the block {block.name!r}")
    _check_float(points, f"The input of the block {block.name!r}")
    return LocalFunction(block.name, points, shape, fixed, execute, start, is_coupled)


def _fixed_inputs(block: Block) -> set[int]:
    """Return the `id` of the symbolic tensors that the calls of a block take and that are not computed in it."""
    computed = {id(block.start)} | {id(tensor) for call in block.calls for tensor in call.outputs}
    return {id(tensor) for call in block.calls for tensor in (*call.inputs, *call.masks)} - computed


def _repeat(part: Tensor, copies: int) -> Tensor:
    """Return another argument of a block at copies of one example."""
    has_examples = ops.is_tensor(part) and len(part.shape) and len(part) == 1
    return ops.concatenate([part] * copies) if has_examples and copies > 1 else part


def _checked_inputs(model: keras.Model, inputs: Structure, together: bool) -> Structure:
    """Return the inputs of a model as tensors, or raise ValueError."""
    tensors = to_tensors(inputs)
    for tensor in keras.tree.flatten(tensors):
        if tensor is not None:
            check_unmasked(tensor, "Argument `inputs`")
    examples = length(tensors)
    if not examples:
        raise ValueError("Argument `inputs` must contain at least one example. Received: an empty batch.")
    if not together and examples > 1 and recurrent_states(model):
        raise ValueError(
            f"The model {model.name!r} has stateful recurrent layers, whose batch size is fixed, but each example is "
            f"measured alone. Build it with stateful=False or a batch size of 1, and copy the weights."
        )
    return tensors


def _examples(tensors: Structure) -> list[Structure]:
    """Return the inputs of a model for each example."""

    def select(index: int) -> Structure:
        return keras.tree.map_structure(lambda part: None if part is None else part[index : index + 1], tensors)

    return [select(index) for index in range(length(tensors))]


def _check_model(model: object) -> None:
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
