"""Decoding of compressed images and augmentation to images of one size, as a function of random keys.

"paper"     the whole image resized to a square and flipped with probability 1/2 (Hardt & Ma, section 4.2: "Each image
            is resized to 224x224 pixels")
"standard"  a random window of 8 % (or another fraction) to 100 % of the area with aspect ratio 3/4 to 4/3 (Szegedy et
            al., 2014), resized and flipped. For evaluation the central square, 224/256 of the shorter side
"none"      like "paper" without flips

Resizing is bilinear without antialiasing, like TensorFlow's `resize` in 2016.
"""

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

AUGMENTATIONS = ("paper", "standard", "none")
SMALLEST_AREA, ASPECT, ATTEMPTS = 0.08, (3 / 4, 4 / 3), 10
CENTRAL = 224 / 256
# First bytes of PNG files.
_PNG = b"\x89PNG\r\n\x1a\n"

# Maps the shape of an image, int32 `(3,)`, to a window of it, int32 `[top, left, rows, cols]`.
Window: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


def evaluation_window(augmentation: str) -> Window | None:
    """Return the window of an image for evaluation, or None for the whole image."""
    return central_window if augmentation == "standard" else None


def decode_and_resize(contents: tf.Tensor, size: int, window: Window | None = None) -> tf.Tensor:
    """Decode an image or a window of it, and resize it by bilinear interpolation.

    Args:
        contents: string scalar, see `decode`.
        size: side of the result in pixels.
        window: see `decode`.

    Returns:
        float32 `(size, size, 3)`, in 0..255.
    """
    # Converting first gives the same values in half the time.
    return tf.image.resize(tf.cast(decode(contents, window), tf.float32), [size, size])


def random_window(shape: tf.Tensor, key: tf.Tensor, smallest_area: float = SMALLEST_AREA) -> tf.Tensor:
    """Return a random window, int32 `[top, left, rows, cols]`, of an image of a shape.

    Args:
        shape: shape of the image, int32 `(3,)`.
        key: int64, `(2,)`, seed of the window.
        smallest_area: smallest fraction of the area of the image.
    """
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        key,
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT,
        area_range=(smallest_area, 1.0),
        max_attempts=ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], 0)


def central_window(shape: tf.Tensor) -> tf.Tensor:
    """Return the central square, int32 `[top, left, rows, cols]`, with 224/256 of the shorter side."""
    side = tf.cast(tf.round(tf.cast(tf.minimum(shape[0], shape[1]), tf.float32) * CENTRAL), tf.int32)
    side = tf.maximum(side, 1)
    return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def decode(contents: tf.Tensor, window: Window | None = None) -> tf.Tensor:
    """Decode an image or a window of it.

    Args:
        contents: string scalar, content of a JPEG or PNG file. The orientation in EXIF data is ignored, as usual for
            ImageNet.
        window: function from the shape of the image to a window, or None for the whole image. JPEG files are decoded in
            the window only.

    Returns:
        uint8, `(rows, cols, 3)`.

    Raises:
        tf.errors.InvalidArgumentError: the content is not an image of these formats.
    """

    def png():
        # TensorFlow's decoder also reads other formats, some of them incorrectly.
        is_png = tf.strings.substr(contents, 0, len(_PNG)) == _PNG
        with tf.control_dependencies([tf.debugging.assert_equal(is_png, True, "neither a JPEG nor a PNG image")]):
            image = tf.io.decode_png(contents, channels=3)
        if window is None:
            return image
        part = window(tf.shape(image))
        return tf.slice(image, tf.concat([part[:2], [0]], 0), tf.concat([part[2:], [3]], 0))

    def jpeg():
        if window is None:
            return tf.io.decode_jpeg(contents, channels=3)
        return tf.io.decode_and_crop_jpeg(contents, window(tf.io.extract_jpeg_shape(contents)), channels=3)

    return tf.ensure_shape(tf.cond(tf.io.is_jpeg(contents), jpeg, png), [None, None, 3])
