"""Distances of kernels from the identity, identity kernels and delta-orthogonal kernels."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import layers_within
from idmatters_tf._keras_types import Tensor
from idmatters_tf._names import make_unique_name
from idmatters_tf.isometry.convolution import ConvolutionOperator
from idmatters_tf.isometry.norms import applied_kernel
from idmatters_tf.isometry.spectra import spectral_norm

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class KernelDistance:
    """Distance of a kernel K from the identity.

    Attributes:
        relative: ||K - I||_F / ||I||_F, with I the `identity_kernel` of its shape.
        orthogonal: the same distance from the nearest delta-orthogonal kernel.
        spectral: norm of K - I as a linear map between images with periodic padding, or as a matrix for a dense kernel.
            None if no image size is given.
    """

    relative: float
    orthogonal: float
    spectral: float | None


def identity_kernel(shape: Sequence[int]) -> Floats:
    """Return the kernel of the identity: ones from each channel to itself at the center, zeros elsewhere.

    Additional output channels are zero, half of them on each side, as in `idmatters_tf.layers.PadShortcut2D`. With
    fewer output channels, half of the surplus input channels are dropped on each side. The center of an even side is
    the first of its two middle entries, as for "same" padding.

    Args:
        shape: (inputs, outputs) or (rows, cols, inputs, outputs).

    Example:

    >>> identity_kernel((2, 4))
    array([[0., 1., 0., 0.],
           [0., 0., 1., 0.]])
    """
    shape = _checked(shape)
    inputs, outputs = shape[-2:]
    kernel = np.zeros(shape)
    kernel[_center(shape)] = np.eye(inputs, outputs, (outputs - inputs) // 2 if outputs > inputs else 0)
    if outputs < inputs:
        kernel[_center(shape)] = np.eye(outputs, inputs, (inputs - outputs) // 2).T
    return kernel


def delta_orthogonal_kernel(shape: Sequence[int], seed: int = 0) -> Floats:
    """Return a random norm-preserving kernel: an orthogonal matrix at the center, zeros elsewhere.

    All singular values of the convolution are 1, for zero padding and for periodic padding.

    Source: Xiao, Bahri, Sohl-Dickstein, Schoenholz & Pennington, *Dynamical Isometry and a Mean Field Theory of CNNs*
    (arXiv 1806.05393), Algorithm 1.

    Args:
        shape: (inputs, outputs) or (rows, cols, inputs, outputs), with at least as many outputs as inputs.
        seed: seed of the random orthogonal matrix.

    Raises:
        ValueError: if there are fewer outputs than inputs. Then no linear map preserves all norms.
    """
    shape = _checked(shape)
    inputs, outputs = shape[-2:]
    if outputs < inputs:
        raise ValueError(
            f"Argument `shape` must have at least as many outputs as inputs. Received: shape={tuple(shape)}"
        )
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(outputs, inputs)))
    kernel = np.zeros(shape)
    # The signs make the distribution independent of the QR algorithm (Mezzadri, 2007).
    kernel[_center(shape)] = (q * np.sign(np.diagonal(r))).T
    return kernel


def kernel_distance(kernel: Tensor, size: Sequence[int] | None = None) -> KernelDistance:
    """Compute the distance of a kernel from the identity.

    Args:
        kernel: (inputs, outputs) or (rows, cols, inputs, outputs).
        size: image size (rows, cols) for the norm as a linear map. The norm depends little on it.
    """
    weights = np.asarray(keras.ops.convert_to_numpy(kernel), np.float64)
    identity = identity_kernel(weights.shape)
    norm = float(np.linalg.norm(identity))
    difference = weights - identity
    center = weights[_center(weights.shape)]
    # The nearest matrix with orthonormal rows or columns has the same singular vectors (polar factor).
    values = np.linalg.svd(center, compute_uv=False)
    outside = weights.copy()
    outside[_center(weights.shape)] = 0.0
    if weights.ndim == 2:
        spectral = spectral_norm(difference)
    else:
        spectral = None if size is None else ConvolutionOperator(difference, size, padding="periodic").spectral_norm()
    return KernelDistance(
        float(np.linalg.norm(difference)) / norm,
        float(np.sqrt(np.sum(outside**2) + np.sum((values - 1) ** 2))) / norm,
        spectral,
    )


def kernel_distances(model: keras.Model) -> dict[str, KernelDistance]:
    """Compute the distances of the kernels of dense layers and 2-D convolutions from the identity.

    The kernels of a residual branch are meant to be near zero, at a distance of 1. For the distance of whole residual
    blocks use `block_distances`.

    Args:
        model: built model with any image size. Nested models are included.

    Returns:
        Dict from the path of the kernel to `KernelDistance`, without `spectral` for convolutions. A second kernel of
        the same path, as in nested models with layers of equal names, is "path:2".
    """
    found = {}
    for layer in layers_within(model):
        convolution = isinstance(layer, keras.layers.Conv2D) and layer.groups == 1
        if convolution or isinstance(layer, keras.layers.Dense):
            kernel: Any = layer.kernel
            found[make_unique_name(kernel.path, found)] = kernel_distance(applied_kernel(layer))
    return found


def _checked(shape: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(positive_integer("shape", length) for length in shape)
    if len(shape) not in (2, 4):
        raise ValueError(
            f"Argument `shape` must be (inputs, outputs) or (rows, cols, inputs, outputs). Received: shape={shape}"
        )
    return shape


def _center(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple((length - 1) // 2 for length in shape[:-2])
