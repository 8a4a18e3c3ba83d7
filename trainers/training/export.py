"""Export of trained networks as `.keras` files and SavedModels that accept raw pixels."""

import contextlib
import os
import pathlib
from collections.abc import Sequence

import keras
import tensorflow as tf

from idmatters_tf.checkpointing import list_steps, remove_listed, replacing
from idmatters_tf.layers import ClassNames, PerImageStandardization
from trainers.cli.arguments import RunError
from trainers.cli.startup import print_lines, print_message
from trainers.cli.text import program_command
from trainers.datasets import preprocessing as fitted
from trainers.run.folder import Run
from trainers.training.build import in_float32
from trainers.training.checkpoints import BEST, REMEDY, WRITE_ERRORS, restore_weights
from trainers.training.program import Task


def with_preprocessing(
    network: keras.Model, preprocessing: keras.layers.Layer | None = None, class_names: Sequence[str] = ()
) -> keras.Model:
    """Return a model from uint8 images to logits: preprocessing, network, and a layer "classes" with the names."""
    preprocessing = preprocessing or PerImageStandardization(name="standardization")
    images = keras.Input(network.input_shape[1:], dtype="uint8", name="images")
    logits = network(preprocessing(images))
    if class_names:
        logits = ClassNames(class_names, name="classes")(logits)
    return keras.Model(images, logits, name=f"{network.name}_on_pixels")


def export_model(task: Task, run: Run, model: keras.Model) -> keras.Model:
    """Return a float32 model for one device, from uint8 images to logits, with the weights of `model`.

    Raises:
        UsageError: the preprocessing of the run is missing or damaged.
    """
    preprocessing = fitted.load(run.path) if task.settings.data.has_preprocessing else None
    return with_preprocessing(in_float32(task, model), preprocessing, run.data().output_names)


def export(
    network: keras.Model,
    folder: str | os.PathLike,
    preprocessing: keras.layers.Layer | None = None,
    class_names: Sequence[str] = (),
) -> tuple[pathlib.Path, pathlib.Path]:
    """Write `model.keras` and `saved_model/` into a folder, each atomically.

    `saved_model/` contains a `manifest.json` that allows a later export to replace it.

    The signatures of the SavedModel take uint8 images of shape (batch, rows, cols, channels):

    - `serving_default` returns a dict with `logits`, `probabilities`, the most probable class `label` and, with
      `class_names`, its `name`.
    - `logits` returns the logits.

    Args:
        network: float32 `keras.Model` from preprocessed images to logits.
        folder: existing folder.
        preprocessing: layer from raw pixels to the network's inputs; None: standardization of each image.
        class_names: one name per logit, or none.

    Returns:
        The two paths.
    """
    folder = pathlib.Path(folder)
    model = with_preprocessing(network, preprocessing, class_names)

    keras_path = folder / "model.keras"
    with replacing(keras_path) as beside:
        model.save(beside)

    saved_model_path = folder / "saved_model"
    specification = [tf.TensorSpec([None, *network.input_shape[1:]], tf.uint8, name="images")]
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", lambda images: _answers(model, images, class_names), specification)
    archive.add_endpoint("logits", lambda images: model(images, training=False), specification)
    with replacing(saved_model_path, folder=True) as beside:
        archive.write_out(str(beside), verbose=False)  # pyright: ignore[reportAttributeAccessIssue]
    return keras_path, saved_model_path


def _answers(model, images, class_names):
    logits = model(images, training=False)
    label = tf.argmax(logits, axis=1, output_type=tf.int32)
    answers = {"logits": logits, "probabilities": tf.nn.softmax(logits), "label": label}
    return {**answers, "name": tf.gather(tf.constant(class_names), label)} if class_names else answers


def export_run(task: Task, run: Run, model: keras.Model, step: int, out: str | os.PathLike | None = None) -> None:
    """Export the network of a run, and its best weights if they differ, and print how to load them.

    Args:
        task: task of the run.
        run: run with a checkpoint.
        model: trained network.
        step: number of updates made.
        out: output folder; None: the folder of the run. The best weights are exported to its subfolder `best`; earlier
            exports there are removed if the best weights are those of the network.

    Raises:
        RunError: the files could not be written.
        UsageError: the best weights belong to another run.
    """
    folder, names = pathlib.Path(out or run.path), run.data().output_names
    # Rebuilt in float32 for one device: the export should not depend on the precision and devices of the training.
    network = in_float32(task, model)
    preprocessing = fitted.load(run.path) if task.settings.data.has_preprocessing else None
    best = list_steps(run.checkpoints_path / BEST)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        print_lines(*how_to_load(*export(network, folder, preprocessing, names)).splitlines())
        if best == [step]:
            _remove_exports(folder / "best")
        elif best and _restore_best(task, run, network):
            (folder / "best").mkdir(exist_ok=True)
            export(network, folder / "best", preprocessing, names)
            print_lines(f"exports of step {best[-1]}, with the lowest test error: {folder / 'best'}")
    except WRITE_ERRORS as error:
        other = [] if folder == pathlib.Path(run.path) else ["--out", folder]
        again = program_command(task.program.name, "--export-only", run.path, *other)
        raise RunError(f"the export to {folder} failed: {error}.", f"{REMEDY}, then use {again}") from error


def _restore_best(task, run, network):
    return restore_weights(run.checkpoints_path / BEST, network, print_message, task.program.identity(run)) is not None


def _remove_exports(folder):
    """Remove the exports in a folder, and the folder itself if it is then empty."""
    (folder / "model.keras").unlink(missing_ok=True)
    remove_listed(folder / "saved_model")
    # Fails for a folder with other files.
    with contextlib.suppress(OSError):
        folder.rmdir()


def how_to_load(keras_path: pathlib.Path, saved_model_path: pathlib.Path) -> str:
    """Return two lines of code that load the exports."""
    return (
        f"load it in Keras:      import idmatters_tf.layers, keras; model = keras.saving.load_model("
        f"{str(keras_path)!r})\n"
        f"load the SavedModel:   import tensorflow as tf; serve = tf.saved_model.load({str(saved_model_path)!r})."
        f"signatures['serving_default']; serve(images=uint8_images)['label']"
    )
