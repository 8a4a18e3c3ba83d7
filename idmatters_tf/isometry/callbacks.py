"""Callback that measures distances from the identity during `model.fit`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._monitor import Monitor
from idmatters_tf._results import Figure
from idmatters_tf.isometry.measurement import Isometry, measure, plot_distances


class IsometryMonitor(Monitor[Isometry]):
    """Callback that measures the distance of each block from the identity at regular intervals.

    The first measurement precedes training. TensorBoard shows ||J - I|| and the extreme singular values of each block
    (`isometry_distance/BLOCK` and so on, means over the inputs), those of the whole model, and the figure of `draw`. A
    summary is added to `logs`.

    Args:
        inputs: a few inputs of the model, without labels. A measurement costs about 100 products for each block and
            input, see `idmatters_tf.isometry.measure`.
        blocks: blocks to measure, see `idmatters_tf.isometry.find_blocks`. The residual blocks of the model if None.
        every: interval between measurements: a number of training steps, or a text such as "100 steps" or "2 epochs".
        log_dir: folder for TensorBoard's files, which TensorFlow writes. No files if None.
        training: mode in which the model is measured, see `idmatters_tf.isometry.block_distances`.
        measure_options: dict of options for `idmatters_tf.isometry.measure`, e.g. {"end_to_end": False}.

    Attributes:
        measurements: dict from the number of completed epochs or steps to `Isometry`.
    """

    prefix = "isometry"

    def __init__(
        self,
        inputs: Any,
        blocks: Any = None,
        every: int | str = "epoch",
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
        scalars = super().scalars(measured)
        for name, block in measured.blocks.items():
            for kind in ("distance", "relative", "largest", "smallest"):
                value = float(np.mean(getattr(block, kind)))
                if np.isfinite(value):
                    scalars[f"{self.prefix}_{kind}/{name}"] = value
        return scalars

    def images(self, measured: Isometry, number: int) -> dict[str, NDArray[np.uint8]]:
        return {f"{self.prefix}/distances": self.image()}

    def draw(self, figure: Figure) -> None:
        """Draw block number against ||J - I|| for up to six measurements, the first and the last among them."""
        numbers = sorted(self.measurements)
        chosen = np.unique(np.linspace(0, len(numbers) - 1, 6).round().astype(int))
        curves = {f"{self.unit} {numbers[index]}": self.measurements[numbers[index]].distances() for index in chosen}
        plot_distances(figure.subplots(), curves)
