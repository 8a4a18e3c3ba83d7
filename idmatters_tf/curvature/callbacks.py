"""The Hessian during `model.fit`."""

import contextlib
from typing import Any

import keras

from idmatters_tf.arguments import positive_integer
from idmatters_tf.curvature.measurement import Measurement, measure, write_summary
from idmatters_tf.curvature.operators import HessianOperator
from idmatters_tf.curvature.stability import optimizer_threshold


class CurvatureMonitor(keras.callbacks.Callback):
    """Measures the Hessian of the loss every so many epochs, and before the first one.

    Eigenvalues at both ends, the sharpness over the optimizer's stability threshold, the gradient's alignment with the
    top eigenvectors, trace, index, gradient norm and loss go to TensorBoard as scalars, the density of the spectrum as
    an image; all of it is also kept in `measurements`. Each search for eigenvalues starts from the last eigenvectors.
    A measurement costs about probes * steps + products + 30 Hessian-vector products, each about 2.5 gradients on the
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
        super().__init__()
        self._every = positive_integer("every", every)
        self._data, self._loss, self._variables = data, loss, variables
        self._options, self._measure_options = options, measure_options or {}
        self._writer: Any = None
        if log_dir is not None:
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(str(log_dir))
        self._operator: HessianOperator | None = None
        self.measurements: dict[int, Measurement] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        strategy = getattr(model, "distribute_strategy", None)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            self._operator = HessianOperator(model, self._loss, self._data, self._variables, **self._options)
        self._measure(0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (epoch + 1) % self._every == 0:
            measured = self._measure(epoch + 1)
            if logs is not None:
                logs |= {f"curvature_{name}": value for name, value in measured.scalars().items()}

    def _measure(self, epoch: int) -> Measurement:
        if self._operator is None:
            raise RuntimeError("CurvatureMonitor measures during `model.fit`: pass it as one of the callbacks.")
        model: Any = self.model
        last = self.measurements[max(self.measurements)] if self.measurements else None
        measured = self.measurements[epoch] = measure(
            self._operator,
            **self._measure_options,
            start=None if last is None else last.vectors,
            threshold=optimizer_threshold(model.optimizer),
        )
        if self._writer is not None:
            write_summary(self._writer, epoch, measured)
        return measured
