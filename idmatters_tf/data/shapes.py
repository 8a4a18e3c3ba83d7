"""Built-in data set of drawn shapes that needs no files: 32x32x3, ten classes.

Each image shows one shape of random color, position, size and rotation, lighter than the shaded background, over small
pieces of clutter and under noise. Color and position are independent of the class, so a linear classifier is much worse
than a small convolutional network (measured in docs/reference/reproduction.md). All images are a function of the seed.
"""

import math

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf.data.images import ImageData

SIZE = 32
SUPERSAMPLING = 2
CHUNK = 500


def load(train: int = 10_000, test: int = 2_000, seed: int = 0) -> ImageData:
    """Draw the data set.

    Args:
        train: number of training images.
        test: number of test images.
        seed: non-negative integer. Training and test images use separate random streams.

    Returns:
        An `ImageData`. The numbers of images of the classes differ by at most one.
    """
    train, test = positive_integer("train", train), positive_integer("test", test)
    first, second = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(2))
    origin = f"generated, {train:,} + {test:,} images from seed {seed}"
    return ImageData("shapes", *draw(train, first), *draw(test, second), tuple(CLASSES), origin)


def draw(count: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Draw images and labels: uint8 `(count, 32, 32, 3)` and int32 `(count,)`, with the classes in turn."""
    # Raises MemoryError before any work if there is not enough memory.
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    labels = (np.arange(count) % len(CLASSES)).astype(np.int32)
    for start in range(0, count, CHUNK):
        part = slice(start, start + CHUNK)
        images[part] = _draw_chunk(labels[part], rng)
    return images, labels


def _draw_chunk(labels, rng):
    count = len(labels)
    canvas = _background(count, rng)
    for _ in range(2):
        _paint(canvas, _clutter(count, rng), _colors(count, rng))
    coverage, mean = _coverage(labels, rng), canvas.mean(axis=(1, 2))
    # Lighter than the mean of the image in red, green and blue.
    _paint(canvas, coverage, mean + (255 - mean) * _uniform(rng, 0.4, 1, mean.shape))
    noise = _uniform(rng, 2, 18, (count, 1, 1, 1)) * (2 * rng.random(canvas.shape, np.float32) - 1)
    return np.clip(canvas + noise, 0, 255).astype(np.uint8)


def _uniform(rng, low, high, shape):
    return (low + (high - low) * rng.random(shape)).astype(np.float32)


def _colors(count, rng):
    """Return random dark and medium colors."""
    return _uniform(rng, 0, 155, (count, 3))


def _background(count, rng):
    """Return a gradient from one random color to another in a random direction for each image."""
    first, second = _colors(count, rng), _colors(count, rng)
    second = first + 0.4 * (second - first)
    angle = _uniform(rng, 0, 2 * math.pi, count)
    ramp = np.linspace(-0.5, 0.5, SIZE, dtype=np.float32)
    weight = 0.5 + 0.7 * (
        np.cos(angle)[:, None, None] * ramp[None, None, :] + np.sin(angle)[:, None, None] * ramp[None, :, None]
    )
    return first[:, None, None, :] + weight[..., None] * (second - first)[:, None, None, :]


def _paint(canvas, coverage, color):
    canvas += coverage[..., None] * (color[:, None, None, :] - canvas)


def _grid(count, rng, reach, low, high, finer=1):
    """Return the coordinates of the (sub-)pixels in the frame of each shape: moved, rotated, scaled to radius 1."""
    pixels = (np.arange(SIZE * finer, dtype=np.float32) + 0.5) / finer
    center = _uniform(rng, SIZE / 2 - reach, SIZE / 2 + reach, (2, count))
    angle = _uniform(rng, 0, 2 * math.pi, count)
    radius = _uniform(rng, low, high, count)
    across = (pixels[None, :] - center[0][:, None])[:, None, :]
    down = (pixels[None, :] - center[1][:, None])[:, :, None]
    cos, sin = ((function(angle) / radius)[:, None, None] for function in (np.cos, np.sin))
    return cos * across + sin * down, cos * down - sin * across


def _clutter(count, rng):
    """Return the coverage of a thin bar or a small blob at a random position in each image."""
    x, y = _grid(count, rng, reach=SIZE / 2, low=1.5, high=3.5)
    stretch = np.where(rng.random(count) < 0.5, 3.0, 1.0).astype(np.float32)[:, None, None]
    # Without sub-pixels: the edge is blurred over about one pixel.
    return np.clip(1.5 - (x / stretch) ** 2 - (y * np.sqrt(stretch)) ** 2, 0, 1)


def _coverage(labels, rng):
    """Return the fraction of the sub-pixels of each pixel that are inside the shape of its image."""
    x, y = _grid(len(labels), rng, reach=5, low=7.5, high=12.5, finer=SUPERSAMPLING)
    inside = np.empty(x.shape, bool)
    for label, test in enumerate(CLASSES.values()):
        chosen = labels == label
        inside[chosen] = test(x[chosen], y[chosen])
    fine = inside.reshape(len(labels), SIZE, SUPERSAMPLING, SIZE, SUPERSAMPLING)
    return fine.mean(axis=(2, 4), dtype=np.float32)


def _polygon(corners):
    """Return a test for the regular polygon with corners at distance 1, the intersection of half-planes."""
    normals = [2 * math.pi * (side + 0.5) / corners for side in range(corners)]

    def inside(x, y):
        sides = (
            np.float32(math.cos(a)) * x + np.float32(math.sin(a)) * y < math.cos(math.pi / corners) for a in normals
        )
        return np.logical_and.reduce(list(sides))

    return inside


def _star(x, y, tips=5, inner=0.42):
    # In half a sector the outline is the straight line from a tip (1, 0) to the notch between two tips.
    half = math.pi / tips
    angle = np.abs((np.arctan2(y, x) + half) % (2 * half) - half)
    radius = np.hypot(x, y)
    along, aside = radius * np.cos(angle), radius * np.sin(angle)
    notch_x, notch_y = inner * math.cos(half), inner * math.sin(half)
    return notch_y * (1 - along) - (1 - notch_x) * aside > 0


def _heart(x, y):
    x, y = 1.15 * x, 1.15 * y + 0.1
    return (x**2 + y**2 - 0.8) ** 3 < x**2 * y**3


CLASSES = {
    "disc": lambda x, y: x**2 + y**2 < 0.8,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.72) < 0.2,
    "square": _polygon(4),
    "bar": lambda x, y: (np.abs(x) < 1) & (np.abs(y) < 0.28),
    "triangle": _polygon(3),
    "half disc": lambda x, y: (x**2 + y**2 < 1) & (y > 0),
    "star": _star,
    "cross": lambda x, y: (np.minimum(np.abs(x), np.abs(y)) < 0.24) & (np.maximum(np.abs(x), np.abs(y)) < 0.9),
    "crescent": lambda x, y: (x**2 + y**2 < 1) & ((x - 0.45) ** 2 + y**2 > 0.62),
    "heart": _heart,
}
