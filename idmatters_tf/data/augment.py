"""Crops, flips, cutout and standardization of whole batches, in stateless TensorFlow operations."""

from typing import TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idmatters_tf.data.augmentations import CropAndFlip

# Decoded bytes or preprocessed floating-point numbers.
Pixels: TypeAlias = NDArray[np.uint8 | np.float32]


class InMemoryImages:
    """Images in memory, as a source of augmented batches.

    The padded images and their mirror images are stored, so that a batch takes one gather and one crop. CIFAR takes
    390 MB (480 MB with 4 pixels of padding) instead of 150 MB, and four times as much as float32.

    Args:
        images: uint8 or float32, `(n, rows, cols, channels)`.
        augmentation: a `CropAndFlip`, or None for unchanged images.
    """

    def __init__(self, images: Pixels, augmentation: CropAndFlip | None = None):
        self.count = len(images)
        self.augmentation = augmentation
        self._size = images.shape[1:3]
        self._raw = images.dtype == np.uint8
        if augmentation is not None:
            border = (augmentation.padding, augmentation.padding)
            images = np.concatenate([images, images[:, :, ::-1]])
            mode = "reflect" if augmentation.padding_mode == "reflect" else "constant"
            images = np.pad(images, [(0, 0), border, border, (0, 0)], mode=mode)
        # A tensor, not a variable: reading a variable makes `Dataset.map` stateful, and `enable_op_determinism` runs
        # a stateful map on one core.
        with tf.device("CPU:0"):
            self._images = tf.constant(images)

    def batch(self, indices: tf.Tensor, draws: tf.Tensor | None) -> tf.Tensor:
        """Return a batch for a network: uint8 images are standardized one by one, float32 images are not.

        Args:
            indices: int64, `(batch,)`, indices of the images.
            draws: non-negative int32, `(batch, 3)`: row, column, flip. With cutout, two more columns contain the row
                and column of the center of the square. None for images without augmentation.

        Returns:
            float32, `(batch, rows, cols, channels)`.
        """
        if self.augmentation is None or draws is None:
            return self._standardized(tf.gather(self._images, indices))
        padding = self.augmentation.padding
        flipped = tf.cast(draws[:, 2] % 2, tf.int64)  # pyright: ignore[reportOperatorIssue]
        moved = draws[:, :2] % (2 * padding + 1)  # pyright: ignore[reportOperatorIssue]
        images = tf.gather(self._images, indices + flipped * self.count)
        # Glimpses at integer offsets are crops, and fast if they are inside the image.
        images = tf.raw_ops.ExtractGlimpseV2(
            input=tf.cast(images, tf.float32),
            size=self._size,
            offsets=tf.cast(moved, tf.float32),
            centered=False,
            normalized=False,
            uniform_noise=False,
            noise="zero",
        )
        images = self._standardized(images)
        if self.augmentation.cutout:
            centers = draws[:, 3:5] % tf.constant(self._size, tf.int32)  # pyright: ignore[reportOperatorIssue]
            images = _cut_out(images, centers, self.augmentation.cutout)
        return images

    def _standardized(self, images):
        images = tf.cast(images, tf.float32)
        return standardize(images) if self._raw else images


def _cut_out(images, centers, side):
    """Set a square of each image to 0: the rows from `center - side // 2` on, and the columns likewise."""

    def covered(size, center):
        first = center[:, None] - side // 2
        return (tf.range(size) >= first) & (tf.range(size) < first + side)

    rows, cols = covered(images.shape[1], centers[:, 0]), covered(images.shape[2], centers[:, 1])
    return tf.where((rows[:, :, None] & cols[:, None, :])[..., None], 0.0, images)


def standardize(images: tf.Tensor) -> tf.Tensor:
    """Standardize each image to mean 0 and standard deviation 1, like `tf.image.per_image_standardization`.

    Args:
        images: float32, `(batch, rows, cols, channels)`.
    """
    size = images.shape[1] * images.shape[2] * images.shape[3]  # pyright: ignore[reportOperatorIssue]
    mean = tf.reduce_mean(images, axis=[1, 2, 3], keepdims=True)
    deviations = images - mean
    variance = tf.reduce_mean(tf.square(images), axis=[1, 2, 3], keepdims=True) - tf.square(mean)
    # The difference cancels for images of nearly one color.
    exact = tf.reduce_mean(tf.square(deviations), axis=[1, 2, 3], keepdims=True)
    variance = tf.where(variance > 1e-4 * tf.square(mean), variance, exact)
    # The lower bound 1 / sqrt(size) on the deviation.
    return deviations * tf.math.rsqrt(tf.maximum(variance, 1.0 / size))
