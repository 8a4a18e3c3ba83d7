"""The Hessian of the training loss, measured while a program trains: `--curvature-every N`."""

import sys
from typing import TYPE_CHECKING, Any

from idmatters_tf.data.protocols import EvaluationBatchSource
from trainers.cli.arguments import UsageError

if TYPE_CHECKING:
    import keras

    from idmatters_tf.curvature import Measurement
    from trainers.run.folder import Run
    from trainers.training.learner import Learner

# About 100 Hessian-vector products a measurement, two probes of 20 steps among them.
EFFORT: dict[str, Any] = {"eigenvalues": 2, "probes": 2, "steps": 20, "products": 15, "tolerance": 1e-2}


class CurvatureCallback:
    """Measures every so many steps; called with the step and the seconds since the run began.

    Args:
        learner: a `trainers.training.learner.Learner`.
        model: what is measured: the learner's network, or the same one in float32, which gets its weights each time.
        examples: training images without augmentation, as the learner's evaluation takes them.
        run: metrics.jsonl gets a record of kind "curvature".
        every: number of steps between measurements.

    Raises:
        UsageError: the loss cannot be measured.
    """

    def __init__(
        self, learner: "Learner", model: "keras.Model", examples: EvaluationBatchSource, run: "Run", every: int
    ):
        import keras
        import tensorflow as tf

        from idmatters_tf.curvature import HessianOperator

        self._run, self._every, self._learner, self._model = run, every, learner, model
        self._last: Measurement | None = None
        batches = examples.dataset()
        if learner.preprocess is not None:
            prepare = learner.preprocess
            batches = batches.map(lambda images, labels, weights: (prepare(images), labels, weights))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
        try:
            # In the scope: each replica then takes its share of the images.
            with learner.strategy.scope():
                self._operator = HessianOperator(model, loss, batches)
        except ValueError as error:
            raise UsageError(f"--curvature-every: {error}") from error
        self._writer = tf.summary.create_file_writer(str(run.path / "events"))

    def __call__(self, step: int, seconds: float) -> None:
        from idmatters_tf.curvature import stability_threshold
        from idmatters_tf.curvature.measurement import measure, write_summary

        if step % self._every:
            return
        if self._model is not self._learner.model:
            self._model.set_weights(self._learner.model.get_weights())
        measured = measure(
            self._operator,
            **EFFORT,
            start=None if self._last is None else self._last.vectors,
            threshold=stability_threshold(self._learner.optimizer),
        )
        self._last = measured
        write_summary(self._writer, step, measured, prefix="spectrum")
        self._run.record(kind="curvature", step=step, seconds=seconds, **measured.scalars())
        print(
            f"step {step}: eigenvalues {measured.smallest[0]:.3g} to {measured.largest[0]:.3g}, index "
            f"{measured.index:.3f}, trace {measured.trace:.3g} (+- {measured.trace_error:.2g})",
            file=sys.stderr,
        )
