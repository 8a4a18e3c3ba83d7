"""Kernels of Keras layers as matrices that map inputs to outputs."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
from keras import ops

from idmatters_tf._keras_internals import get_graph, layers_within, own_trainable_variables, producer
from idmatters_tf._keras_types import Tensor
from idmatters_tf.layers import LinearResidual, ResidualDense, ShortcutUnit


@dataclasses.dataclass(frozen=True)
class KernelMatrices:
    """Axes of a kernel that form the rows and columns of one or several matrices.

    A fused projection of queries, keys and values, `(features, 3 * features)`, is three matrices with
    `KernelMatrices((features, 3, features), rows=(0,), columns=(2,), batch=(1,))`.

    Attributes:
        shape: shape to which the kernel is reshaped first, with one axis for each part below.
        rows: axes of the inputs.
        columns: axes of the outputs.
        batch: axes of independent matrices, such as groups of a convolution.
    """

    shape: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    batch: tuple[int, ...] = ()

    @property
    def size(self) -> tuple[int, int, int]:
        """(number of matrices, rows, columns)."""
        parts = (self.batch, self.rows, self.columns)
        count, rows, columns = (math.prod(self.shape[axis] for axis in axes) for axes in parts)
        return count, rows, columns

    def split(self, kernel: Tensor) -> Tensor:
        """Return the matrices of a kernel, (number of matrices, rows, columns)."""
        return ops.reshape(ops.transpose(ops.reshape(kernel, self.shape), self._order), self.size)

    def join(self, matrices: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the kernel of the given shape from its matrices. Inverse of `split`."""
        order = self._order
        split: Tensor = ops.reshape(matrices, tuple(self.shape[axis] for axis in order))
        return ops.reshape(ops.transpose(split, tuple(order.index(axis) for axis in range(len(order)))), shape)

    def get_config(self) -> dict[str, list[int]]:
        """Return the axes as plain data."""
        return {name: list(axes) for name, axes in dataclasses.asdict(self).items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Sequence[int]]) -> "KernelMatrices":
        """Return the matrices from the result of `get_config`."""
        return cls(**{name: tuple(axes) for name, axes in config.items()})

    @property
    def _order(self) -> tuple[int, ...]:
        return (*self.batch, *self.rows, *self.columns)


# Function of a layer and one of its own variables. None: the variable is not used as a matrix.
Rule: TypeAlias = Callable[[Any, keras.Variable], KernelMatrices | None]


def layer_matrices(layer: keras.layers.Layer, variable: keras.Variable) -> KernelMatrices | None:
    """Return the matrices of a layer's variable by the kind of the layer, the rule of `Muon` by default.

    The kinds are listed in `docs/reference/api/layers.md`. A function of one's own may call this one for other layers.

    Args:
        layer: a built layer.
        variable: a trainable variable of the layer itself.

    Returns:
        `KernelMatrices`, or None for biases, gains, embeddings, and layers of other kinds.
    """
    rule = next((rule for kinds, rule in _RULES if isinstance(layer, kinds)), None)
    return None if rule is None else rule(layer, variable)


def rank_matrices(variables: Sequence[keras.Variable]) -> list[KernelMatrices | None]:
    """Return the matrices of variables by their ranks, without their layers.

    Variables with two, four or more axes map all axes but the last to the last one, except for the last of them, which
    belongs to the last layer.

    Raises:
        ValueError: a variable has three axes, as those of 1-D convolutions and projections of attention.
    """
    ranks = [len(variable.shape) for variable in variables]
    last = max((index for index, rank in enumerate(ranks) if rank > 1), default=None)
    unknown = [v for index, (v, rank) in enumerate(zip(variables, ranks, strict=True)) if rank == 3 and index != last]
    if unknown:
        raise ValueError(
            f"Muon cannot know the inputs and outputs of {len(unknown)} kernels with three axes, such as "
            f"{unknown[0].path!r} of shape {tuple(unknown[0].shape)}. Pass the model before training: "
            f"`optimizer.build_for(model)`."
        )
    kernels = [index != last and rank > 1 for index, rank in enumerate(ranks)]
    return [_flat(variable) if kernel else None for variable, kernel in zip(variables, kernels, strict=True)]


def find_matrices(model: keras.Model, rule: Rule) -> dict[int, KernelMatrices]:
    """Return the matrices of a model's kernels by the `id` of the variables, without those of its last layers.

    Raises:
        ValueError: if a rule returns a shape that is not that of the variable.
    """
    last = {id(layer) for layer in last_layers(model)}
    found: dict[int, KernelMatrices] = {}
    for layer in layers_within(model):
        for variable in own_trainable_variables(layer) if id(layer) not in last else ():
            matrices = rule(layer, variable)
            if matrices is None:
                continue
            shape = tuple(variable.shape)
            axes = sorted((*matrices.rows, *matrices.columns, *matrices.batch))
            if math.prod(matrices.shape) != math.prod(shape) or axes != list(range(len(matrices.shape))):
                raise ValueError(
                    f"Argument `matrices` must return each axis of a shape with {math.prod(shape)} entries for "
                    f"{variable.path!r}, of shape {shape}. Received: {matrices}"
                )
            # The step of a kernel with one output is a normalized gradient.
            if matrices.size[2] > 1:
                found[id(variable)] = matrices
    return found


def _flat(variable: keras.Variable) -> KernelMatrices | None:
    shape = tuple(variable.shape)
    matrices = KernelMatrices(shape, tuple(range(len(shape) - 1)), (len(shape) - 1,))
    return matrices if shape[-1] > 1 else None


def _plain(*names: str) -> Rule:
    """Return a rule for attributes whose last axis is the outputs."""
    return lambda layer, variable: _flat(variable) if _is_one_of(layer, variable, names) else None


def _is_one_of(layer: object, variable: keras.Variable, names: Sequence[str]) -> bool:
    # With LoRA `layer.kernel` is a sum, and the variable behind it is not trained.
    return any(getattr(layer, name, None) is variable for name in names)


def _gates(count: int) -> Rule:
    """Return a rule for the cell of a recurrent layer, whose kernels of several gates are side by side."""

    def rule(layer: object, variable: keras.Variable) -> KernelMatrices | None:
        if not _is_one_of(layer, variable, ("kernel", "recurrent_kernel")):
            return None
        rows, columns = variable.shape
        return KernelMatrices((rows, count, columns // count), (0,), (2,), (1,))

    return rule


def _convolution(
    layer: keras.layers.Conv1D | keras.layers.Conv2D | keras.layers.Conv3D, variable: keras.Variable
) -> KernelMatrices | None:
    if variable is not layer.kernel:
        return None
    *others, last = variable.shape
    if layer.groups == 1:
        return _flat(variable)
    inputs = tuple(range(len(others)))
    return KernelMatrices((*others, layer.groups, last // layer.groups), inputs, (len(others) + 1,), (len(others),))


def _transposed(
    layer: keras.layers.Conv1DTranspose | keras.layers.Conv2DTranspose | keras.layers.Conv3DTranspose,
    variable: keras.Variable,
) -> KernelMatrices | None:
    last = len(variable.shape) - 1
    return KernelMatrices(tuple(variable.shape), (last,), tuple(range(last))) if variable is layer.kernel else None


def _einsum(layer: keras.layers.EinsumDense, variable: keras.Variable) -> KernelMatrices | None:
    """Return the matrices of an `EinsumDense`; None if it maps no input axis to another one."""
    if variable is not layer.kernel:
        return None
    terms, outputs = layer.equation.replace(" ", "").split("->")
    inputs, kernel = terms.split(",")
    batch = [axis for axis in kernel if axis in inputs and axis in outputs]
    rows = [axis for axis in inputs if axis in kernel and axis not in batch]
    columns = [axis for axis in outputs if axis in kernel and axis not in batch]
    if not rows or not columns:
        return None
    return KernelMatrices(tuple(variable.shape), *(tuple(map(kernel.index, axes)) for axes in (rows, columns, batch)))


_RULES: tuple[tuple[type | tuple[type, ...], Rule], ...] = (
    ((keras.layers.Dense, LinearResidual), _plain("kernel")),
    (keras.layers.EinsumDense, _einsum),
    ((keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D), _convolution),
    ((keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose), _transposed),
    ((keras.layers.SeparableConv1D, keras.layers.SeparableConv2D), _plain("pointwise_kernel")),
    (keras.layers.LSTMCell, _gates(4)),
    (keras.layers.GRUCell, _gates(3)),
    (keras.layers.SimpleRNNCell, _gates(1)),
    (ResidualDense, _plain("U", "V")),
    (
        ShortcutUnit,
        lambda layer, variable: _flat(variable) if any(variable is each for each in layer.kernels) else None,
    ),
)


def are_equal_paths(a: str, b: str) -> bool:
    """Return True for equal paths of variables; one may lack the name of the model, as in a loaded `Sequential`."""
    return a in (b, b.partition("/")[2]) or b == a.partition("/")[2]


def last_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that compute the outputs of a model, apart from activations, pooling and reshaping.

    A layer that contains other layers, such as a block, and an operation with several inputs are not such layers. In a
    model without a graph it is the last layer with a kernel, in the order in which the model's attributes were set.
    """
    graph = get_graph(model)
    if graph is None:
        ends: Sequence[keras.Operation] = [
            layer for layer in model.layers if any(map(_has_kernels, layers_within(layer)))
        ][-1:]
    else:
        ends = [_last_operation(output) for output in graph.outputs]
    found: list[keras.layers.Layer] = []
    for operation in ends:
        while isinstance(operation, keras.layers.Wrapper):
            operation = operation.layer
        if isinstance(operation, keras.Model):
            found += last_layers(operation)
        elif isinstance(operation, keras.layers.Layer) and len(layers_within(operation)) == 1:
            found.append(operation)
    return found


def _has_kernels(layer: keras.layers.Layer) -> bool:
    return any(layer_matrices(layer, variable) is not None for variable in own_trainable_variables(layer))


def _last_operation(output: keras.KerasTensor) -> keras.Operation:
    """Return the last operation before a symbolic tensor that has weights or several inputs."""
    node = producer(output)
    while not node.is_input and not getattr(node.operation, "weights", []) and len(node.input_tensors) == 1:
        node = producer(node.input_tensors[0])
    return node.operation
