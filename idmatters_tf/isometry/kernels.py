"""How far kernels are from the identity, and kernels that are isometries: delta-orthogonal ones."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import layers_within
from idmatters_tf._keras_types import Tensor
from idmatters_tf.isometry.convolution import ConvolutionOperator
from idmatters_tf.isometry.norms import applied_kernel
from idmatters_tf.isometry.spectra import spectral_norm

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class KernelDistance:
    """How far a kernel K is from the identity.

    Attributes:
        relative: ||K - I||_F / ||I||_F, with I the `identity_kernel` of its shape.
        orthogonal: the same for the nearest delta-orthogonal kernel in place of I.
        spectral: the norm of K - I as a linear map between images, with periodic padding; of the matrix for a dense
            kernel; None where the image's size was not given.
    """

    relative: float
    orthogonal: float
    spectral: float | None


def identity_kernel(shape: Sequence[int]) -> Floats:
    """The kernel of the identity: one from each channel to itself in the middle, zeros elsewhere.

    Where there are more output channels than input channels, half of the new ones are added on each side, as
    `idmatters_tf.layers.PadShortcut2D` does; where there are fewer, half of the old ones are left out on each side. The
    middle of an even side is where "same" padding has it, the first of the two entries in the middle.

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
    kernel[_centre(shape)] = np.eye(inputs, outputs, (outputs - inputs) // 2 if outputs > inputs else 0)
    if outputs < inputs:
        kernel[_centre(shape)] = np.eye(outputs, inputs, (inputs - outputs) // 2).T
    return kernel


def delta_orthogonal_kernel(shape: Sequence[int], seed: int = 0) -> Floats:
    """A random kernel that keeps the norm of every image: an orthogonal matrix in the middle, zeros elsewhere.

    All singular values of the convolution are 1, for zero padding as well as periodic padding.
    Source: Xiao, Bahri, Sohl-Dickstein, Schoenholz & Pennington, *Dynamical Isometry and a Mean Field Theory of CNNs*
    (arXiv 1806.05393), Algorithm 1.

    Args:
        shape: (inputs, outputs) or (rows, cols, inputs, outputs), with at least as many outputs as inputs.
        seed: of the random orthogonal matrix.

    Raises:
        ValueError: for fewer outputs than inputs: then no linear map keeps all norms.
    """
    shape = _checked(shape)
    inputs, outputs = shape[-2:]
    if outputs < inputs:
        raise ValueError(
            f"Argument `shape` must have at least as many outputs as inputs: fewer cannot keep all norms. Received: "
            f"shape={tuple(shape)}"
        )
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(outputs, inputs)))
    kernel = np.zeros(shape)
    # Without the signs the distribution would depend on the QR algorithm (Mezzadri, 2007).
    kernel[_centre(shape)] = (q * np.sign(np.diagonal(r))).T
    return kernel


def kernel_distance(kernel: Tensor, size: Sequence[int] | None = None) -> KernelDistance:
    """How far a kernel is from the identity.

    Args:
        kernel: (inputs, outputs) or (rows, cols, inputs, outputs).
        size: the image's (rows, cols), for the norm as a linear map. A larger image changes it little.
    """
    weights = np.asarray(keras.ops.convert_to_numpy(kernel), np.float64)
    identity = identity_kernel(weights.shape)
    norm = float(np.linalg.norm(identity))
    difference = weights - identity
    centre = weights[_centre(weights.shape)]
    # The nearest matrix with orthonormal rows or columns has the same singular vectors (polar factor).
    values = np.linalg.svd(centre, compute_uv=False)
    outside = weights.copy()
    outside[_centre(weights.shape)] = 0.0
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
    """How far the kernels of a model's dense layers and 2-D convolutions are from the identity, nested models included.

    In a residual block the skip is the identity and the kernels belong to the branch: there the distances say how large
    the branch is only in so far as its kernels are near zero, at a distance of 1. `block_distances` is what to ask of
    whole blocks.

    Args:
        model: built, with any image size.

    Returns:
        By the path of the kernel, `KernelDistance` without `spectral` for convolutions.
    """
    found = {}
    for layer in layers_within(model):
        convolution = isinstance(layer, keras.layers.Conv2D) and layer.groups == 1
        if convolution or isinstance(layer, keras.layers.Dense):
            kernel: Any = layer.kernel
            found[kernel.path] = kernel_distance(applied_kernel(layer))
    return found


def _checked(shape: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(positive_integer("shape", length) for length in shape)
    if len(shape) not in (2, 4):
        raise ValueError(
            f"Argument `shape` must be (inputs, outputs) or (rows, cols, inputs, outputs). Received: shape={shape}"
        )
    return shape


def _centre(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple((length - 1) // 2 for length in shape[:-2])
