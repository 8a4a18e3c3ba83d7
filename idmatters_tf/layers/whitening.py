"""First layers of frozen filters that whiten the patches of the training images."""

from typing import Any

import keras
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from idmatters_tf._keras_types import Shape
from idmatters_tf.layers._images import channel_axis

_PATCHES_AT_ONCE = 100_000


@keras.saving.register_keras_serializable(package="idmatters_tf")
class PatchWhitening2D(keras.layers.Conv2D):
    """Convolution with a frozen whitening kernel: filters `v / sqrt(value + epsilon)` and their negatives.

    v and value are the leading eigenvectors and eigenvalues of the covariance of the patches of the training images, so
    that the outputs are uncorrelated and have variance 1. A filter and its negative together keep all information after
    a ReLU. The biases are trained. `adapt` fits the kernel, which is saved with the model. Until then the kernel has
    the values of `kernel_initializer`.

    Source: Jordan, *94% on CIFAR-10 in 3.29 seconds on a single GPU* (arXiv 2404.00498), section 3.2, after Page (2018)
    and tysam-code's hlb-CIFAR10, with 2x2 patches and epsilon 5e-4.

    Args:
        filters: number of output channels, even and at most twice the numbers in a patch.
        kernel_size: size of the patches.
        epsilon: term added to the eigenvalues.
        kwargs: see `keras.layers.Conv2D`. Groups and dilation are not supported.

    Input shape:
        `(batch, rows, cols, channels)`, or `(batch, channels, rows, cols)` with "channels_first".

    Output shape:
        See `keras.layers.Conv2D`.

    Example:

    >>> layer = PatchWhitening2D(8, 2)
    >>> layer.adapt(np.random.default_rng(0).normal(size=(20, 6, 6, 3)))
    >>> tuple(layer(np.zeros((1, 6, 6, 3), "float32")).shape)
    (1, 5, 5, 8)
    """

    def __init__(self, filters: int, kernel_size: int | tuple[int, int], epsilon: float = 5e-4, **kwargs: Any) -> None:
        super().__init__(filters, kernel_size, **kwargs)
        self.epsilon = float(epsilon)

    def build(self, input_shape: Shape) -> None:
        most = 2 * self.kernel_size[0] * self.kernel_size[1] * (input_shape[channel_axis(self.data_format)] or 0)
        if self.filters % 2 or self.filters > most:
            raise ValueError(
                f"Argument `filters` must be even and at most {most}, twice the numbers in a patch. Received: "
                f"filters={self.filters}"
            )
        super().build(input_shape)

    def add_weight(self, *args: Any, name: str | None = None, trainable: bool = True, **kwargs: Any) -> keras.Variable:
        # `layer.trainable = True` would unfreeze a kernel that was added as a trainable weight and frozen afterwards.
        return super().add_weight(*args, name=name, trainable=trainable and name != "kernel", **kwargs)

    def adapt(self, images: ArrayLike) -> None:
        """Fit the kernel to all patches of some training images, in float64.

        Args:
            images: batch of the input shape, preprocessed as the inputs of the layer. A thousand images suffice.
        """
        images = np.asarray(images)
        if not self.built:
            self.build(images.shape)
        images = np.moveaxis(images, channel_axis(self.data_format), 3)
        count = 0
        total = products = np.zeros(())
        # (n, rows, cols, channels, *kernel_size), without copying.
        windows = sliding_window_view(images, self.kernel_size, axis=(1, 2))  # pyright: ignore[reportCallIssue, reportArgumentType]
        at_once = max(1, _PATCHES_AT_ONCE // (windows.shape[1] * windows.shape[2]))
        for start in range(0, len(images), at_once):
            # The order of axes in the kernel: rows, columns, channels.
            some = windows[start : start + at_once].transpose(0, 1, 2, 4, 5, 3).astype(np.float64)
            patches = some.reshape(-1, int(np.prod(some.shape[3:])))
            count += len(patches)
            total = total + patches.sum(axis=0)
            products = products + patches.T @ patches
        mean = total / count
        values, vectors = np.linalg.eigh(products / count - np.outer(mean, mean))
        # The largest eigenvalue is first. The largest entry of an eigenvector fixes its sign.
        values = np.maximum(values[::-1], 0)[: self.filters // 2]
        vectors = vectors[:, ::-1][:, : self.filters // 2]
        signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))])
        half = vectors * signs / np.sqrt(values + self.epsilon)
        kernel: Any = self.kernel
        kernel.assign(np.concatenate([half, -half], axis=1).reshape(kernel.shape))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}
