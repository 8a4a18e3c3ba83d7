"""The Hessian watched from the training loop: `--curvature-every N`."""

import sys

from trainers.cli.arguments import UsageError, whole_number

# About 100 Hessian-vector products a measurement.
EFFORT = {"eigenvalues": 2, "probes": 2, "steps": 20, "products": 15, "tolerance": 1e-2}


def add_options(parser):
    """Adds the options to a `trainers.cli.arguments.Parser`."""
    group = parser.add_argument_group("curvature")
    group.add_argument(
        "--curvature-every",
        type=whole_number(1),
        metavar="N",
        help="measure the Hessian of the training loss every N steps: top eigenvalues, index, trace, gradient norm and "
        "spectral density, in TensorBoard and metrics.jsonl (default: never); about 100 Hessian-vector products each",
    )
    group.add_argument(
        "--curvature-examples", type=whole_number(2), default=256, metavar="N", help="pictures it is measured on"
    )


def watches(settings, trainer, images, labels, run):
    """What the loop is to call after each step: nothing, or the measurement that the settings ask for.

    Args:
        settings: of the run.
        trainer: a `trainers.training.loop.Trainer`.
        images, labels: training pictures as `idmatters_tf.data.batches.EvaluationBatches` takes them, used without
            augmentation.
        run: a `trainers.run.folder.Run`.

    Raises:
        UsageError: where it cannot be measured with the other settings.
    """
    every = settings["curvature_every"]
    if every is None:
        return []
    if settings["precision"] != "float32":
        raise UsageError(
            f"--curvature-every needs --precision float32: second derivatives are lost in the rounding of "
            f"{settings['precision']}."
        )
    return [CurvatureWatch(trainer, images, labels, run, every)]


class CurvatureWatch:
    """Measures every so many steps; called with the step and the seconds since the run began.

    Args:
        trainer: a `trainers.training.loop.Trainer`.
        images, labels: see `watches`.
        run: a `trainers.run.folder.Run`: metrics.jsonl gets a record of kind "curvature".
        every: steps between measurements.
    """

    def __init__(self, trainer, images, labels, run, every):
        import keras
        import tensorflow as tf

        from idmatters_tf.curvature import HessianOperator
        from idmatters_tf.data.batches import EvaluationBatches

        self._run, self._every = run, every
        pictures = EvaluationBatches(images, labels, min(64, len(images))).dataset()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
        try:
            # In the scope: each replica then takes its share of the pictures.
            with trainer.strategy.scope():
                self._operator = HessianOperator(trainer.model, loss, pictures)
        except ValueError as error:
            raise UsageError(f"--curvature-every: {error}") from error
        self._writer = tf.summary.create_file_writer(str(run.path / "events"))

    def __call__(self, step, seconds):
        from idmatters_tf.curvature.measurement import measure, write_summary

        if step % self._every:
            return
        measured = measure(self._operator, **EFFORT)
        write_summary(self._writer, step, measured)
        numbers = measured.scalars()
        self._run.record(kind="curvature", step=step, seconds=seconds, **numbers)
        print(
            f"step {step}: eigenvalues {measured.smallest[0]:.3g} to {measured.largest[0]:.3g}, index "
            f"{measured.index:.3f}, trace {measured.trace:.3g} (+- {measured.trace_error:.2g})",
            file=sys.stderr,
        )
