"""Kernels of Keras layers as matrices that map inputs to outputs."""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
from keras import ops

from idmatters_tf._keras_internals import get_graph, layers_within, own_trainable_variables, producer
from idmatters_tf._keras_types import Tensor

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
_TRANSPOSES = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)
_DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
_REMEDY = "Pass the model before training: `optimizer.build_for(model)`."


@dataclasses.dataclass(frozen=True)
class KernelMatrices:
    """Axes of a kernel that form the rows and columns of one or several matrices.

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

    def divide(self, parts: int) -> "KernelMatrices":
        """Return the matrices with the last axis of the outputs divided into equal parts, each in a matrix of its own.

        Raises:
            ValueError: if the size of the axis is not a multiple of `parts`.
        """
        axis = self.columns[-1]
        if self.shape[axis] % parts:
            raise ValueError(f"an axis of {self.shape[axis]} outputs, which cannot be divided into {parts} equal parts")
        shape = (*self.shape[:axis], parts, self.shape[axis] // parts, *self.shape[axis + 1 :])
        groups = (self.rows, self.columns, self.batch)
        rows, columns, batch = (tuple(index + (index >= axis) for index in group) for group in groups)
        return KernelMatrices(shape, rows, columns, (*batch, axis))

    def split(self, kernel: Tensor) -> Tensor:
        """Return the matrices of a kernel, (number of matrices, rows, columns)."""
        return ops.reshape(ops.transpose(ops.reshape(kernel, self.shape), self._order), self.size)

    def join(self, matrices: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the kernel of the given shape from its matrices. Inverse of `split`."""
        order = self._order
        split: Any = ops.reshape(matrices, tuple(self.shape[axis] for axis in order))
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


# Matrices by the `id` of variables, and the `id` of the variables of the last layer.
Found: TypeAlias = tuple[dict[int, KernelMatrices], set[int]]


def find_kernels_by_layer(model: keras.Model, per_head: bool = False) -> Found:
    """Return the matrices of the kernels of a model's layers, and the variables of its last layers.

    The rules are listed in `docs/reference/api/layers.md`. Kernels with a single output are left out.

    Args:
        model: a built model.
        per_head: If True, each head of an attention projection is a matrix: the first of two contracted or new axes of
            an `EinsumDense`.
    """
    found: dict[int, KernelMatrices] = {}
    for layer in layers_within(model):
        variables = own_trainable_variables(layer)
        shapes = {variable.name: tuple(variable.shape) for variable in variables}
        for variable in variables:
            matrices = _matrices_of_layer(layer, variable.name, shapes, per_head)
            if matrices is not None and matrices.size[2] > 1:
                found[id(variable)] = matrices
    return found, {id(variable) for layer in last_layers(model) for variable in own_trainable_variables(layer)}


def find_kernels_by_path(variables: Sequence[keras.Variable], per_head: bool, excluded: Collection[int]) -> Found:
    """Return the matrices of kernels by their paths and shapes, and the variables beside the last kernel.

    Args:
        variables: trainable variables in the order of their model.
        per_head: see `find_kernels_by_layer`.
        excluded: `id` of variables whose matrices are not needed.

    Raises:
        ValueError: if paths and shapes do not determine the matrices, or the last layer.
    """
    found: dict[int, KernelMatrices] = {}
    layers: dict[str, list[keras.Variable]] = {}
    for variable in variables:
        layers.setdefault(variable.path.rpartition("/")[0], []).append(variable)
    last: set[int] = set()
    for path, members in layers.items():
        shapes = {variable.name: tuple(variable.shape) for variable in members}
        for variable in members:
            matrices = _matrices(variable.name, shapes)
            if matrices is None and variable.name == "kernel" and id(variable) not in excluded:
                matrices = _matrices_by_bias(path, shapes, per_head)
            if matrices is not None and matrices.size[2] > 1:
                found[id(variable)] = matrices
            if matrices is not None or (variable.name == "kernel" and id(variable) in excluded):
                last = {id(member) for member in members}
    tied = next((variable.path for variable in variables if variable.name.endswith("embeddings")), None)
    if found and tied is not None:
        raise ValueError(
            f"Muon treats the last layer differently, and {tied!r} may be the last layer as well as the first one. "
            f"{_REMEDY}"
        )
    return found, last


def _matrices_of_layer(
    layer: Any, name: str, shapes: Mapping[str, tuple[int, ...]], per_head: bool
) -> KernelMatrices | None:
    if name != "kernel" or not isinstance(layer, (*_CONVOLUTIONS, *_TRANSPOSES, keras.layers.EinsumDense)):
        return None if isinstance(layer, _DEPTHWISE) else _matrices(name, shapes)
    shape = shapes[name]
    last = len(shape) - 1
    others = tuple(range(last))
    if isinstance(layer, keras.layers.EinsumDense):
        return _einsum(layer.equation, shape, per_head)
    if isinstance(layer, _TRANSPOSES):
        return KernelMatrices(shape, (last,), others)
    if layer.groups == 1:
        return KernelMatrices(shape, others, (last,))
    return KernelMatrices((*shape[:-1], layer.groups, shape[-1] // layer.groups), others, (last + 1,), (last,))


def _matrices(name: str, shapes: Mapping[str, tuple[int, ...]]) -> KernelMatrices | None:
    """Return the matrices of a variable by its name and the shapes of all variables of its layer."""
    shape = shapes[name]
    if (recurrent := shapes.get("recurrent_kernel")) is not None:
        # The kernels of gates are side by side.
        if name not in ("kernel", "recurrent_kernel") or len(recurrent) != 2:
            return None
        gates, rest = divmod(recurrent[1], recurrent[0])
        if rest or shapes.get("kernel", recurrent)[1] != recurrent[1]:
            return None
        return KernelMatrices((shape[0], gates, shape[1] // gates), (0,), (2,), (1,))
    if len(shape) == 2 and (re.fullmatch("kernel[0-9]*", name) or _are_factors(name, shapes)):
        return KernelMatrices(shape, (0,), (1,))
    if name == "pointwise_kernel":
        return KernelMatrices(shape, tuple(range(len(shape) - 1)), (len(shape) - 1,))
    return KernelMatrices(shape, (1,), (2,), (0,)) if name != "kernel" and _is_expert(shape, shapes.values()) else None


def _are_factors(name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return True for U, (features, units), and V, (units, features), of a residual branch."""
    return name in ("U", "V") and "U" in shapes and shapes["U"] == shapes.get("V", ())[::-1]


def _is_expert(shape: tuple[int, ...], shapes: Iterable[tuple[int, ...]]) -> bool:
    """Return True for a bank (experts, inputs, outputs) in a layer where the outputs of a bank are inputs of another.

    Tokens and position embeddings of shape (1, tokens, features) are no banks.
    """
    banks = [other for other in shapes if len(other) == 3 and other[0] == shape[0] and min(other[1:]) > 1]
    return shape in banks and any(
        one[2] == other[1] for index, one in enumerate(banks) for other in banks[:index] + banks[index + 1 :]
    )


def _matrices_by_bias(path: str, shapes: Mapping[str, tuple[int, ...]], per_head: bool) -> KernelMatrices | None:
    """Return the matrices of a `kernel` with three or more axes, whose last axes are those of the bias.

    Without a bias, a kernel with four or more axes is that of a convolution.

    Raises:
        ValueError: if the kernel may belong to layers with different matrices.
    """
    shape = shapes["kernel"]
    if len(shape) < 3 or "recurrent_kernel" in shapes:
        return None
    if "depthwise" in path and shape[-1] == 1:
        return None
    bias = shapes.get("bias", shape[-1:] if len(shape) > 3 else ())
    inputs = len(shape) - len(bias)
    is_known = bias and shape[inputs:] == bias and not (per_head and len(shape) == 3)
    if not is_known or "depthwise" in path or "transpose" in path:
        raise ValueError(
            f"Muon cannot tell the inputs and outputs of {path}/kernel, of shape {shape}, without its layer. {_REMEDY}"
        )
    return KernelMatrices(shape, tuple(range(inputs)), tuple(range(inputs, len(shape))))


def _einsum(equation: str, shape: tuple[int, ...], per_head: bool) -> KernelMatrices | None:
    """Return the matrices of an `EinsumDense`; None if it maps no input axis to another one."""
    terms, outputs = equation.replace(" ", "").split("->")
    inputs, kernel = terms.split(",")
    batch = [axis for axis in kernel if axis in inputs and axis in outputs]
    rows = [axis for axis in inputs if axis in kernel and axis not in batch]
    columns = [axis for axis in outputs if axis in kernel and axis not in batch]
    if not rows or not columns:
        return None
    for axes in (rows, columns) if per_head else ():
        if len(axes) == 2:
            batch.append(axes.pop(0))
    return KernelMatrices(shape, *(tuple(map(kernel.index, axes)) for axes in (rows, columns, batch)))


def last_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that compute the outputs of a model, apart from activations, pooling and reshaping.

    A layer that contains other layers, such as a block, and an operation with several inputs are not such layers. In a
    model without a graph it is the last layer with a kernel, in the order in which the model's attributes were set.
    """
    graph = get_graph(model)
    if graph is None:
        ends: list[Any] = [layer for layer in model.layers if any(map(_has_kernels, layers_within(layer)))][-1:]
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
    shapes = {variable.name: tuple(variable.shape) for variable in own_trainable_variables(layer)}
    return any(_matrices_of_layer(layer, name, shapes, False) is not None for name in shapes)


def _last_operation(output: Any) -> Any:
    """Return the last operation before a symbolic tensor that has weights or several inputs."""
    node = producer(output)
    while not node.is_input and not getattr(node.operation, "weights", []) and len(node.input_tensors) == 1:
        node = producer(node.input_tensors[0])
    return node.operation
