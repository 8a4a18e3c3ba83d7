"""Compressed images of any size to augmented ones of one size, as a function of random keys.

In two parts: the processor decodes a batch, each image or its random part in its own size, one behind the other; the
devices that train bring them to one size, flip and standardise. So the cores that decode do little else, and what goes
to the devices are single bytes, of which decoded parts have fewer than resized images have numbers.

"paper"     the whole image resized to the square, whatever its shape, and flipped half of the time (Hardt & Ma,
            section 4.2: "Each image is resized to 224x224 pixels")
"standard"  a random part, of 8 % (or another share) to 100 % of the area and of aspect 3/4 to 4/3 (Szegedy et al.,
            2014), resized and flipped; for evaluation the central square, 224/256 of the shorter side
"none"      as "paper" without the flip

Resizing is bilinear, as TensorFlow's `resize` did it in 2016, without smoothing beforehand.
"""

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from idmatters_tf.data.augment import standardize

AUGMENTATIONS = ("paper", "standard", "none")
SMALLEST_AREA, ASPECT, ATTEMPTS = 0.08, (3 / 4, 4 / 3), 10
CENTRAL = 224 / 256

# From the shape of an image, int32 `(3,)`, to a part of it, int32 `[top, left, rows, cols]`.
Window: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
# Pixels and sizes, see `pack`, and bool `(batch,)`, which images are mirrored left to right.
Packed: TypeAlias = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def train_window(augmentation: str, key: tf.Tensor, smallest_area: float = SMALLEST_AREA) -> Window | None:
    """The part of an image to train on, as `decode` takes it.

    Args:
        augmentation: one of `AUGMENTATIONS`.
        key: int64, `(2,)`, the seed of its random numbers.
        smallest_area: see `random_window`.
    """
    return (lambda shape: random_window(shape, key, smallest_area)) if augmentation == "standard" else None


def evaluation_window(augmentation: str) -> Window | None:
    """The part of an image to evaluate on, as `decode` takes it."""
    return central_window if augmentation == "standard" else None


def pack(count: int, image: Callable[[tf.Tensor], tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Decoded images of different sizes, one behind the other.

    Args:
        count: how many.
        image: from a number below `count` to that image, uint8 `(rows, cols, 3)`.

    Returns:
        Their pixels, uint8 `(bytes,)`, and their rows and cols, int32 `(count, 2)`.
    """
    pixels = tf.TensorArray(tf.uint8, count, infer_shape=False, element_shape=[None])
    sizes = tf.TensorArray(tf.int32, count, element_shape=[2])

    def add(number, pixels, sizes):
        decoded = image(number)
        pixels = pixels.write(number, tf.reshape(decoded, [-1]))
        return number + 1, pixels, sizes.write(number, tf.shape(decoded)[:2])

    _, pixels, sizes = tf.while_loop(lambda number, *_: number < count, add, (0, pixels, sizes))
    return pixels.concat(), tf.ensure_shape(sizes.stack(), [count, 2])


def preprocess_on_device(images: Packed, size: int) -> tf.Tensor:
    """Resizes, flips and standardises a batch: what is left to the devices.

    Args:
        images: pixels and sizes, see `pack`, and bool `(batch,)`, which ones to flip.
        size: of the side, in pixels.

    Returns:
        Standardised images, float32 `(batch, size, size, 3)`.
    """
    return standardize(resize(*images, size))


def resize(pixels: tf.Tensor, sizes: tf.Tensor, flips: tf.Tensor, size: int) -> tf.Tensor:
    """Brings images that lie one behind the other to one size, by bilinear interpolation as `tf.image.resize`.

    Args:
        pixels, sizes: see `pack`.
        flips: bool `(batch,)`: which ones are mirrored left to right.
        size: of the side, in pixels.

    Returns:
        float32 `(batch, size, size, 3)`, in 0..255.
    """
    # A GPU would wait for each of many small operations; a processor takes seven times as long all at once.
    way = resize_at_once if tf.config.list_logical_devices("GPU") else resize_one_by_one
    return way(pixels, sizes, flips, size)


def resize_one_by_one(pixels: tf.Tensor, sizes: tf.Tensor, flips: tf.Tensor, size: int) -> tf.Tensor:
    """See `resize`."""
    ends = tf.cumsum(3 * tf.reduce_prod(tf.cast(sizes, tf.int64), axis=1))

    def resized(number):
        rows, cols = sizes[number, 0], sizes[number, 1]
        begin = ends[number] - 3 * tf.cast(rows, tf.int64) * tf.cast(cols, tf.int64)
        image = tf.reshape(pixels[begin : ends[number]], tf.stack([rows, cols, 3]))
        # Converted beforehand: the same values, in half the time.
        image = tf.image.resize(tf.cast(image, tf.float32), [size, size])
        return tf.cond(flips[number], lambda: tf.reverse(image, [1]), lambda: image)

    kind = tf.TensorSpec([size, size, 3], tf.float32)
    images = tf.map_fn(resized, tf.range(tf.shape(sizes)[0]), fn_output_signature=kind)
    return tf.ensure_shape(images, [sizes.shape[0], *kind.shape])


def resize_at_once(pixels: tf.Tensor, sizes: tf.Tensor, flips: tf.Tensor, size: int) -> tf.Tensor:
    """See `resize`."""
    # Converted before gathering: on a GPU there may be no gathering of bytes.
    pixels = tf.cast(tf.reshape(pixels, [-1, 3]), tf.float32)
    rows, cols = tf.cast(sizes[:, 0], tf.int64), tf.cast(sizes[:, 1], tf.int64)
    begins = tf.cumsum(rows * cols, exclusive=True)
    top, bottom, down = _neighbours(rows, size)
    left, right, across = (
        tf.where(flips[:, tf.newaxis], values[:, ::-1], values) for values in _neighbours(cols, size)
    )
    down, across = down[:, :, tf.newaxis, tf.newaxis], across[:, tf.newaxis, :, tf.newaxis]

    def interpolated(row):
        starts = (begins[:, tf.newaxis] + row * cols[:, tf.newaxis])[:, :, tf.newaxis]
        one, other = (tf.gather(pixels, starts + col[:, tf.newaxis, :]) for col in (left, right))
        return one + (other - one) * across

    upper = interpolated(top)
    return upper + (interpolated(bottom) - upper) * down


def _neighbours(lengths, size):
    """For each of `size` samples along sides of these lengths the pixels before and after it, and its way from one to
    the other, 0 to 1: int64, int64, float32, `(batch, size)`.
    """
    scales = (tf.cast(lengths, tf.float32) / size)[:, tf.newaxis]
    places = (tf.range(size, dtype=tf.float32) + 0.5) * scales - 0.5
    before, after = tf.floor(places), tf.math.ceil(places)
    last = lengths[:, tf.newaxis] - 1
    return (
        tf.maximum(tf.cast(before, tf.int64), 0),
        tf.minimum(tf.cast(after, tf.int64), last),
        places - before,
    )


def random_window(shape: tf.Tensor, key: tf.Tensor, smallest_area: float = SMALLEST_AREA) -> tf.Tensor:
    """A random part of an image of this shape, from a share `smallest_area` of its area up to all of it: int32 `[top,
    left, rows, cols]`.
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
    """The central square, 224/256 of the shorter side: int32 `[top, left, rows, cols]`."""
    side = tf.cast(tf.round(tf.cast(tf.minimum(shape[0], shape[1]), tf.float32) * CENTRAL), tf.int32)
    side = tf.maximum(side, 1)
    return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def decode(contents: tf.Tensor, window: Window | None = None) -> tf.Tensor:
    """Decodes an image, or a part of it.

    Args:
        contents: a string scalar, a JPEG, PNG, WebP, BMP or GIF file.
        window: from the image's shape, int32 `(3,)`, to the part, int32 `[top, left, rows, cols]`; None: all of it.
            Of a JPEG only the part is decoded.

    Returns:
        uint8, `(rows, cols, 3)`.
    """

    def webp():
        # The first image of an animation, without transparency: asked for 3 channels, TensorFlow refuses both.
        return tf.io.decode_webp(contents, channels=0)[0, :, :, :3]

    def other():
        image = tf.cond(
            _is_webp(contents),
            webp,
            lambda: tf.io.decode_image(contents, channels=3, expand_animations=False),
        )
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
    """Whether a file begins with "RIFF", four bytes for its length, and "WEBP"."""
    long_enough = tf.strings.length(contents) >= 12
    return tf.cond(long_enough, lambda: tf.strings.substr(contents, 8, 4) == b"WEBP", lambda: False)
