"""TensorBoard output: scalars, and norms of the blocks.

Training and test are separate TensorBoard runs, so that one chart shows a quantity of both. Charts are sorted by the
first part of a tag; the loss is first.
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import keras

from idmatters_tf._presentation.monitor import write_summary
from idmatters_tf.isometry import block_norms
from idmatters_tf.isometry.callbacks import NormsMeasurement
from trainers.backends import has_tensorflow

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


class Events:
    """Writer of the TensorBoard event files of a run, which requires TensorFlow. Without it nothing is written."""

    def __init__(self, folder: str | os.PathLike, writes: bool = True):
        self._folder, self._writes = pathlib.Path(folder), writes and has_tensorflow()
        self._writers: dict[str, Any] = {}

    def record(self, step: int, kind: str, record: Mapping[str, Any], blocks: Mapping[str, Any] | None = None) -> None:
        """Write the numbers of a record of kind "train" or "test", and the result of `measure_norms`."""
        self._write(kind, step, {_TAGS[name]: record[name] for name in record if name in _TAGS})
        if blocks is not None:
            values = {f"norms/{name}": blocks[name] for name in ("mean_frobenius", "largest_spectral")}
            for block, norms in blocks["blocks"].items():
                values |= {f"norms_{name}/{block}": value for name, value in norms.items()}
            self._write("", step, values)

    def _write(self, run: str, step: int, values: Mapping[str, float]) -> None:
        if self._writes:
            import tensorflow as tf

            if run not in self._writers:
                self._writers[run] = tf.summary.create_file_writer(str(self._folder / run))
            write_summary(self._writers[run], step, values)


def measure_norms(model: keras.Model) -> dict[str, Any] | None:
    """Return the norms of all blocks, their mean Frobenius and largest spectral norm, or None without blocks."""
    blocks = block_norms(model)
    return {**NormsMeasurement(blocks, {}).summary(), "blocks": blocks} if blocks else None
