"""Kernels of Keras layers as matrices that map inputs to outputs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from idmatters_tf._keras_internals import get_graph, layers_within, own_trainable_variables, producer
from idmatters_tf._keras_types import Tensor
from idmatters_tf.expressivity import ResidualDenseStack
from idmatters_tf.layers import LinearResidual, ResidualDense, ShortcutUnit

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
_TRANSPOSES = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)
_SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
# Gates of recurrent cells, whose kernels are side by side.
_GATES = {keras.layers.SimpleRNNCell: 1, keras.layers.GRUCell: 3, keras.layers.LSTMCell: 4}


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

    @property
    def _order(self) -> tuple[int, ...]:
        return (*self.batch, *self.rows, *self.columns)


def layer_kernels(layer: keras.layers.Layer, per_head: bool = False) -> list[tuple[keras.Variable, KernelMatrices]]:
    """Return the kernels of a layer, without those of layers inside of it, and their matrices.

    The rules are listed in `docs/reference/api/layers.md`. Kernels with a single output are left out.

    Args:
        layer: a built layer.
        per_head: If True, each head of an attention projection is a matrix: the first of two contracted or new axes of
            an `EinsumDense`.
    """
    found = [(variable, _matrices(layer, variable, per_head)) for variable in own_trainable_variables(layer)]
    return [(variable, view) for variable, view in found if view is not None and view.size[2] > 1]


def _matrices(layer: Any, variable: keras.Variable, per_head: bool) -> KernelMatrices | None:
    shape = tuple(variable.shape)
    name = variable.name
    last = len(shape) - 1
    others = tuple(range(last))
    # The experts of KerasHub's layers are (experts, inputs, outputs).
    if len(shape) == 3 and (isinstance(layer, ResidualDenseStack) or type(layer).__name__.endswith("Experts")):
        return KernelMatrices(shape, (1,), (2,), (0,))
    if isinstance(layer, (LinearResidual, ResidualDense, ShortcutUnit)) and len(shape) == 2:
        return KernelMatrices(shape, (0,), (1,))
    if isinstance(layer, _SEPARABLE):
        return KernelMatrices(shape, others, (last,)) if name == "pointwise_kernel" else None
    gates = next((count for cell, count in _GATES.items() if isinstance(layer, cell)), None)
    if gates is not None and name in ("kernel", "recurrent_kernel"):
        return KernelMatrices((shape[0], gates, shape[1] // gates), (0,), (2,), (1,))
    if name != "kernel":
        return None
    if isinstance(layer, keras.layers.Dense):
        return KernelMatrices(shape, (0,), (1,))
    if isinstance(layer, keras.layers.EinsumDense):
        return _einsum(layer.equation, shape, per_head)
    if isinstance(layer, _TRANSPOSES):
        return KernelMatrices(shape, (last,), others)
    if isinstance(layer, _CONVOLUTIONS):
        return KernelMatrices((*shape[:-1], layer.groups, shape[-1] // layer.groups), others, (last + 1,), (last,))
    return None


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
        ends: list[Any] = [layer for layer in model.layers if any(map(layer_kernels, layers_within(layer)))][-1:]
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


def _last_operation(output: Any) -> Any:
    """Return the last operation before a symbolic tensor that has weights or several inputs."""
    node = producer(output)
    while not node.is_input and not getattr(node.operation, "weights", []) and len(node.input_tensors) == 1:
        node = producer(node.input_tensors[0])
    return node.operation
