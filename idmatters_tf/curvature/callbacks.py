"""Callback that measures the Hessian during `model.fit`."""

import os
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._evaluation.losses import ModelLoss
from idmatters_tf._evaluation.monitor import Monitor
from idmatters_tf._keras_internals import model_of, read_adapted, restore_adapted
from idmatters_tf._keras_types import Data, Loss, Options, Variables
from idmatters_tf.curvature.measurement import Measurement, measure
from idmatters_tf.curvature.operators import HessianOperator
from idmatters_tf.curvature.stability import stability_threshold
from idmatters_tf.spectra import SpectralDensity


class CurvatureMonitor(Monitor[Measurement]):
    """Measures the Hessian of the loss before training and at regular intervals.

    TensorBoard gets as scalars: eigenvalues at both ends, the sharpness over the optimizer's stability threshold, the
    gradient's alignment with the top eigenvectors, trace, index, gradient norm and loss; and the spectral density as an
    image. `measurements` stores the same, and `plot(path)` draws it. A measurement costs about probes * steps +
    products + 30 Hessian-vector products, each about 2.3 gradients on `data`. If eigenvalues do not reach the
    tolerance, there is a warning, and `Measurement.converged` is False.

    Args:
        data: fixed sample of a few hundred or thousand examples without augmentation; see `HessianOperator`.
        loss: loss function; the compiled loss if None.
        every: interval between measurements: a number of training steps, or a text such as "100 steps" or "2 epochs".
        log_dir: folder for TensorBoard files (written by TensorFlow); no files are written if None.
        variables, options: see `HessianOperator`.
        measure_options: dict of options of `idmatters_tf.curvature.measure`, e.g. {"eigenvalues": 5, "probes": 8}.
        copy: the same network in another precision, such as float32 for a network that trains in bfloat16. It is
            measured in place of the trained network, with the current weights.
        optimizer: optimizer for the stability threshold; that of the model if None.

    Attributes:
        measurements: `Measurement` by number of finished epochs or steps.
    """

    prefix = "curvature"

    def __init__(
        self,
        data: Data,
        loss: Loss | ModelLoss = None,
        every: int | str = "epoch",
        log_dir: str | os.PathLike[str] | None = None,
        variables: Variables = None,
        measure_options: Options | None = None,
        copy: keras.Model | None = None,
        optimizer: keras.optimizers.Optimizer | None = None,
        **options: Any,
    ):
        super().__init__(every, log_dir)
        self._arguments = (loss, data, variables)
        self._options = options
        self._measure_options = measure_options or {}
        self._copy = copy
        self._optimizer = optimizer
        self._operator: HessianOperator

    def prepare(self) -> None:
        model = model_of(self)
        measured = model if self._copy is None else self._copy
        if measured is not model:
            # Before functions are compiled with the constants of layers such as `Normalization`.
            measured.set_weights(model.get_weights())
            restore_adapted(measured, read_adapted(model))
        self._operator = HessianOperator(measured, *self._arguments, **self._options)

    def measure(self) -> Measurement:
        model = model_of(self)
        if self._copy is not None:
            self._copy.set_weights(model.get_weights())
        threshold = stability_threshold(model.optimizer if self._optimizer is None else self._optimizer)
        return measure(self._operator, **self._measure_options, threshold=threshold)

    def _rebuild(self, *, density: Options, **fields: Any) -> Measurement:
        return Measurement(density=SpectralDensity(**density), **fields)

    def logged(self, measured: Measurement) -> dict[str, float]:
        return measured.scalars()

    def images(self, measured: Measurement, number: int) -> dict[str, NDArray[np.uint8]]:
        if not np.isfinite(measured.trace):
            return {}
        return {f"{self.prefix}/density": measured.image()}
