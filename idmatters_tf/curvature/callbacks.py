"""The Hessian during `model.fit`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.callbacks._monitor import Monitor
from idmatters_tf.curvature.measurement import Measurement, density_image, measure
from idmatters_tf.curvature.operators import HessianOperator
from idmatters_tf.curvature.stability import stability_threshold


class CurvatureMonitor(Monitor[Measurement]):
    """Measures the Hessian of the loss every so many epochs, and before the first one.

    Eigenvalues at both ends, the sharpness over the optimizer's stability threshold, the gradient's alignment with the
    top eigenvectors, trace, index, gradient norm and loss go to TensorBoard as scalars, the density of the spectrum as
    an image; all of it is also kept in `measurements`. Each search for eigenvalues starts from the last eigenvectors.
    A measurement costs about probes * steps + products + 30 Hessian-vector products, each about 2.3 gradients on the
    data given.

    Args:
        data: on which it is measured, see `HessianOperator`: a fixed sample of a few hundred or thousand examples,
            without augmentation.
        loss: the one the model was compiled with if None.
        every: epochs between measurements.
        log_dir: of TensorBoard's files (written by TensorFlow); none are written if None.
        variables, options: see `HessianOperator`.
        measure_options: a dict for `idmatters_tf.curvature.measure`, e.g. {"eigenvalues": 5, "probes": 8}.

    Attributes:
        measurements: by the number of epochs done, `Measurement`.
    """

    prefix = "curvature"

    def __init__(
        self,
        data: Any,
        loss: Any = None,
        every: int = 1,
        log_dir: Any = None,
        variables: Any = None,
        measure_options: dict[str, Any] | None = None,
        **options: Any,
    ):
        super().__init__(every, log_dir)
        self._data, self._loss, self._variables = data, loss, variables
        self._options, self._measure_options = options, measure_options or {}
        self._operator: Any = None

    def prepare(self) -> None:
        model: Any = self.model
        self._operator = HessianOperator(model, self._loss, self._data, self._variables, **self._options)

    def measure(self) -> Measurement:
        model: Any = self.model
        last = self.measurements[max(self.measurements)] if self.measurements else None
        return measure(
            self._operator,
            **self._measure_options,
            start=None if last is None else last.vectors,
            threshold=stability_threshold(model.optimizer),
        )

    def logged(self, measured: Measurement) -> dict[str, float]:
        return measured.scalars()

    def images(self, measured: Measurement, epoch: int) -> dict[str, NDArray[np.uint8]]:
        return {f"{self.prefix}/density": density_image(measured, epoch)}
