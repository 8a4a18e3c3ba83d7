"""Compressed pictures of any size to augmented ones of one size, one at a time, as a function of a random key.

"paper"     the whole picture resized to the square, whatever its shape, and flipped half of the time (Hardt & Ma,
            section 4.2: "Each image is resized to 224x224 pixels")
"standard"  a random part, of 8 % to 100 % of the area and of aspect 3/4 to 4/3 (Szegedy et al., 2014), resized and
            flipped; for evaluation the central square, 224/256 of the shorter side
"none"      as "paper" without the flip

Resizing is bilinear, as TensorFlow's `resize` did it in 2016, without smoothing beforehand.
"""

import tensorflow as tf

from idmatters_tf.data.augment import standardize

AUGMENTATIONS = ("paper", "standard", "none")
AREA, ASPECT, ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10
CENTRAL = 224 / 256


def train_picture(contents, key, size, augmentation):
    """Decodes one picture, or a random part of it.

    Args:
        contents: a string scalar: a JPEG (CMYK too), or a PNG, whatever its name.
        key: int64, `(2,)`, the seed of its random numbers.
        size: of the side, in pixels.
        augmentation: one of `AUGMENTATIONS`.

    Returns:
        float32, `(size, size, 3)`, in 0..255; flipping it is left to `finish`.
    """
    window = (lambda shape: random_window(shape, key)) if augmentation == "standard" else None
    return _resized(decode(contents, window), size)


def evaluation_picture(contents, size, augmentation):
    """Decodes one picture as `train_picture`, without anything random."""
    return _resized(decode(contents, central_window if augmentation == "standard" else None), size)


def finish(pictures):
    """Flips and standardises a batch: what is left to the devices, which have more time than the cores that decode.

    Args:
        pictures: float32 `(batch, rows, cols, channels)` in 0..255, and bool `(batch,)`.

    Returns:
        Standardised pictures, of the same shape.
    """
    pixels, flips = pictures
    return standardize(tf.where(flips[:, tf.newaxis, tf.newaxis, tf.newaxis], tf.reverse(pixels, [2]), pixels))


def random_window(shape, key):
    """A random part of a picture of this shape: int32 `[top, left, rows, cols]`."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        key,
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT,
        area_range=AREA,
        max_attempts=ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], 0)


def central_window(shape):
    """The central square, 224/256 of the shorter side: int32 `[top, left, rows, cols]`."""
    side = tf.cast(tf.round(tf.cast(tf.minimum(shape[0], shape[1]), tf.float32) * CENTRAL), tf.int32)
    side = tf.maximum(side, 1)
    return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def decode(contents, window=None):
    """Decodes a picture, or a part of it.

    Args:
        contents: a string scalar.
        window: from the picture's shape, int32 `(3,)`, to the part, int32 `[top, left, rows, cols]`; None: all of it.
            Of a JPEG only the part is decoded.

    Returns:
        uint8, `(rows, cols, 3)`.
    """

    def other():
        picture = tf.io.decode_image(contents, channels=3, expand_animations=False)
        if window is None:
            return picture
        part = window(tf.shape(picture))
        return tf.slice(picture, tf.concat([part[:2], [0]], 0), tf.concat([part[2:], [3]], 0))

    def jpeg():
        if window is None:
            return tf.io.decode_jpeg(contents, channels=3)
        return tf.io.decode_and_crop_jpeg(contents, window(tf.io.extract_jpeg_shape(contents)), channels=3)

    return tf.ensure_shape(tf.cond(tf.io.is_jpeg(contents), jpeg, other), [None, None, 3])


def _resized(picture, size):
    # Converted beforehand: the same values, in half the time.
    return tf.ensure_shape(tf.image.resize(tf.cast(picture, tf.float32), [size, size]), [size, size, 3])
