"""Frobenius and spectral norms of the kernels of residual blocks.

Theorems of both papers concern the norms of residual layers: |||A||| is the largest spectral norm of the layers
(Hardt & Ma, section 2), and the mean Frobenius norm falls with depth (Li et al., Figures 2 and 3).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf._keras_internals import Call
from idmatters_tf._keras_types import Options, Tensor
from idmatters_tf.isometry.blocks import RESIDUAL_LAYERS, Block, residual_blocks
from idmatters_tf.isometry.operators import JacobianOperator
from idmatters_tf.layers import LinearResidual, ResidualDense, ShortcutUnit
from idmatters_tf.spectra import spectral_norm

# A matrix, or the kernel of a convolution with its operator.
Kernel: TypeAlias = NDArray[np.float64] | tuple[NDArray[np.float64], JacobianOperator]


@dataclasses.dataclass(frozen=True)
class KernelNorms:
    """Norms of one kernel.

    Attributes:
        frobenius: root of the sum of squares.
        spectral: largest singular value of the matrix, or of the convolution as a linear map between images with the
            padding of the layer.
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
        `ResidualDense` and `ShortcutUnit`, and sums x + f(x) whose layers with kernels are `Dense` and `Conv2D` only.
        Layers of a nested model are "nested/layer". Empty without such blocks.

    Raises:
        ValueError: if the image size of a convolutional block is unknown.
    """
    return {
        block.name: [_kernel_norms(kernel, tolerance) for kernel in kernels]
        for block in residual_blocks(model)
        if (kernels := _kernels(block))
    }


def _kernel_norms(kernel: Kernel, tolerance: float) -> KernelNorms:
    """Return the norms of a matrix, or of a pair (kernel, operator) of a convolution."""
    entries, operator = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    return KernelNorms(float(np.linalg.norm(entries)), spectral_norm(operator, tolerance))


def _kernels(block: Block) -> Sequence[Kernel]:
    """Return the kernels of a block as matrices and convolutions; none if it has layers of other kinds."""
    layer = block.layer
    if layer is None:
        calls = _weighted_calls(block)
        if not all(isinstance(call.operation, (keras.layers.Conv2D, keras.layers.Dense)) for call in calls):
            return []
        return [
            _matrix(call.operation.kernel)
            if isinstance(call.operation, keras.layers.Dense)
            else _convolution(block, call.operation, call.inputs[0])
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


def _weighted_calls(block: Block) -> list[Call]:
    """Return the calls of layers that have weights of two or more dimensions."""
    return [call for call in block.calls if any(len(w.shape) > 1 for w in getattr(call.operation, "weights", ()))]


def _matrix(kernel: Tensor) -> NDArray[np.float64]:
    return np.asarray(ops.convert_to_numpy(kernel), np.float64)


def _convolution(block: Block, layer: Any, images: Tensor) -> tuple[NDArray[np.float64], JacobianOperator]:
    """Return the kernel of a layer, with the gains of `ScaledConv2D`, and its convolution of symbolic images."""
    rows = 2 if layer.data_format == "channels_first" else 1
    size = tuple(images.shape[rows : rows + 2])
    if None in size:
        raise ValueError(
            f"The norms of {block.name!r} depend on the size of its images, which is unknown. Build a functional or "
            f"Sequential model that starts with keras.Input((rows, cols, channels))."
        )
    # Kernels may be stored in 16 bits.
    dtype = "float64" if layer.variable_dtype == "float64" else "float32"
    kernel: Tensor = ops.cast(getattr(layer, "applied_kernel", layer.kernel), dtype)
    options: Options = {"strides": layer.strides, "padding": layer.padding, "dilation_rate": layer.dilation_rate}

    def convolve(image: Tensor) -> Tensor:
        return ops.conv(image, kernel, data_format="channels_last", **options)

    images = np.zeros((1, *size, kernel.shape[2] * layer.groups), dtype)
    return _matrix(kernel), JacobianOperator(convolve, images)


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
