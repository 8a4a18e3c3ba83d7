"""Distances from the identity during `model.fit`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.callbacks._monitor import Monitor
from idmatters_tf.isometry.measurement import Isometry, draw_distances, measure


class IsometryMonitor(Monitor[Isometry]):
    """Measures how near the identity each block is, every so many epochs or steps, and before the first.

    TensorBoard shows ||J - I|| and the extreme singular values of each block (`isometry_distance/BLOCK` and so on,
    means over the inputs), the model's from input to output, and an image of block number against ||J - I||, now and at
    the first measurement. All of it is also kept in `measurements`; a summary goes into `logs`.

    Args:
        inputs: a handful of inputs, as the model takes them, without labels; a measurement costs about 100 products
            for each block and input, see `idmatters_tf.isometry.measure`.
        blocks: see `idmatters_tf.isometry.find_blocks`; the model's residual blocks if None.
        every: epochs between measurements, or steps, as in "100 steps".
        log_dir: of TensorBoard's files (written by TensorFlow); none are written if None.
        training: how the model is called when it is measured, see `idmatters_tf.isometry.block_distances`.
        measure_options: a dict for `idmatters_tf.isometry.measure`, e.g. {"end_to_end": False}.

    Attributes:
        measurements: by the number of epochs or steps done, `Isometry`.
    """

    prefix = "isometry"

    def __init__(
        self,
        inputs: Any,
        blocks: Any = None,
        every: int | str = 1,
        log_dir: Any = None,
        training: bool = False,
        measure_options: dict[str, Any] | None = None,
    ):
        super().__init__(every, log_dir)
        self._inputs, self._blocks, self._training = inputs, blocks, bool(training)
        self._measure_options = measure_options or {}

    def measure(self) -> Isometry:
        model: Any = self.model
        return measure(model, self._inputs, self._blocks, self._training, **self._measure_options)

    def logged(self, measured: Isometry) -> dict[str, float]:
        return measured.summary()

    def scalars(self, measured: Isometry) -> dict[str, float]:
        found = super().scalars(measured)
        for name, block in measured.blocks.items():
            for kind in ("distance", "relative", "largest", "smallest"):
                value = float(np.mean(getattr(block, kind)))
                if np.isfinite(value):
                    found[f"{self.prefix}_{kind}/{name}"] = value
        return found

    def images(self, measured: Isometry, number: int) -> dict[str, NDArray[np.uint8]]:
        numbers = sorted({min(self.measurements), number})
        curves = {f"{self.unit} {each}": self.measurements[each].distances() for each in numbers}
        return {f"{self.prefix}/distances": draw_distances(curves)}
