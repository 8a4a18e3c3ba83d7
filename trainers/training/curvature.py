"""Measurements of the Hessian of the training loss during training: `--curvature-every N`."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import keras

from idmatters_tf.curvature import CurvatureMonitor
from idmatters_tf.optimizers import Momentum
from trainers.cli.arguments import UsageError
from trainers.training.build import in_float32
from trainers.training.optimizers import RecipeMomentum
from trainers.training.task import Task

# Number of training images.
EXAMPLES = 256
# About 100 Hessian-vector products per measurement, including two probes of 20 steps.
EFFORT: dict[str, Any] = {"eigenvalues": 2, "probes": 2, "steps": 20, "products": 15, "tolerance": 1e-2}


def curvature_callback(task: Task, model: keras.Model, every: int) -> Callable[[int, float], None]:
    """Return a function of step and seconds that measures every `every` steps and adds records of kind "curvature".

    A network that trains in bfloat16 is measured in float32.

    Raises:
        UsageError: the loss cannot be measured.
    """
    run = task.run
    copy = None
    if task.settings.recipe.precision != "float32":
        strategy: Any = getattr(model, "distribute_strategy", None)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            replicas = getattr(strategy, "num_replicas_in_sync", 1)
            copy = in_float32(task, model, task.data.image_shape, replicas)
    # An optimizer of the same steps, whose stability threshold is known, with the rate of the last update.
    trained: Any = model.optimizer
    plain = Momentum(1.0, trained.momentum, trained.nesterov) if isinstance(trained, RecipeMomentum) else trained
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    monitor = CurvatureMonitor(
        task.source.examples(EXAMPLES).dataset(),
        loss,
        log_dir=run.path / "events",
        measure_options=EFFORT,
        copy=copy,
        optimizer=plain,
    )
    monitor.set_model(model)
    try:
        monitor.on_train_begin()
    except ValueError as error:
        raise UsageError(f"--curvature-every: {error}") from error

    def measure(step: int, seconds: float) -> None:
        if step % every:
            return
        if plain is not trained:
            plain.learning_rate = trained.schedule(step - 1)
        measured = monitor.record(step)
        run.record(kind="curvature", step=step, seconds=seconds, **measured.scalars())
        print(
            f"step {step}: eigenvalues {measured.smallest[0]:.3g} to {measured.largest[0]:.3g}, index "
            f"{measured.index:.3f}, trace {measured.trace:.3g} (+- {measured.trace_error:.2g})",
            file=sys.stderr,
        )

    return measure
