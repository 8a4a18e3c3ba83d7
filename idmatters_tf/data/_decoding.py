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

# Maps the shape of an image, int32 `(3,)`, to a window of it, int32 `[top, left, rows, cols]`.
Window: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


def evaluation_window(augmentation: str) -> Window | None:
    """Return the window of an image for evaluation, or None for the whole image."""
    return central_window if augmentation == "standard" else None


def decode_batch(
    count: int, contents: Callable[[tf.Tensor], tf.Tensor], size: int, window: Callable[[tf.Tensor], Window | None]
) -> tf.Tensor:
    """Decode the images of a batch, or windows of them, and resize them by bilinear interpolation.

    Args:
        count: number of images.
        contents: function of a number below `count` that returns a compressed image, see `decode`.
        size: side of the result in pixels.
        window: function of a number below `count` that returns the window of the image, or None for the whole image.

    Returns:
        float32 `(count, size, size, 3)`, in 0..255.
    """

    def resized(number):
        # Converting first gives the same values in half the time.
        image = tf.cast(decode(contents(number), window(number)), tf.float32)
        return tf.image.resize(image, [size, size])

    kind = tf.TensorSpec([size, size, 3], tf.float32)
    return tf.ensure_shape(tf.map_fn(resized, tf.range(count), fn_output_signature=kind), [count, *kind.shape])


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
        contents: string scalar, content of a JPEG, PNG, WebP, 24-bit BMP or GIF file. Of an animated GIF the first
            image is decoded. The orientation in EXIF data is ignored, as usual for ImageNet.
        window: function from the shape of the image to a window, or None for the whole image. JPEG files are decoded in
            the window only.

    Returns:
        uint8, `(rows, cols, 3)`.

    Raises:
        tf.errors.InvalidArgumentError: the content is not an image, or an animated WebP image.
    """

    def other():
        kinds = [
            (_is_webp(contents), lambda: _decode_webp(contents)),
            (_has_palette(contents), lambda: _decode_palette(contents)),
        ]
        image = tf.case(kinds, lambda: tf.io.decode_image(contents, channels=3, expand_animations=False))
        if window is None:
            return image
        part = window(tf.shape(image))
        return tf.slice(image, tf.concat([part[:2], [0]], 0), tf.concat([part[2:], [3]], 0))

    def jpeg():
        if window is None:
            return tf.io.decode_jpeg(contents, channels=3)
        return tf.io.decode_and_crop_jpeg(contents, window(tf.io.extract_jpeg_shape(contents)), channels=3)

    return tf.ensure_shape(tf.cond(tf.io.is_jpeg(contents), jpeg, other), [None, None, 3])


def _is_webp(contents):
    """Return True if a file starts with 8 bytes ("RIFF" and its length) and "WEBP"."""
    return (tf.strings.length(contents) >= 21) & (_part(contents, 8, 4) == b"WEBP")


def _decode_webp(contents):
    # TensorFlow's decoder returns garbage for animations, or aborts the process. A bit in the header marks them.
    is_extended = _part(contents, 12, 4) == b"VP8X"
    flags = tf.io.decode_raw(_part(contents, 20, 1), tf.uint8)[0]
    is_animated = is_extended & (tf.bitwise.bitwise_and(flags, tf.constant(2, tf.uint8)) > 0)
    with tf.control_dependencies([tf.debugging.assert_equal(is_animated, False, "animated WebP image")]):
        # With 3 channels TensorFlow rejects transparency.
        return tf.io.decode_webp(contents, channels=0)[0, :, :, :3]


def _has_palette(contents):
    """Return True for a BMP file with 8 bits for each pixel."""
    is_bmp = (tf.strings.length(contents) >= 54) & (_part(contents, 0, 2) == b"BM")
    return is_bmp & (_part(contents, 28, 2) == b"\x08\x00")


def _decode_palette(contents):
    """Decode the colors of a BMP file, for which TensorFlow returns the indices into the palette."""
    indices = tf.cast(tf.io.decode_bmp(contents, channels=0)[:, :, 0], tf.int32)
    pixels, header = (tf.io.decode_raw(_part(contents, place, 4), tf.int32)[0] for place in (10, 14))
    colors = tf.io.decode_raw(_part(contents, 14 + header, pixels - 14 - header), tf.uint8)
    # Blue, green, red and an unused byte.
    return tf.gather(tf.reshape(colors, [-1, 4])[:, 2::-1], indices)


def _part(contents, begin, length):
    """Return bytes of a file, fewer at its end."""
    begin = tf.minimum(begin, tf.strings.length(contents))
    return tf.strings.substr(contents, begin, length)
