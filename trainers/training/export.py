"""Export of trained networks as `.keras` files and, on TensorFlow, SavedModels that accept raw pixels."""

import os
import pathlib
from collections.abc import Mapping, Sequence

import keras

from idmatters_tf.callbacks import load_weights
from idmatters_tf.checkpointing import list_steps, remove, replacing
from idmatters_tf.layers import ClassNames, PerImageStandardization
from trainers import preprocessing as fitted
from trainers.backends import runs_on_tensorflow
from trainers.cli.arguments import RunError, UsageError, program_command
from trainers.cli.startup import print_lines, print_warnings
from trainers.run.folder import EXPORT, check_output, hold_lock, write_mark
from trainers.training.reports import BEST, REMEDY
from trainers.training.settings import Task


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
    """Write the exports of the newest checkpoint and of the best one to a folder whose lock is held."""
    described = task.run.data()
    model = task.build_network(described.image_shape, described.classes)
    step = restore(task, model, task.recorded_identity)
    print_lines(f"{task.run.path}, step {step}:")
    export_run(task, model, step, folder)


def restore(task: Task, model: keras.Model, identity: Mapping[str, object]) -> int:
    """Restore the weights of the run's newest intact checkpoint. Returns its step.

    Raises:
        UsageError: there is no such checkpoint.
    """
    with print_warnings():
        step = load_weights(model, task.run.checkpoints_path, identity)
    if step is None:
        resume = program_command(task.program, "--resume", "--out", task.run.path)
        raise UsageError(f"{task.run.path} has no intact checkpoint. Train it first: {resume}")
    return step


def export_model(task: Task, network: keras.Model) -> keras.Model:
    """Return a model from uint8 images to logits: preprocessing, network, and a layer "classes" with the names.

    The network is that of the task, in float32 and for one device.

    Raises:
        UsageError: the preprocessing of the run is missing or damaged.
    """
    if task.settings.data.has_preprocessing:
        preprocessing = fitted.load(task.run.path)
    else:
        preprocessing = PerImageStandardization(name="standardization")
    images = keras.Input(network.input_shape[1:], dtype="uint8", name="images")
    logits = network(preprocessing(images))
    class_names = task.run.data().class_names
    if class_names:
        logits = ClassNames(class_names, name="classes")(logits)
    return keras.Model(images, logits, name=f"{network.name}_on_pixels")


def export(model: keras.Model, folder: str | os.PathLike, class_names: Sequence[str] = ()) -> None:
    """Write `model.keras` and, on TensorFlow, `saved_model/` into a folder, each atomically.

    The signatures of the SavedModel take uint8 images of shape (batch, rows, cols, channels):

    - `serving_default` returns a dict with `logits`, `probabilities`, the most probable class `label` and, with
      `class_names`, its `name`.
    - `logits` returns the logits.

    Raises:
        OSError: the files could not be written.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.keras") as beside:
        model.save(beside)
    if runs_on_tensorflow():
        _export_saved_model(model, folder, class_names)


def _export_saved_model(model, folder, class_names):
    import tensorflow as tf

    def answer(images):
        logits = model(images, training=False)
        label = tf.argmax(logits, axis=1, output_type=tf.int32)
        answers = {"logits": logits, "probabilities": tf.nn.softmax(logits), "label": label}
        return {**answers, "name": tf.gather(tf.constant(class_names), label)} if class_names else answers

    specification = [tf.TensorSpec([None, *model.input_shape[1:]], tf.uint8, name="images")]
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", answer, specification)
    archive.add_endpoint("logits", lambda images: model(images, training=False), specification)
    try:
        with replacing(folder / "saved_model", folder=True) as beside:
            archive.write_out(str(beside), verbose=False)  # pyright: ignore[reportAttributeAccessIssue]
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def export_run(task: Task, network: keras.Model, step: int, folder: pathlib.Path) -> None:
    """Export the network of a run after a number of steps, and its best weights if they differ, to a folder.

    The network is in float32 and for one device, whatever the precision and devices of the training. The best weights
    are exported to the subfolder `best`; earlier exports there are removed if the best weights are those of the
    network. How to load the exports is printed.

    Raises:
        RunError: the files could not be written.
        UsageError: the best weights belong to another run.
    """
    run = task.run
    names = task.run.data().class_names
    checkpoints = run.checkpoints_path / BEST
    best = list_steps(checkpoints)
    again = program_command(task.program, "--export-only", run.path, *([] if folder == run.path else ["--out", folder]))
    try:
        export(export_model(task, network), folder, names)
        print_lines(
            f"load it in Keras:      import idmatters_tf.layers, keras; model = keras.saving.load_model("
            f"{str(folder / 'model.keras')!r})",
            f"load the SavedModel:   import tensorflow as tf; serve = tf.saved_model.load("
            f"{str(folder / 'saved_model')!r}).signatures['serving_default']; serve(images=uint8_images)['label']"
            if runs_on_tensorflow()
            else f"write a SavedModel:    KERAS_BACKEND=tensorflow {again}",
        )
        if best == [step]:
            remove(folder / "best")
        elif best and load_weights(network, checkpoints, task.recorded_identity) is not None:
            export(export_model(task, network), folder / "best", names)
            print_lines(f"exports of step {best[-1]}, with the lowest test error: {folder / 'best'}")
    except OSError as error:
        raise RunError(f"the export to {folder} failed: {error}.", f"{REMEDY}, then use {again}") from error
