"""Frobenius and spectral norms of the kernels of residual blocks.

Theorems of both papers concern the norms of residual layers: |||A||| is the largest spectral norm of the layers
(Hardt & Ma, section 2), and the mean Frobenius norm falls with depth (Li et al., Figures 2 and 3).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf._keras_internals import get_graph
from idmatters_tf._keras_types import Tensor
from idmatters_tf._names import make_unique_name
from idmatters_tf.isometry.blocks import Block, residual_blocks
from idmatters_tf.isometry.convolution import ConvolutionOperator
from idmatters_tf.isometry.spectra import spectral_norm
from idmatters_tf.layers import (
    BasicBlock2D,
    LinearResidual,
    ResidualConv2D,
    ResidualDense,
    ScaledResidualConv2D,
    ShortcutUnit,
)

# Layers of a chain whose Lipschitz constant is at most the product of the kernels' norms.
_LINKS = (
    keras.layers.Activation,
    keras.layers.Conv2D,
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.LeakyReLU,
    keras.layers.ReLU,
)


def applied_kernel(layer: keras.layers.Layer) -> Tensor:
    """Return the kernel that a layer applies to its inputs. For `ScaledConv2D` it is the kernel times the gains."""
    return getattr(layer, "applied_kernel", layer.kernel)  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(frozen=True)
class KernelNorms:
    """Norms of one kernel.

    Attributes:
        frobenius: root of the sum of squares.
        spectral: largest singular value of the matrix, or of the convolution as a linear map between images with zero
            padding ("same").
    """

    frobenius: float
    spectral: float


def kernel_norms(model: keras.Model, tolerance: float = 1e-3) -> dict[str, list[KernelNorms]]:
    """Return the norms of the kernels of each residual block of a built model, in order of application.

    Args:
        model: a `keras.Model`. With convolutional blocks it must be functional or Sequential, of known image size.
        tolerance: tolerance of the spectral norms of convolutions.

    Returns:
        Dict from the names of the layers `ResidualConv2D`, `ScaledResidualConv2D` (kernels times gains),
        `BasicBlock2D`, `LinearResidual`, `ResidualDense` and `ShortcutUnit` to lists of `KernelNorms`. Sums x + f(x) in
        a functional model, where f has `Dense` layers and plain `Conv2D` layers only, are included by the name of the
        sum. Layers of a nested model are "nested/layer". Empty without such blocks.

    Raises:
        ValueError: if the image size of a convolutional block is unknown.
    """
    norms = {}
    for name, layer in _layers(model).items():
        if isinstance(layer, (ResidualConv2D, ScaledResidualConv2D, BasicBlock2D)):
            size, reduced = _image_sizes(name, layer)
            first, second = applied_kernel(layer.conv1), applied_kernel(layer.conv2)
            norms[name] = [
                _convolution_norms(first, size, layer.strides, tolerance),
                _convolution_norms(second, reduced, 1, tolerance),
            ]
        elif isinstance(layer, (LinearResidual, ResidualDense, ShortcutUnit)):
            norms[name] = [_matrix_norms(kernel) for kernel in _dense_kernels(layer)]
    blocks = residual_blocks(model)
    sums = _residual_sums(blocks)
    if sums:
        found = norms | {
            name: [_call_norms(call, tolerance) for call in _weighted_calls(block)] for name, block in sums.items()
        }
        # In the order of execution, which `model.layers` does not have.
        order = [block.name for block in blocks]
        norms = {name: found[name] for name in [*order, *found] if name in found}
    return norms


def _residual_sums(blocks: Iterable[Block]) -> dict[str, Block]:
    """Return the sums x + f(x) among blocks by name; f has kernels of `Dense` and plain `Conv2D` layers only."""
    return {
        block.name: block
        for block in blocks
        if block.layer is None
        if (calls := _weighted_calls(block)) and all(_is_plain(call.operation) for call in calls)
    }


def _weighted_calls(block: Block) -> list[Any]:
    """Return the calls of layers that have weights of two or more dimensions."""
    return [call for call in block.calls if any(len(w.shape) > 1 for w in getattr(call.operation, "weights", ()))]


def _is_plain(layer: Any) -> bool:
    if isinstance(layer, keras.layers.Conv2D):
        plain = layer.groups == 1 and tuple(layer.dilation_rate) == (1, 1)
        return plain and layer.padding in ("same", "valid")
    return isinstance(layer, keras.layers.Dense)


def _call_norms(call: Any, tolerance: float) -> KernelNorms:
    kernel = applied_kernel(call.operation)
    if isinstance(call.operation, keras.layers.Dense):
        return _matrix_norms(kernel)
    size = _image_size(call.inputs[0], call.operation)
    if None in size:
        raise _unknown_size(call.name)
    return _convolution_norms(kernel, size, call.operation.strides, tolerance, call.operation.padding)


def _convolution_norms(
    kernel: Tensor, size: tuple[int, int], strides: int | Sequence[int], tolerance: float, padding: str = "same"
) -> KernelNorms:
    weights = np.asarray(ops.convert_to_numpy(kernel), np.float64)
    operator = ConvolutionOperator(weights, size, strides, padding)
    return KernelNorms(float(np.linalg.norm(weights)), operator.spectral_norm(tolerance))


def _matrix_norms(kernel: Tensor) -> KernelNorms:
    weights = np.asarray(ops.convert_to_numpy(kernel), np.float64)
    return KernelNorms(float(np.linalg.norm(weights)), spectral_norm(weights))


def _image_sizes(name: str, layer: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (rows, cols) of the images that a block takes and returns."""
    try:
        found = _image_size(layer.input, layer), _image_size(layer.output, layer)
    except AttributeError:
        # The layer is part of a subclassed model.
        found: Any = ((None, None), (None, None))
    if None in (*found[0], *found[1]):
        raise _unknown_size(name)
    return found


def _image_size(tensor: Any, layer: Any) -> tuple[int, int]:
    """Return (rows, cols) of the images in a symbolic tensor."""
    rows = 2 if layer.data_format == "channels_first" else 1
    return tuple(tensor.shape[rows : rows + 2])


def _unknown_size(name: str) -> ValueError:
    return ValueError(
        f"The norms of {name!r} depend on the size of its images, which is unknown. Build a functional or Sequential "
        f"model that starts with keras.Input((rows, cols, channels))."
    )


def block_norms(model: keras.Model, tolerance: float = 1e-3) -> dict[str, dict[str, float]]:
    """Return the mean Frobenius norm and the largest spectral norm of each residual block of a built model.

    Args:
        model: see `kernel_norms`.
        tolerance: see `kernel_norms`.

    Returns:
        Dict from block names to dicts with `frobenius`, the mean Frobenius norm of the kernels, and `spectral`, their
        largest spectral norm as convolutions of the block's image size. Empty without such blocks.
    """
    return {name: summarize_norms(norms) for name, norms in kernel_norms(model, tolerance).items()}


def summarize_norms(norms: Sequence[KernelNorms]) -> dict[str, float]:
    """Return the entry of one block in `block_norms`."""
    return {
        "frobenius": float(np.mean([kernel.frobenius for kernel in norms])),
        "spectral": float(np.max([kernel.spectral for kernel in norms])),
    }


def branch_bounds(model: keras.Model, norms: Mapping[str, Sequence[KernelNorms]]) -> dict[str, float]:
    """Return a Lipschitz constant of each residual branch: the product of the spectral norms of its kernels.

    It is valid for activations of slope at most 1, such as ReLU and tanh. For `LinearResidual` it is ||A||. For linear
    residual networks the largest one is tau = |||A||| of Hardt & Ma's section 2. For other networks a value below 1
    implies that each block x + f(x) is invertible.

    Args:
        model: model with the blocks.
        norms: result of `kernel_norms`.

    Returns:
        Dict from block names to bounds. NaN for blocks with batch normalization, whose scale is independent of the
        kernels, for blocks without a skip, and for sums x + f(x) unless f is a chain of `Dense`, `Conv2D`,
        `Activation`, `ReLU` and `Dropout` layers.
    """
    layers, sums = _layers(model), _residual_sums(residual_blocks(model))
    return {
        name: _sum_bound(sums[name], kernels) if name in sums else _bound(layers[name], kernels)
        for name, kernels in norms.items()
    }


def _layers(model: keras.Model, prefix: str = "") -> dict[str, Any]:
    """Return all layers by name. Layers of nested models are "nested/layer"."""
    found: dict[str, Any] = {}
    for layer in model.layers:
        # Subclassed models may contain layers of equal names.
        name = make_unique_name(prefix + layer.name, found)
        found[name] = layer
        if get_graph(layer) is not None:
            found |= _layers(layer, f"{name}/")
    return found


def _bound(layer: Any, norms: Sequence[KernelNorms]) -> float:
    if getattr(layer, "norm", None) is not None or not _has_skip(layer):
        return float("nan")
    scale = getattr(layer, "scale", None)
    factor = 1.0 if scale is None else abs(float(np.asarray(ops.convert_to_numpy(scale))))
    return factor * float(np.prod([kernel.spectral for kernel in norms]))


def _sum_bound(block: Block, norms: Sequence[KernelNorms]) -> float:
    end = id(block.start)
    for call in block.calls[:-1]:
        if [id(tensor) for tensor in call.inputs] != [end] or not isinstance(call.operation, _LINKS):
            return float("nan")
        end = id(call.outputs[0])
    return float(np.prod([kernel.spectral for kernel in norms]))


def _has_skip(layer: Any) -> bool:
    return getattr(layer, "shortcut", True) not in (False, "none") and getattr(layer, "skip", True) is not False


def _dense_kernels(layer: LinearResidual | ResidualDense | ShortcutUnit) -> list[Any]:
    if isinstance(layer, LinearResidual):
        return [layer.kernel]
    return [layer.U, layer.V] if isinstance(layer, ResidualDense) else list(layer.kernels)
