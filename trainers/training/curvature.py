"""Measurements of the Hessian of the training loss during training: `--curvature-every N`."""

import sys
from typing import Any

import keras

from idmatters_tf.curvature import CurvatureMonitor
from idmatters_tf.data.protocols import EvaluationBatchSource
from trainers.cli.arguments import UsageError
from trainers.run.folder import Run
from trainers.training.learner import Learner
from trainers.training.session import Callback

# Number of training images.
EXAMPLES = 256
# About 100 Hessian-vector products per measurement, including two probes of 20 steps.
EFFORT: dict[str, Any] = {"eigenvalues": 2, "probes": 2, "steps": 20, "products": 15, "tolerance": 1e-2}


def curvature_callback(
    learner: Learner, copy: keras.Model | None, examples: EvaluationBatchSource, run: Run, every: int
) -> Callback:
    """Return a callback that measures every `every` steps and adds records of kind "curvature" to metrics.jsonl.

    Args:
        learner: network and optimizer.
        copy: float32 copy of a network that trains in bfloat16; None: measure the network itself.
        examples: training images without augmentation, in the form of the learner's evaluation.
        run: folder of the run.
        every: number of steps between measurements.

    Raises:
        UsageError: the loss cannot be measured.
    """
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    monitor = CurvatureMonitor(
        examples.dataset(),
        loss,
        log_dir=run.path / "events",
        measure_options=EFFORT,
        copy=copy,
        optimizer=learner.optimizer,
    )
    monitor.set_model(learner.model)
    try:
        monitor.on_train_begin()
    except ValueError as error:
        raise UsageError(f"--curvature-every: {error}") from error

    def measure(step: int, seconds: float) -> None:
        if step % every:
            return
        measured = monitor.record(step)
        run.record(kind="curvature", step=step, seconds=seconds, **measured.scalars())
        print(
            f"step {step}: eigenvalues {measured.smallest[0]:.3g} to {measured.largest[0]:.3g}, index "
            f"{measured.index:.3f}, trace {measured.trace:.3g} (+- {measured.trace_error:.2g})",
            file=sys.stderr,
        )

    return measure
