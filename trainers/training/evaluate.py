"""Evaluation and export of the checkpoints of a run without training."""

import pathlib
from typing import TYPE_CHECKING

from trainers.cli.arguments import UsageError, program_command
from trainers.cli.startup import import_tensorflow, print_lines
from trainers.run.folder import Run, hold_lock
from trainers.training.program import Task

if TYPE_CHECKING:
    import keras

    from trainers.training.synchronous import SynchronousTrainer


def evaluate(task: Task, run: Run, mirror: bool = False) -> int:
    """Print the test error of the newest checkpoint, computed on this machine."""
    trainer, step = restore_trainer(task, run)
    measured = trainer.evaluate(task.source.test_batches())
    top5 = f", top-5 error {100 * measured['top5_error']:.2f} %" if "top5_error" in measured else ""
    print_lines(
        f"{run.path}, step {step}: test error {100 * measured['error']:.2f} %{top5}, test loss "
        f"{measured['loss']:.4f} on {measured['count']:,} images"
    )
    if mirror:
        mirrored = trainer.evaluate(task.source.test_batches(), mirror=True)
        print(f"averaged over each image and its mirror image: test error {100 * mirrored['error']:.2f} %")
    return 0


def restore_trainer(task: Task, run: Run) -> tuple["SynchronousTrainer", int]:
    """Return a trainer on this machine with the weights of a run's newest intact checkpoint, and the step.

    Raises:
        UsageError: there is no such checkpoint, or the data are not those of the run.
    """
    run.check_data(task.data.digest(), task.data.origin)
    import_tensorflow()
    from trainers.cluster import strategy as strategies
    from trainers.training.build import build_learner
    from trainers.training.synchronous import SynchronousTrainer

    strategy = task.settings.devices.strategy
    learner = build_learner(task, task.data, strategies.make(strategy if strategy in ("one", "mirrored") else "auto"))
    step = _restore(task, run, learner.model)
    return SynchronousTrainer(learner), step


def export_again(task: Task, run: Run, out: str | None = None) -> int:
    """Write the exports of the newest checkpoint and of the best one, without the data.

    Args:
        task: task with the settings of the run.
        run: run with a checkpoint.
        out: output folder; None: the folder of the run.

    Raises:
        UsageError: another process uses the folder.
    """
    described = run.data()
    folder = pathlib.Path(out or run.path)
    with hold_lock(folder):
        Run(folder).remove_unfinished()
        import_tensorflow()
        from trainers.training.build import build_network
        from trainers.training.export import export_run

        model = build_network(task, described.image_shape, described.classes, "float32")
        step = _restore(task, run, model)
        print_lines(f"{run.path}, step {step}:")
        export_run(task, run, model, step, folder)
    return 0


def _restore(task: Task, run: Run, model: "keras.Model") -> int:
    """Restore the weights of a run's newest intact checkpoint. Returns its step.

    Raises:
        UsageError: there is no such checkpoint, or it belongs to another run.
    """
    from trainers.training.checkpoints import restore_weights

    step = restore_weights(run.checkpoints_path, model, task.program.identity(run))
    if step is None:
        resume = program_command(task.program.name, "--resume", "--out", run.path)
        raise UsageError(f"{run.path} has no intact checkpoint. Train it first: {resume}")
    return step
