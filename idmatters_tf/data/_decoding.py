"""Decoding of compressed images and augmentation to images of one size, as a function of random keys.

The CPU decodes the images of a batch, or random windows of them, in their own sizes. The training devices resize, flip
and standardize them. The CPU has little other work, and the transferred bytes are fewer than resized float32 images.

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

from idmatters_tf.data.augment import standardize

AUGMENTATIONS = ("paper", "standard", "none")
SMALLEST_AREA, ASPECT, ATTEMPTS = 0.08, (3 / 4, 4 / 3), 10
CENTRAL = 224 / 256

# Maps the shape of an image, int32 `(3,)`, to a window of it, int32 `[top, left, rows, cols]`.
Window: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
# Pixels and sizes, see `pack`, and bool `(batch,)`, True for images to flip left to right.
Packed: TypeAlias = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def train_window(augmentation: str, key: tf.Tensor, smallest_area: float = SMALLEST_AREA) -> Window | None:
    """Return the window of an image for training, or None for the whole image.

    Args:
        augmentation: one of `AUGMENTATIONS`.
        key: int64, `(2,)`, seed of the random window.
        smallest_area: see `random_window`.
    """
    return (lambda shape: random_window(shape, key, smallest_area)) if augmentation == "standard" else None


def evaluation_window(augmentation: str) -> Window | None:
    """Return the window of an image for evaluation, or None for the whole image."""
    return central_window if augmentation == "standard" else None


def pack(count: int, image: Callable[[tf.Tensor], tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Concatenate decoded images of different sizes.

    Args:
        count: number of images.
        image: function of a number below `count` that returns an image, uint8 `(rows, cols, 3)`.

    Returns:
        Pixels of all images, uint8 `(bytes,)`, and their rows and columns, int32 `(count, 2)`.
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
    """Resize, flip and standardize a batch on a training device.

    Args:
        images: pixels and sizes, see `pack`, and bool `(batch,)`, True for images to flip.
        size: side of the result in pixels.

    Returns:
        Standardized images, float32 `(batch, size, size, 3)`.
    """
    return standardize(resize(*images, size))


def resize(pixels: tf.Tensor, sizes: tf.Tensor, flips: tf.Tensor, size: int) -> tf.Tensor:
    """Resize concatenated images by bilinear interpolation, like `tf.image.resize`.

    Args:
        pixels: see `pack`.
        sizes: see `pack`.
        flips: bool `(batch,)`, True for images to flip left to right.
        size: side of the result in pixels.

    Returns:
        float32 `(batch, size, size, 3)`, in 0..255.
    """
    # One by one is slow on a GPU because of many small operations. All at once is seven times slower on a CPU.
    compute = resize_at_once if tf.config.list_logical_devices("GPU") else resize_one_by_one
    return compute(pixels, sizes, flips, size)


def resize_one_by_one(pixels: tf.Tensor, sizes: tf.Tensor, flips: tf.Tensor, size: int) -> tf.Tensor:
    """Compute `resize` with a loop over the images."""
    ends = tf.cumsum(3 * tf.reduce_prod(tf.cast(sizes, tf.int64), axis=1))

    def resized(number):
        rows, cols = sizes[number, 0], sizes[number, 1]
        begin = ends[number] - 3 * tf.cast(rows, tf.int64) * tf.cast(cols, tf.int64)
        image = tf.reshape(pixels[begin : ends[number]], tf.stack([rows, cols, 3]))
        # Converting first gives the same values in half the time.
        image = tf.image.resize(tf.cast(image, tf.float32), [size, size])
        return tf.cond(flips[number], lambda: tf.reverse(image, [1]), lambda: image)

    kind = tf.TensorSpec([size, size, 3], tf.float32)
    images = tf.map_fn(resized, tf.range(tf.shape(sizes)[0]), fn_output_signature=kind)
    return tf.ensure_shape(images, [sizes.shape[0], *kind.shape])


def resize_at_once(pixels: tf.Tensor, sizes: tf.Tensor, flips: tf.Tensor, size: int) -> tf.Tensor:
    """Compute `resize` with operations on the whole batch."""
    # GPUs may have no kernel to gather uint8.
    pixels = tf.cast(tf.reshape(pixels, [-1, 3]), tf.float32)
    rows, cols = tf.cast(sizes[:, 0], tf.int64), tf.cast(sizes[:, 1], tf.int64)
    begins = tf.cumsum(rows * cols, exclusive=True)
    top, bottom, down = _neighbors(rows, size)
    left, right, across = (tf.where(flips[:, tf.newaxis], values[:, ::-1], values) for values in _neighbors(cols, size))
    down, across = down[:, :, tf.newaxis, tf.newaxis], across[:, tf.newaxis, :, tf.newaxis]

    def interpolated(row):
        starts = (begins[:, tf.newaxis] + row * cols[:, tf.newaxis])[:, :, tf.newaxis]
        one, other = (tf.gather(pixels, starts + col[:, tf.newaxis, :]) for col in (left, right))
        return one + (other - one) * across

    upper = interpolated(top)
    return upper + (interpolated(bottom) - upper) * down


def _neighbors(lengths, size):
    """Return the pixels before and after each of `size` samples along each side, and the interpolation weight.

    Shapes `(batch, size)`, types int64, int64, float32. A weight of 0 is the pixel before, 1 the pixel after.
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
        contents: string scalar, content of a JPEG, PNG, WebP, BMP or GIF file. Of an animated GIF the first image is
            decoded. The orientation in EXIF data is ignored, as usual for ImageNet.
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
    indices = tf.cast(tf.io.decode_bmp(contents, channels=0)[:, :, 0], tf.int32)
    pixels, header = (tf.io.decode_raw(_part(contents, place, 4), tf.int32)[0] for place in (10, 14))
    colors = tf.io.decode_raw(_part(contents, 14 + header, pixels - 14 - header), tf.uint8)
    # Blue, green, red and an unused byte.
    return tf.gather(tf.reshape(colors, [-1, 4])[:, 2::-1], indices)


def _part(contents, begin, length):
    """Return bytes of a file, fewer at its end."""
    begin = tf.minimum(begin, tf.strings.length(contents))
    return tf.strings.substr(contents, begin, length)
