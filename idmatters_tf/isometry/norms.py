"""Norms of a network's weights: Frobenius norms, and spectral norms of convolutions as linear maps.

The theorems of both papers speak of the norms of residual layers: |||A||| is the largest spectral norm of the layers
(Hardt & Ma, section 2), the mean Frobenius norm falls with depth (Li et al., Figures 2 and 3).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import scipy.sparse.linalg
from keras import ops
from numpy.typing import NDArray

from idmatters_tf._keras_internals import graph_of
from idmatters_tf._keras_types import Tensor
from idmatters_tf.layers import (
    BasicBlock2D,
    LinearResidual,
    ResidualConv2D,
    ResidualDense,
    ScaledResidualConv2D,
    ShortcutUnit,
)


def applied_kernel(layer: keras.layers.Layer) -> Tensor:
    """What a layer's inputs are multiplied by or convolved with: its kernel, in `ScaledConv2D` times the gains."""
    return getattr(layer, "applied_kernel", layer.kernel)  # pyright: ignore[reportAttributeAccessIssue]


def frobenius_norm(kernel: Tensor) -> float:
    """The root of the sum of squares of a kernel."""
    return float(np.linalg.norm(np.asarray(ops.convert_to_numpy(kernel))))


def spectral_norm(
    kernel: Tensor, size: tuple[int, int] | None = None, strides: int = 1, tolerance: float = 1e-3, seed: int = 0
) -> float:
    """The largest singular value of the linear map that a kernel stands for.

    For a matrix, that of the matrix. For a 2-D convolution, that of the map between whole images (zero padding "same",
    the given stride), not of the reshaped kernel: by Lanczos iterations (ARPACK) on the convolution followed by its
    adjoint, some 20 of them, until the largest singular value is known to the tolerance.

    Args:
        kernel: of shape (inputs, outputs) or (rows, cols, input channels, output channels).
        size: the image's (rows, cols), needed for a convolution.
        strides: the convolution's stride.
        tolerance: relative accuracy; the convolutions themselves are computed in float32.
        seed: of the image that the iterations start from.
    """
    weights = np.asarray(ops.convert_to_numpy(kernel), np.float32)
    if weights.ndim == 2:
        return float(np.linalg.norm(weights, 2))
    if weights.ndim != 4 or size is None:
        raise ValueError(
            "`spectral_norm` takes a matrix, or a 2-D convolution's kernel together with `size`, the image's "
            f"(rows, cols). Received: kernel of shape {weights.shape}, size={size}"
        )
    if not weights.any():
        return 0.0
    squared = _convolution_and_adjoint(weights, (int(size[0]), int(size[1])), strides)
    # NumPy's generator, so that every backend starts from the same image.
    start = np.random.default_rng(seed).standard_normal(squared.shape[0])
    if squared.shape[0] < 3:
        return float(np.sqrt(np.linalg.norm(squared.matmat(np.eye(squared.shape[0])), 2)))
    values = scipy.sparse.linalg.eigsh(squared, k=1, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)
    return float(np.sqrt(max(values[0], 0.0)))


def _convolution_and_adjoint(
    kernel: NDArray[np.float32], size: tuple[int, int], strides: int
) -> scipy.sparse.linalg.LinearOperator:
    """A^T A of the convolution A, on flattened images."""
    # "same" padding written out, so that the transposed convolution is the exact adjoint for every size and stride.
    pads = [_same_padding(n, k, strides) for n, k in zip(size, kernel.shape[:2], strict=True)]
    (top, bottom), (left, right) = pads
    shape = (1, *size, kernel.shape[2])

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        image: Tensor = ops.reshape(ops.convert_to_tensor(vector, dtype="float32"), shape)
        padded = ops.pad(image, [[0, 0], [top, bottom], [left, right], [0, 0]])
        outputs = ops.conv(padded, kernel, strides=strides, padding="valid", data_format="channels_last")
        adjoint: Tensor = ops.conv_transpose(
            outputs, kernel, strides=strides, padding="valid", data_format="channels_last"
        )
        inside: Tensor = adjoint[:, top : top + size[0], left : left + size[1], :]
        return np.ravel(np.asarray(ops.convert_to_numpy(inside), np.float64))

    length = int(np.prod(shape))
    return scipy.sparse.linalg.LinearOperator((length, length), matvec=product, dtype=np.float64)


def _same_padding(size: int, kernel_size: int, strides: int) -> tuple[int, int]:
    total = max((-(-size // strides) - 1) * strides + kernel_size - size, 0)
    return total // 2, total - total // 2


@dataclasses.dataclass(frozen=True)
class KernelNorms:
    """Norms of one kernel.

    Attributes:
        frobenius: the root of the sum of squares.
        spectral: the largest singular value of the linear map, see `spectral_norm`.
    """

    frobenius: float
    spectral: float


def kernel_norms(model: keras.Model, tolerance: float = 1e-3) -> dict[str, list[KernelNorms]]:
    """Norms of the kernels of each residual block of a built model, in the order of their application.

    Args:
        model: a `keras.Model`; with convolutional blocks a functional or Sequential one of known image size, channels
            last.
        tolerance: of the spectral norms of convolutions.

    Returns:
        By the names of the layers `ResidualConv2D`, `ScaledResidualConv2D` (its kernels times their gains),
        `BasicBlock2D`, `LinearResidual`, `ResidualDense` and `ShortcutUnit`; "nested/layer" for those inside of a
        nested model. Empty without such blocks.

    Raises:
        ValueError: where the size of a convolutional block's images is not known.
    """
    norms = {}
    for name, layer in _layers(model):
        if isinstance(layer, (ResidualConv2D, ScaledResidualConv2D, BasicBlock2D)):
            size, reduced = _image_sizes(name, layer)
            first, second = applied_kernel(layer.conv1), applied_kernel(layer.conv2)
            norms[name] = [
                KernelNorms(frobenius_norm(first), spectral_norm(first, size, layer.strides, tolerance)),
                KernelNorms(frobenius_norm(second), spectral_norm(second, reduced, 1, tolerance)),
            ]
        elif isinstance(layer, (LinearResidual, ResidualDense, ShortcutUnit)):
            norms[name] = [
                KernelNorms(frobenius_norm(kernel), spectral_norm(kernel)) for kernel in _dense_kernels(layer)
            ]
    return norms


def _image_sizes(name: str, layer: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rows, cols) of the images that a block takes and returns."""
    try:
        found = tuple(layer.input.shape[1:3]), tuple(layer.output.shape[1:3])
    except AttributeError:
        # Of a model that is a class of its own.
        found: Any = ((None, None), (None, None))
    if None in (*found[0], *found[1]):
        raise ValueError(
            f"The norms of {name!r} as a linear map depend on the size of its images, which is not known. Build a "
            f"functional or Sequential model that begins with keras.Input((rows, cols, channels))."
        )
    return found


def block_norms(model: keras.Model, tolerance: float = 1e-3) -> dict[str, dict[str, float]]:
    """Norms of the kernels of each residual block of a built model.

    Args:
        model, tolerance: see `kernel_norms`.

    Returns:
        A dict from the block's name to a dict with `frobenius`, the mean Frobenius norm of its kernels, and
        `spectral`, their largest spectral norm as convolutions of the block's image size. Empty without such blocks.
    """
    return {name: summary(norms) for name, norms in kernel_norms(model, tolerance).items()}


def summary(norms: Sequence[KernelNorms]) -> dict[str, float]:
    """What `block_norms` says of one block."""
    return {
        "frobenius": float(np.mean([kernel.frobenius for kernel in norms])),
        "spectral": max(kernel.spectral for kernel in norms),
    }


def branch_bounds(model: keras.Model, norms: Mapping[str, Sequence[KernelNorms]]) -> dict[str, float]:
    """By block, a bound on how fast its residual branch can vary: the product of its kernels' spectral norms.

    A Lipschitz constant of the branch for activations of slope 1 at most, such as ReLU and tanh. For `LinearResidual`
    it is ||A|| itself. The largest one is tau = |||A||| of Hardt & Ma's section 2 for linear residual networks; for
    others a value below 1 says that each block x + f(x) is invertible.

    Args:
        model: whose blocks these are.
        norms: what `kernel_norms` returned.

    Returns:
        By the block's name; NaN with batch normalisation, whose scale is not the kernels', and without a skip.
    """
    layers = dict(_layers(model))
    return {name: _bound(layers[name], kernels) for name, kernels in norms.items()}


def _layers(model: keras.Model, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, layer) of all layers, those of nested models as "nested/layer"."""
    for layer in model.layers:
        yield prefix + layer.name, layer
        if graph_of(layer) is not None:
            yield from _layers(layer, f"{prefix}{layer.name}/")


def _bound(layer: Any, norms: Sequence[KernelNorms]) -> float:
    if getattr(layer, "norm", None) is not None or not _has_skip(layer):
        return float("nan")
    scale = getattr(layer, "scale", None)
    factor = 1.0 if scale is None else abs(float(np.asarray(ops.convert_to_numpy(scale))))
    return factor * float(np.prod([kernel.spectral for kernel in norms]))


def _has_skip(layer: Any) -> bool:
    return getattr(layer, "shortcut", True) not in (False, "none") and getattr(layer, "skip", True) is not False


def _dense_kernels(layer: LinearResidual | ResidualDense | ShortcutUnit) -> list[Any]:
    if isinstance(layer, LinearResidual):
        return [layer.kernel]
    return [layer.U, layer.V] if isinstance(layer, ResidualDense) else list(layer.kernels)
