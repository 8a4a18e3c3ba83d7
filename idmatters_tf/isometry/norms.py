"""Frobenius and spectral norms of the kernels of residual blocks.

Theorems of both papers concern the norms of residual layers: |||A||| is the largest spectral norm of the layers
(Hardt & Ma, section 2), and the mean Frobenius norm falls with depth (Li et al., Figures 2 and 3).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf.isometry.blocks import RESIDUAL_LAYERS, Block, residual_blocks
from idmatters_tf.isometry.convolution import ConvolutionOperator
from idmatters_tf.layers import LinearResidual, ResidualDense, ShortcutUnit
from idmatters_tf.spectra import spectral_norm

# Layers of a chain whose Lipschitz constant is at most the product of the kernels' norms.
_LINKS = (
    keras.layers.Activation,
    keras.layers.Conv2D,
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.LeakyReLU,
    keras.layers.ReLU,
)


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
    """Return the norms of the kernels of each residual block of a built model, in order of execution.

    Args:
        model: functional or Sequential model. With convolutional blocks its image size must be known.
        tolerance: tolerance of the spectral norms of convolutions.

    Returns:
        Dict from the names of the blocks, those of `find_blocks`, to lists of `KernelNorms`: the layers
        `ResidualConv2D`, `ScaledResidualConv2D` (kernels times gains), `BasicBlock2D`, `LinearResidual`,
        `ResidualDense` and `ShortcutUnit`, and sums x + f(x) where f has `Dense` layers and plain `Conv2D` layers only.
        Layers of a nested model are "nested/layer". Empty without such blocks.

    Raises:
        ValueError: if the image size of a convolutional block is unknown.
    """
    return {
        block.name: [_kernel_norms(kernel, tolerance) for kernel in kernels]
        for block in residual_blocks(model)
        if (kernels := _kernels(block))
    }


def _kernel_norms(kernel: Any, tolerance: float) -> KernelNorms:
    """Return the norms of a matrix or a `ConvolutionOperator`."""
    entries = kernel.kernel if isinstance(kernel, ConvolutionOperator) else kernel
    return KernelNorms(float(np.linalg.norm(entries)), spectral_norm(kernel, tolerance))


def _kernels(block: Block) -> list[Any]:
    """Return the kernels of a block as matrices and convolutions; none if it has layers of other kinds."""
    layer = block.layer
    if layer is None:
        calls = _weighted_calls(block)
        if not all(_is_plain(call.operation) for call in calls):
            return []
        return [
            _matrix(call.operation.kernel)
            if isinstance(call.operation, keras.layers.Dense)
            else _convolution(block, call.operation, call.inputs[0], call.operation.padding)
            for call in calls
        ]
    if isinstance(layer, LinearResidual):
        return [_matrix(layer.kernel)]
    if isinstance(layer, ResidualDense):
        return [_matrix(layer.U), _matrix(layer.V)]
    if isinstance(layer, ShortcutUnit):
        return [_matrix(kernel) for kernel in layer.kernels]
    if not isinstance(layer, RESIDUAL_LAYERS):
        return []
    return [_convolution(block, layer.conv1, block.start), _convolution(block, layer.conv2, block.end)]


def _weighted_calls(block: Block) -> list[Any]:
    """Return the calls of layers that have weights of two or more dimensions."""
    return [call for call in block.calls if any(len(w.shape) > 1 for w in getattr(call.operation, "weights", ()))]


def _is_plain(layer: Any) -> bool:
    if isinstance(layer, keras.layers.Conv2D):
        plain = layer.groups == 1 and tuple(layer.dilation_rate) == (1, 1)
        return plain and layer.padding in ("same", "valid")
    return isinstance(layer, keras.layers.Dense)


def _matrix(kernel: Any) -> Any:
    return np.asarray(ops.convert_to_numpy(kernel), np.float64)


def _convolution(block: Block, layer: Any, images: Any, padding: str = "same") -> ConvolutionOperator:
    """Return a layer's convolution of symbolic images, with the gains of `ScaledConv2D`."""
    rows = 2 if layer.data_format == "channels_first" else 1
    size = tuple(images.shape[rows : rows + 2])
    if None in size:
        raise ValueError(
            f"The norms of {block.name!r} depend on the size of its images, which is unknown. Build a functional or "
            f"Sequential model that starts with keras.Input((rows, cols, channels))."
        )
    return ConvolutionOperator(_matrix(getattr(layer, "applied_kernel", layer.kernel)), size, layer.strides, padding)


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
    blocks = {block.name: block for block in residual_blocks(model)}
    return {
        name: _factor(blocks[name]) * float(np.prod([k.spectral for k in kernels])) for name, kernels in norms.items()
    }


def _factor(block: Block) -> float:
    """Return the factor of a branch beside its kernels; NaN if the kernels do not bound the branch."""
    layer = block.layer
    if layer is not None:
        has_skip = getattr(layer, "shortcut", True) not in (False, "none") and getattr(layer, "skip", True) is not False
        if getattr(layer, "norm", None) is not None or not has_skip:
            return float("nan")
        scale = getattr(layer, "scale", None)
        return 1.0 if scale is None else abs(float(np.asarray(ops.convert_to_numpy(scale))))
    end = id(block.start)
    for call in block.calls[:-1]:
        if [id(tensor) for tensor in call.inputs] != [end] or not isinstance(call.operation, _LINKS):
            return float("nan")
        end = id(call.outputs[0])
    return 1.0
