"""TensorBoard output: scalars, and norms of the blocks.

Training and test are separate TensorBoard runs, so that one chart shows a quantity of both. Charts are sorted by the
first part of a tag; the loss is first.
"""

import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from idmatters_tf._presentation.monitor import write_summary
from idmatters_tf.checkpointing import remove_unfinished, replacing
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
# Kinds of the records whose values each TensorBoard run shows.
_KINDS = {"": ("test", "curvature"), "train": ("train",), "test": ("test",)}


class Events:
    """Writer of the TensorBoard event files of a run, which requires TensorFlow. Without it nothing is written.

    Points other than those of the records so far, which a killed process has written, are removed.
    """

    def __init__(self, folder: str | os.PathLike, writes: bool = True, records: Sequence[Mapping[str, Any]] = ()):
        self._folder, self._writes = pathlib.Path(folder), writes and has_tensorflow()
        self._writers: dict[str, Any] = {}
        for run, kinds in _KINDS.items() if self._writes else ():
            _discard_points(self._folder / run, {record["step"] for record in records if record["kind"] in kinds})

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


def _discard_points(folder: pathlib.Path, steps: Collection[int]) -> None:
    """Remove the points of other steps from the event files of a folder."""
    import tensorflow as tf

    remove_unfinished(folder)
    for path in folder.glob("events.out.tfevents.*"):
        # A kill may have truncated the last point.
        contents: list[Any] = list(tf.data.TFRecordDataset(str(path)).ignore_errors().as_numpy_iterator())
        points = map(tf.compat.v1.Event.FromString, contents)
        kept = [
            content
            for content, point in zip(contents, points, strict=True)
            if point.file_version or point.step in steps
        ]
        if len(kept) < len(contents):
            with replacing(path) as beside, tf.io.TFRecordWriter(str(beside)) as writer:
                for content in kept:
                    writer.write(content)
