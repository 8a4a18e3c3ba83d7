"""Norms of a network's weights: Frobenius norms, and spectral norms of convolutions as linear maps.

The theorems of both papers speak of the norms of residual layers: |||A||| is the largest spectral norm of the layers
(Hardt & Ma, section 2), the mean Frobenius norm falls with depth (Li et al., Figures 2 and 3).
"""

import numpy as np
from keras import ops

from idmatters_tf.layers import BasicBlock2D, ResidualConv2D


def frobenius_norm(kernel):
    """The root of the sum of squares of a kernel, a float."""
    return float(np.linalg.norm(ops.convert_to_numpy(kernel)))


def spectral_norm(kernel, size=None, strides=1, iterations=20, seed=0):
    """The largest singular value of the linear map that a kernel stands for.

    For a matrix, that of the matrix. For a 2-D convolution, that of the map between whole pictures (zero padding
    "same", the given stride), not of the reshaped kernel: found by power iteration on the convolution and its adjoint.
    Power iteration approaches from below; 20 iterations are typically within 1 % (measured in tests/test_norms.py).

    Args:
        kernel: of shape (inputs, outputs) or (rows, cols, input channels, output channels).
        size: the picture's (rows, cols), needed for a convolution.
        strides: the convolution's stride.
        iterations: of the power method.
        seed: of its starting picture.

    Returns:
        A float.
    """
    kernel = ops.cast(kernel, "float32")
    if len(kernel.shape) == 2:
        return float(np.linalg.norm(ops.convert_to_numpy(kernel), 2))
    if len(kernel.shape) != 4 or size is None:
        raise ValueError(
            "`spectral_norm` takes a matrix, or a 2-D convolution's kernel together with `size`, the picture's "
            f"(rows, cols). Received: kernel of shape {tuple(kernel.shape)}, size={size}"
        )
    # NumPy's generator, so that every backend starts from the same picture.
    start = np.random.default_rng(seed).standard_normal((1, *size, kernel.shape[2]))
    picture = ops.convert_to_tensor(start, dtype="float32")
    return float(ops.convert_to_numpy(_power_iteration(kernel, picture, strides, iterations)))


def _power_iteration(kernel, picture, strides, iterations):
    # "same" padding written out, so that the transposed convolution is the exact adjoint for every size and stride.
    pads = [_same_padding(n, k, strides) for n, k in zip(picture.shape[1:3], kernel.shape[:2], strict=True)]
    (top, bottom), (left, right) = pads
    rows, cols = picture.shape[1:3]
    norm = ops.zeros(())
    for _ in range(iterations):
        picture = picture / ops.maximum(_length(picture), 1e-30)
        padded = ops.pad(picture, [[0, 0], [top, bottom], [left, right], [0, 0]])
        image = ops.conv(padded, kernel, strides=strides, padding="valid", data_format="channels_last")
        norm = _length(image)
        adjoint = ops.conv_transpose(image, kernel, strides=strides, padding="valid", data_format="channels_last")
        picture = adjoint[:, top : top + rows, left : left + cols, :]
    return norm


def _same_padding(size, kernel_size, strides):
    total = max((-(-size // strides) - 1) * strides + kernel_size - size, 0)
    return total // 2, total - total // 2


def _length(tensor):
    return ops.sqrt(ops.sum(ops.square(tensor)))


def block_norms(model, iterations=20):
    """Norms of the kernels of every `ResidualConv2D` and `BasicBlock2D` of a built model.

    Args:
        model: a `keras.Model` of known picture size, channels last.
        iterations: of the power method for the spectral norms.

    Returns:
        A dict from the block's name to a dict with `frobenius`, the mean Frobenius norm of its kernels, and
        `spectral`, their largest spectral norm as convolutions of the block's picture size. Empty without such blocks.
    """
    norms = {}
    for layer in model.layers:
        if not isinstance(layer, (ResidualConv2D, BasicBlock2D)):
            continue
        size = layer.input.shape[1:3]
        inner_size = layer.output.shape[1:3]
        kernels = [layer.conv1.kernel, layer.conv2.kernel]
        norms[layer.name] = {
            "frobenius": float(np.mean([frobenius_norm(kernel) for kernel in kernels])),
            "spectral": max(
                spectral_norm(layer.conv1.kernel, size, layer.strides, iterations),
                spectral_norm(layer.conv2.kernel, inner_size, 1, iterations),
            ),
        }
    return norms
