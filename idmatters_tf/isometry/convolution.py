"""Convolutions as linear maps between images: products and spectral norm."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import scipy.sparse.linalg
from keras import ops
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._keras_types import Tensor
from idmatters_tf.autodiff import gradient
from idmatters_tf.spectra import top_eigenpairs
from idmatters_tf.spectra.operators import Operator

Floats = NDArray[np.float64]


class ConvolutionOperator(Operator):
    """Linear map of a 2-D convolution (without its bias) between whole images, in float64.

    y[p, q] = sum_ij K[i, j]^T x[p s - b + i, q s - b + j], the cross-correlation that deep learning frameworks call a
    convolution. Images are flattened with the channels last. The shape is `(output entries, input entries)`; `@`,
    `matmat` and `rmatmat` are those of SciPy.

    Args:
        kernel: (rows, cols, input channels, output channels), as in Keras.
        size: image size (rows, cols).
        strides: one stride for both directions, or one for each.
        padding: "same" (zeros, placed as in TensorFlow) or "valid".

    Raises:
        ValueError: if a shape is wrong, or if the kernel is larger than the image with "valid".

    Example:

    >>> shift = np.zeros((3, 3, 1, 1))
    >>> shift[0, 1] = 1.0  # move the image down by one pixel
    >>> np.linalg.svd(ConvolutionOperator(shift, (3, 1)) @ np.eye(3), compute_uv=False).round(6)  # loses a row
    array([1., 1., 0.])
    """

    def __init__(
        self,
        kernel: ArrayLike,
        size: Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "same",
    ):
        self.kernel: Floats = np.asarray(kernel, np.float64)
        if self.kernel.ndim != 4 or not self.kernel.size:
            raise ValueError(
                "Argument `kernel` must have shape (rows, cols, input channels, output channels). Received: shape "
                f"{self.kernel.shape}"
            )
        if len(tuple(size)) != 2:
            raise ValueError(f"Argument `size` must be the image size (rows, cols). Received: size={size!r}")
        self.size = tuple(positive_integer("size", length) for length in size)
        both = (strides, strides) if isinstance(strides, int) else tuple(strides)
        if len(both) != 2:
            raise ValueError(f"Argument `strides` must be one or two integers. Received: strides={strides!r}")
        self.strides = tuple(positive_integer("strides", stride) for stride in both)
        self.padding = check_choice("padding", padding, ("same", "valid"))
        axes = zip(self.size, self.kernel.shape[:2], self.strides, strict=True)
        placed = [_padding(n, k, stride, padding) for n, k, stride in axes]
        self.output_size = tuple(length for length, _, _ in placed)
        self._pads = [(before, after) for _, before, after in placed]
        inputs, outputs = self.kernel.shape[2:]
        self.input_shape = (*self.size, inputs)
        self.output_shape = (*self.output_size, outputs)
        shape = int(np.prod(self.output_shape)), int(np.prod(self.input_shape))
        super().__init__(np.float64, shape)

    def spectral_norm(self, tolerance: float = 1e-3, seed: int = 0) -> float:
        """Return the largest singular value.

        It is computed by about 20 Lanczos iterations on A^T A, in float32 with the convolutions of Keras' backend.

        Args:
            tolerance: relative accuracy of the iterations.
            seed: seed of the starting image.
        """
        largest = float(np.abs(self.kernel).max())
        if not 0 < largest < np.inf:
            return 0.0 if largest == 0 else np.nan
        kernel = ops.convert_to_tensor(self.kernel / largest, dtype="float32")
        multiply = _gram_function(self.input_shape, self.kernel.shape, self.strides, tuple(self._pads))

        def product(vector: Floats) -> NDArray[Any]:
            image: Any = ops.convert_to_numpy(multiply(ops.convert_to_tensor(vector, dtype="float32"), kernel))
            return np.ravel(image)

        gram = scipy.sparse.linalg.LinearOperator((self.shape[1],) * 2, matvec=product, dtype=np.float32)
        square = top_eigenpairs(gram, 1, tolerance=tolerance, seed=seed).values[0]
        return largest * float(np.sqrt(max(square, 0.0)))

    def _matmat(self, matrix: ArrayLike) -> Floats:
        vectors = np.asarray(matrix, np.float64).T
        images = np.pad(vectors.reshape(-1, *self.input_shape), [(0, 0), *self._pads, (0, 0)])
        outputs = np.zeros((len(images), *self.output_shape))
        for i, j, window in self._windows():
            outputs += images[window] @ self.kernel[i, j]
        return outputs.reshape(len(images), -1).T

    def _rmatmat(self, matrix: ArrayLike) -> Floats:
        images = np.asarray(matrix, np.float64).T.reshape(-1, *self.output_shape)
        (top, bottom), (left, right) = self._pads
        rows, cols = self.size
        padded = np.zeros((len(images), top + rows + bottom, left + cols + right, self.input_shape[2]))
        for i, j, window in self._windows():
            padded[window] += images @ self.kernel[i, j].T
        inputs = padded[:, top : top + rows, left : left + cols]
        return inputs.reshape(len(images), -1).T

    def _rmatvec(self, vector: ArrayLike) -> Floats:
        return self._rmatmat(np.reshape(vector, (-1, 1)))[:, 0]

    def _windows(self) -> list[tuple[int, int, Any]]:
        """Return (i, j, pixels of the padded images) for each entry of the kernel."""
        return [
            (
                i,
                j,
                np.s_[
                    :,
                    i : i + self.strides[0] * (self.output_size[0] - 1) + 1 : self.strides[0],
                    j : j + self.strides[1] * (self.output_size[1] - 1) + 1 : self.strides[1],
                ],
            )
            for i in range(self.kernel.shape[0])
            for j in range(self.kernel.shape[1])
        ]


def _padding(size: int, kernel: int, stride: int, padding: str) -> tuple[int, int, int]:
    """Return (outputs, pixels added before, pixels added after) in one direction."""
    if padding == "valid":
        if kernel > size:
            raise ValueError(
                f"Argument `kernel` must not be larger than the image with padding='valid'. Received: {kernel} entries "
                f"on {size} pixels"
            )
        return (size - kernel) // stride + 1, 0, 0
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    # With a stride larger than the kernel, no window covers the last pixels.
    return outputs, total // 2, total - total // 2


@functools.lru_cache(maxsize=256)
def _gram_function(
    input_shape: tuple[int, ...],
    kernel_shape: tuple[int, ...],
    strides: tuple[int, int],
    pads: tuple[tuple[int, int], ...],
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function (image as a vector, kernel) -> A^T A image. Compiling it halves its cost."""
    widths = [(0, 0), *pads, (0, 0)]
    options: dict[str, Any] = {"strides": strides, "padding": "valid", "data_format": "channels_last"}

    def multiply(vector: Tensor, kernel: Tensor) -> Tensor:
        def half_square(image: Tensor) -> Tensor:
            outputs: Any = ops.conv(ops.pad(image, widths), kernel, **options)
            return ops.sum(outputs * outputs * 0.5)

        # The gradient of ||A x||^2 / 2 is A^T A x.
        return gradient(half_square, ops.reshape(vector, (1, *input_shape)))

    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(multiply)
    import tensorflow as tf

    shapes = (int(np.prod(input_shape)),), kernel_shape
    specifications = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    return tf.function(multiply, autograph=False).get_concrete_function(*specifications)
