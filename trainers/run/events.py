"""TensorBoard output: scalars, norms of the blocks, and augmented images.

Training and test are separate TensorBoard runs, so that one chart shows a quantity of both. Charts are sorted by the
first part of a tag; the loss is first.
"""

import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idmatters_tf.callbacks._monitor import write_summary
from idmatters_tf.callbacks.block_norms import NormsMeasurement
from idmatters_tf.isometry import block_norms

# Tags of the values of a record that are shown.
_TAGS = {
    "loss": "loss",
    "error": "top1_error",
    "top5_error": "top5_error",
    "penalty": "loss/penalty",
    "gradient_norm": "optimization/gradient_norm",
    "learning_rate": "optimization/learning_rate",
    "images_per_second": "speed/images_per_second",
}
# Number of images shown, and number per row.
IMAGES, IMAGES_IN_A_ROW = 16, 4


class Events:
    """Writer of the TensorBoard event files of a run.

    Args:
        folder: folder of the event files.
        writes: False to write nothing.
    """

    def __init__(self, folder: str | os.PathLike, writes: bool = True):
        self.writes = writes
        self._folder = pathlib.Path(folder)
        self._writers: dict[str, Any] = {}

    def _writer(self, run=""):
        if run not in self._writers:
            make = tf.summary.create_file_writer if self.writes else lambda _: tf.summary.create_noop_writer()
            self._writers[run] = make(str(self._folder / run))
        return self._writers[run]

    def scalars(self, step: int, values: Mapping[str, float], run: str = "") -> None:
        """Write numbers by tag to the TensorBoard run `run` inside this one."""
        write_summary(self._writer(run), step, values)

    def record(self, step: int, kind: str, record: Mapping[str, Any]) -> None:
        """Write the values of a record.

        Args:
            step: step of the record.
            kind: "train" or "test".
            record: numbers by name.
        """
        self.scalars(step, {_TAGS[name]: value for name, value in record.items() if name in _TAGS}, kind)

    def norms(self, model: keras.Model) -> dict[str, Any] | None:
        """Return the norms of all blocks, their mean Frobenius and largest spectral norm, or None without blocks."""
        blocks = block_norms(model) if self.writes else None
        if not blocks:
            return None
        return {**NormsMeasurement(blocks, {}).summary(), "blocks": blocks}

    def write_norms(self, step: int, norms: Mapping[str, Any] | None) -> None:
        """Write the result of `norms`."""
        if norms is None:
            return
        values = {f"norms/{name}": norms[name] for name in ("mean_frobenius", "largest_spectral")}
        for block, block_values in norms["blocks"].items():
            values |= {f"norms_{name}/{block}": value for name, value in block_values.items()}
        self.scalars(step, values)

    def images(self, images: tf.Tensor) -> None:
        """Write a grid of standardized images, each rescaled to the full range of gray levels."""
        with self._writer().as_default(step=0):
            tf.summary.image("training_images", image_grid(np.asarray(images))[np.newaxis])
        self._writer().flush()


def image_grid(images: NDArray[Any]) -> NDArray[np.float32]:
    """Arrange images in a grid, each rescaled to the full range of gray levels.

    Args:
        images: (n, rows, cols, channels).

    Returns:
        float32 in 0..1, (rows of the grid, cols of the grid, channels), with white lines of one pixel between images.
    """
    low = images.min(axis=(1, 2, 3), keepdims=True)
    high = images.max(axis=(1, 2, 3), keepdims=True)
    spread = (images - low) / np.maximum(high - low, 1e-6)
    count, rows, cols, channels = images.shape
    across = min(count, IMAGES_IN_A_ROW)
    down = math.ceil(count / across)
    grid = np.ones((down * (rows + 1) - 1, across * (cols + 1) - 1, channels), np.float32)
    for number, image in enumerate(spread):
        top, left = number // across * (rows + 1), number % across * (cols + 1)
        grid[top : top + rows, left : left + cols] = image
    return grid
