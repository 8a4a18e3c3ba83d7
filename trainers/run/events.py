"""What TensorBoard shows: scalars, the norms of the blocks, augmented images, and the settings as HParams."""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.norms import block_norms


class Events:
    """Writes TensorBoard's event files of a run into `folder`; nothing where `writes` is false."""

    def __init__(self, folder: str | os.PathLike, writes: bool = True):
        self.writes = writes
        self._writer = tf.summary.create_file_writer(str(folder)) if writes else tf.summary.create_noop_writer()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes numbers by tag."""
        with self._writer.as_default(step=step):
            for tag, value in values.items():
                tf.summary.scalar(tag, value)
        self._writer.flush()

    def norms(self, model: keras.Model) -> dict[str, Any] | None:
        """Mean Frobenius and largest spectral norm over all residual blocks, and each block's; None without blocks."""
        blocks = block_norms(model) if self.writes else None
        if not blocks:
            return None
        return {
            "mean_frobenius": float(np.mean([norms["frobenius"] for norms in blocks.values()])),
            "largest_spectral": max(norms["spectral"] for norms in blocks.values()),
            "blocks": blocks,
        }

    def write_norms(self, step: int, norms: Mapping[str, Any] | None) -> None:
        """Writes what `norms` returned."""
        if norms is None:
            return
        values = {f"norms/{name}": norms[name] for name in ("mean_frobenius", "largest_spectral")}
        for block, of_block in norms["blocks"].items():
            values |= {f"norms_{name}/{block}": value for name, value in of_block.items()}
        self.scalars(step, values)

    def images(self, images: tf.Tensor) -> None:
        """Shows a few standardised images, each spread over the range of grey levels."""
        low = tf.reduce_min(images, axis=[1, 2, 3], keepdims=True)
        high = tf.reduce_max(images, axis=[1, 2, 3], keepdims=True)
        with self._writer.as_default(step=0):
            tf.summary.image("augmented inputs", (images - low) / tf.maximum(high - low, 1e-6), max_outputs=8)

    def settings(self, settings: Mapping[str, Any], result: Mapping[str, Any] | None = None) -> None:
        """Records the settings for the HParams tab, and once there is a result, its errors as the metrics."""
        from tensorboard.plugins.hparams import api as hparams

        plain = {
            name: value if isinstance(value, (bool, int, float, str)) else str(value)
            for name, value in settings.items()
            if value is not None
        }
        with self._writer.as_default(step=0):
            hparams.hparams(plain)
        if result is not None:
            self.scalars(result["steps"], {"hparams/best_error": result["best_error"]})
        self._writer.flush()
