"""Callbacks that measure distances from the identity, and norms of residual blocks, during `model.fit`."""

import dataclasses
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._evaluation.monitor import Monitor
from idmatters_tf._keras_internals import model_of
from idmatters_tf._keras_types import Options, Structure
from idmatters_tf._presentation.results import Figure
from idmatters_tf.isometry.blocks import BlockNames, find_blocks
from idmatters_tf.isometry.measurement import BlockIsometry, Isometry, measure, plot_distances
from idmatters_tf.isometry.norms import block_norms
from idmatters_tf.layers import LinearResidual


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
        inputs: Structure,
        blocks: BlockNames | None = None,
        every: int | str = "epoch",
        log_dir: str | os.PathLike[str] | None = None,
        training: bool = False,
        measure_options: Options | None = None,
    ):
        super().__init__(every, log_dir)
        self._inputs = inputs
        self._blocks = blocks
        self._training = bool(training)
        self._measure_options = measure_options or {}

    def measure(self) -> Isometry:
        return measure(model_of(self), self._inputs, self._blocks, self._training, **self._measure_options)

    def _rebuild(self, *, blocks: dict[str, Options], **fields: Any) -> Isometry:
        return Isometry({name: BlockIsometry(**block) for name, block in blocks.items()}, **fields)

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


@dataclasses.dataclass(frozen=True)
class NormsMeasurement:
    """Norms of the residual blocks of a model.

    Attributes:
        blocks: norms by block name, see `idmatters_tf.isometry.block_norms`.
        tau: |||A|||, the largest spectral norm of linear residual layers h + A h. None if there are other blocks.
    """

    blocks: dict[str, dict[str, float]]
    tau: float | None

    def summary(self) -> dict[str, float]:
        """Return the mean Frobenius norm, the largest spectral norm and, if it is known, tau."""
        numbers = {
            "mean_frobenius": float(np.mean([norms["frobenius"] for norms in self.blocks.values()])),
            "largest_spectral": max(norms["spectral"] for norms in self.blocks.values()),
        }
        return numbers if self.tau is None else {**numbers, "tau": self.tau}


class BlockNorms(Monitor[NormsMeasurement]):
    """Callback that periodically measures the norms of the kernels of each residual block.

    tau = |||A||| is the largest spectral norm of linear residual layers h + A h. If tau is below 1, the gradient
    dominance of Hardt & Ma (2.3, version 3) bounds the excess risk by the gradient, see
    `idmatters_tf.linear.gradient_dominance`. For tau of 1 and above there is no bound.

    TensorBoard shows `norms/mean_frobenius`, `norms/largest_spectral`, `norms/tau`, and for each block
    `norms_frobenius/BLOCK` and `norms_spectral/BLOCK`.

    Args:
        every: interval between measurements: a number of training steps, or a text such as "100 steps" or "2 epochs".
        log_dir: folder of TensorBoard's files (written by TensorFlow). If None, none are written.
        tolerance: relative tolerance of the spectral norms of convolutions.

    Attributes:
        measurements: `NormsMeasurement` by the number of completed epochs or steps.

    Raises:
        ValueError: the model has no residual blocks. Raised when `fit` begins.
    """

    prefix = "norms"

    def __init__(
        self, every: int | str = "epoch", log_dir: str | os.PathLike[str] | None = None, tolerance: float = 1e-3
    ):
        super().__init__(every, log_dir)
        self._tolerance = tolerance

    def measure(self) -> NormsMeasurement:
        model = model_of(self)
        blocks = block_norms(model, self._tolerance)
        if not blocks:
            raise ValueError(
                f"BlockNorms requires residual layers of idmatters_tf.layers, or sums x + f(x) of Conv2D or Dense "
                f"layers in a functional model. Received: {model.name!r}, which has none."
            )
        is_linear = all(isinstance(block.layer, LinearResidual) for block in find_blocks(model))
        return NormsMeasurement(blocks, max(norms["spectral"] for norms in blocks.values()) if is_linear else None)

    def _rebuild(self, **fields: Any) -> NormsMeasurement:
        return NormsMeasurement(**fields)

    def logged(self, measured: NormsMeasurement) -> dict[str, float]:
        return measured.summary()

    def scalars(self, measured: NormsMeasurement) -> dict[str, float]:
        scalars = super().scalars(measured)
        for block, norms in measured.blocks.items():
            scalars |= {f"{self.prefix}_{kind}/{block}": value for kind, value in norms.items()}
        return scalars
