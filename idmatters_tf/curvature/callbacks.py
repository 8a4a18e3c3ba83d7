"""The Hessian watched during `model.fit`."""

import keras
import tensorflow as tf

from idmatters_tf.curvature.measurement import measure, write_summary
from idmatters_tf.curvature.operators import HessianOperator


class CurvatureMonitor(keras.callbacks.Callback):
    """Measures the Hessian of the loss every so many epochs, and before the first one.

    Top eigenvalues at both ends, trace, index, gradient norm and loss go to TensorBoard as scalars, the density of the
    spectrum as an image; all of it is also kept in `measurements`. A measurement costs about
    probes * steps + products + 40 Hessian-vector products, each 2.5 gradients on the data given.

    Args:
        data: on which it is measured, see `HessianOperator`: a fixed sample of a few hundred or thousand examples,
            without augmentation.
        loss: the one the model was compiled with if None.
        every: epochs between measurements.
        log_dir: of TensorBoard's files; none are written if None.
        variables, options: see `HessianOperator`.
        measure_options: a dict for `idmatters_tf.curvature.measure`, e.g. {"eigenvalues": 5, "probes": 8}.

    Attributes:
        measurements: by the number of epochs done, `Measurement`.
    """

    def __init__(self, data, loss=None, every=1, log_dir=None, variables=None, measure_options=None, **options):
        super().__init__()
        if every < 1:
            raise ValueError(f"Argument `every` must be a positive number of epochs. Received: every={every!r}")
        self._data, self._loss, self._every, self._variables = data, loss, every, variables
        self._options, self._measure_options = options, measure_options or {}
        self._writer = None if log_dir is None else tf.summary.create_file_writer(str(log_dir))
        self._operator = None
        self.measurements = {}

    def on_train_begin(self, logs=None):
        loss = self.model.loss if self._loss is None else self._loss
        if isinstance(loss, (dict, list, tuple)) or loss is None:
            raise ValueError(
                f"Argument `loss` must be given where the model was not compiled with one loss. Received: "
                f"model.loss={loss!r}. Pass a callable loss(y, outputs) or loss(model, batch)."
            )
        strategy = self.model.distribute_strategy or tf.distribute.get_strategy()
        with strategy.scope():
            self._operator = HessianOperator(self.model, loss, self._data, self._variables, **self._options)
        self._measure(0)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._every == 0:
            measured = self._measure(epoch + 1)
            if logs is not None:
                logs |= {f"curvature_{name}": value for name, value in measured.scalars().items()}

    def _measure(self, epoch):
        measured = self.measurements[epoch] = measure(self._operator, **self._measure_options)
        if self._writer is not None:
            write_summary(self._writer, epoch, measured)
        return measured
