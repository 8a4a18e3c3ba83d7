"""Evaluation and export of the checkpoints of a run without training."""

import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from trainers.backends import has_tensorflow, import_tensorflow, runs_on_tensorflow
from trainers.cli.arguments import RunError, UsageError, program_command
from trainers.cli.startup import print_lines, print_warnings
from trainers.cluster import make_strategy
from trainers.run.folder import EXPORT, check_output, hold_lock, write_mark
from trainers.training.settings import Task

if TYPE_CHECKING:
    import keras

_EXPORT = """
import pathlib, sys
from trainers.run.folder import Run
from trainers.training import evaluate, settings
name, path, folder = sys.argv[1:]
run = Run(path)
evaluate.export_newest(settings.Task(name, settings.recorded_settings(name, run), run), pathlib.Path(folder))
"""


def evaluate(task: Task, mirror: bool = False) -> int:
    """Print the test error of the newest checkpoint, computed on this machine."""
    model, step = restore_model(task)
    from trainers.training.measure import average_over_mirror_images, measure

    batches = task.source.test_batches()
    count = task.source.test_images
    measured: Any = measure(model, batches, count)
    top5 = f", top-5 error {100 * measured['top5_error']:.2f} %" if "top5_error" in measured else ""
    print_lines(
        f"{task.run.path}, step {step}: test error {100 * measured['error']:.2f} %{top5}, test loss "
        f"{measured['loss']:.4f} on {measured['count']:,} images"
    )
    if mirror:
        mirrored: Any = measure(average_over_mirror_images(model), batches, count)
        print_lines(f"averaged over each image and its mirror image: test error {100 * mirrored['error']:.2f} %")
    return 0


def restore_model(task: Task) -> tuple["keras.Model", int]:
    """Return a compiled network on this machine with the weights of the run's newest intact checkpoint, and the step.

    Raises:
        UsageError: there is no such checkpoint, or the data are not those of the run.
    """
    _ = task.data
    import_tensorflow()
    from trainers.training.build import build_model, compile_model, strategy_scope

    strategy = make_strategy()
    with strategy_scope(strategy):
        model = build_model(task, strategy)
        compile_model(task, model)
    return model, _restore(task, model, task.identity)


def export_again(task: Task, out: str | None = None) -> int:
    """Write the exports of the newest checkpoint and of the best one, without the data, by default into the run.

    Raises:
        UsageError: there is no checkpoint, another process uses the folder, or it contains other files.
    """
    folder = pathlib.Path(out or task.run.path)
    is_other = folder.resolve() != task.run.path.resolve()
    if is_other:
        check_output(folder, EXPORT)
    else:
        task.run.check_usable()
    with hold_lock(folder):
        if is_other:
            write_mark(folder, EXPORT, task.program, run=str(task.run.path))
        export_newest(task, folder)
    return 0


def export_newest(task: Task, folder: pathlib.Path) -> None:
    """Write the exports of the newest checkpoint and of the best one to a folder whose lock is held.

    On JAX, a process with TensorFlow as Keras' backend writes them, if TensorFlow is installed.
    """
    if not runs_on_tensorflow() and has_tensorflow():
        environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
        command = [sys.executable, "-c", _EXPORT, task.program, str(task.run.path), str(folder)]
        if subprocess.run(command, env=environment, check=False).returncode:
            again = program_command(task.program, "--export-only", task.run.path)
            raise RunError("the export failed, see above.", f"Repeat it by {again}")
        return
    described = task.run.data()
    import_tensorflow()
    from trainers.training.build import build_network
    from trainers.training.export import export_run

    model = build_network(task, described.image_shape, described.classes, "float32")
    step = _restore(task, model, task.recorded_identity)
    print_lines(f"{task.run.path}, step {step}:")
    export_run(task, model, step, folder)


def _restore(task: Task, model: "keras.Model", identity: dict[str, Any]) -> int:
    """Restore the weights of the run's newest intact checkpoint. Returns its step."""
    from idmatters_tf.callbacks import load_weights

    with print_warnings():
        step = load_weights(model, task.run.checkpoints_path, identity)
    if step is None:
        resume = program_command(task.program, "--resume", "--out", task.run.path)
        raise UsageError(f"{task.run.path} has no intact checkpoint. Train it first: {resume}")
    return step
