"""Crop, flip and standardise a whole batch at once, in TensorFlow operations without state."""

import dataclasses
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idmatters_tf._arguments import one_of


@dataclasses.dataclass(frozen=True)
class CropAndFlip:
    """Zero-pad by `padding` pixels on each side, crop at random to the old size, flip left to right half of the time.

    The paper's base code (tensorflow/models `resnet`, 2016) pads 32 to 36, 2 pixels a side; the other convention (He
    et al., 2015) pads by 4; Springenberg et al. (2014) move images by up to 5.

    Attributes:
        padding: in pixels.
        padding_mode: "zero" for black pixels, or "reflect" for the image mirrored at its border.
        flips: "random": each image with probability 1/2 each time; or "alternate": half of the images, drawn once, in
            every other epoch, and the other half in the epochs between (Jordan, *94% on CIFAR-10 in 3.29 seconds*,
            arXiv 2404.00498, section 3.4), so that two epochs hold each image and its mirror image once.
        cutout: the side in pixels of a square that is set to 0 after standardisation, centred anywhere in the image and
            cut off at its border (DeVries & Taylor, arXiv 1708.04552); 0 for none.
    """

    padding: int
    padding_mode: str = "zero"
    flips: str = "random"
    cutout: int = 0

    def __post_init__(self) -> None:
        one_of("padding_mode", self.padding_mode, ("zero", "reflect"))
        one_of("flips", self.flips, ("random", "alternate"))


AUGMENTATIONS: dict[str, CropAndFlip | None] = {
    "paper": CropAndFlip(2),
    "standard": CropAndFlip(4),
    "all-cnn": CropAndFlip(5),
    "none": None,
}


# Bytes as they were decoded, or preprocessed numbers.
Pixels: TypeAlias = NDArray[np.uint8 | np.float32]


class InMemoryImages:
    """Images in memory, from which augmented batches are cut.

    The padded images and their mirror images are stored: a flip is then only another index, and one gather and one
    crop do everything. For CIFAR that takes 390 MB (480 MB with 4 pixels of padding) instead of 150 MB, and four times
    as much if the images are float32.

    Args:
        images: uint8 or float32, `(n, rows, cols, channels)`.
        augmentation: a `CropAndFlip`, or None for the images as they are.
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
        # A tensor, not a variable: reading variables counts as having state, and under
        # `enable_op_determinism` a `Dataset.map` with state is run on one core.
        with tf.device("CPU:0"):
            self._images = tf.constant(images)

    def batch(self, indices: tf.Tensor, draws: tf.Tensor | None) -> tf.Tensor:
        """Cuts out a batch.

        Args:
            indices: int64, `(batch,)`, which images.
            draws: int32, `(batch, 3)` or more columns, of at least 0: row, column, flip. None: the images as they are.

        Returns:
            float32, `(batch, rows, cols, channels)`, pixels as they were given.
        """
        if self.augmentation is None or draws is None:
            return tf.cast(tf.gather(self._images, indices), tf.float32)
        padding = self.augmentation.padding
        flipped = tf.cast(draws[:, 2] % 2, tf.int64)  # pyright: ignore[reportOperatorIssue]
        moved = draws[:, :2] % (2 * padding + 1)  # pyright: ignore[reportOperatorIssue]
        images = tf.gather(self._images, indices + flipped * self.count)
        # "Glimpses" at whole-pixel offsets are plain crops, and fast as long as they stay inside the image.
        return tf.raw_ops.ExtractGlimpseV2(
            input=tf.cast(images, tf.float32),
            size=self._size,
            offsets=tf.cast(moved, tf.float32),
            centered=False,
            normalized=False,
            uniform_noise=False,
            noise="zero",
        )

    def standardized(self, indices: tf.Tensor, draws: tf.Tensor | None) -> tf.Tensor:
        """A batch ready for a network: bytes are standardised image by image, other pixels are left as they are.

        Args:
            indices: see `batch`.
            draws: see `batch`; with cutout two columns more, the row and column of the square's centre.
        """
        images = self.batch(indices, draws)
        if self._raw:
            images = standardize(images)
        if self.augmentation is not None and self.augmentation.cutout and draws is not None:
            centres = draws[:, 3:5] % tf.constant(self._size, tf.int32)  # pyright: ignore[reportOperatorIssue]
            images = cut_out(images, centres, self.augmentation.cutout)
        return images


def cut_out(images: tf.Tensor, centres: tf.Tensor, side: int) -> tf.Tensor:
    """Sets a square of each image to 0.

    Args:
        images: float32, `(batch, rows, cols, channels)`.
        centres: int32, `(batch, 2)`, row and column.
        side: of the square, which covers rows from `centre - side // 2` to `centre - side // 2 + side - 1` and columns
            likewise, as far as they lie in the image.
    """

    def covered(size, centre):
        first = centre[:, None] - side // 2
        return (tf.range(size) >= first) & (tf.range(size) < first + side)

    rows, cols = covered(images.shape[1], centres[:, 0]), covered(images.shape[2], centres[:, 1])
    return tf.where((rows[:, :, None] & cols[:, None, :])[..., None], 0.0, images)


def standardize(images: tf.Tensor) -> tf.Tensor:
    """Each image to mean 0 and standard deviation 1, as `tf.image.per_image_standardization`, a batch at once.

    Args:
        images: float32, `(batch, rows, cols, channels)`.
    """
    size = images.shape[1] * images.shape[2] * images.shape[3]  # pyright: ignore[reportOperatorIssue]
    mean = tf.reduce_mean(images, axis=[1, 2, 3], keepdims=True)
    variance = tf.reduce_mean(tf.square(images), axis=[1, 2, 3], keepdims=True) - tf.square(mean)
    # The bound 1 / sqrt(size) on the deviation; pixels are whole numbers, so rounding cannot come near it.
    return (images - mean) * tf.math.rsqrt(tf.maximum(variance, 1.0 / size))
