"""Finished networks in the forms that other programs load: `.keras` and SavedModel, both taking raw pixels."""

import os
import pathlib
from collections.abc import Sequence

import keras
import tensorflow as tf

from idmatters_tf._checkpointing import saved_steps
from idmatters_tf._replacing import replacing
from idmatters_tf.layers import ClassNames, PerImageStandardization
from trainers.cli.arguments import RunError
from trainers.cli.startup import say, tell
from trainers.cli.text import program_command
from trainers.datasets import preprocessing as fitted
from trainers.run.folder import Run, check_exports
from trainers.training.build import in_float32
from trainers.training.checkpoints import BEST, restore_weights
from trainers.training.recorded import identity
from trainers.training.task import Task
from trainers.training.writing import why_not_written


def with_preprocessing(
    network: keras.Model, preprocessing: keras.layers.Layer | None = None, class_names: Sequence[str] = ()
) -> keras.Model:
    """The network behind its preprocessing: uint8 images in, logits out; the names are those of the layer "classes"."""
    preprocessing = preprocessing or PerImageStandardization(name="standardization")
    images = keras.Input(network.input_shape[1:], dtype="uint8", name="images")
    logits = network(preprocessing(images))
    if class_names:
        logits = ClassNames(class_names, name="classes")(logits)
    return keras.Model(images, logits, name=f"{network.name}_on_pixels")


def export(
    network: keras.Model,
    folder: str | os.PathLike,
    preprocessing: keras.layers.Layer | None = None,
    class_names: Sequence[str] = (),
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes `model.keras` and `saved_model/` into a folder, each entirely or not at all.

    `saved_model/` receives a `manifest.json`, by which a later export finds that it may be replaced.

    The SavedModel's signatures, for uint8 images of shape (batch, rows, cols, channels):

    - `serving_default`: a dict with `logits`, `probabilities`, `label`, the most probable class, and where the classes
      have names, its `name`.
    - `logits`: the logits alone.

    Args:
        network: a float32 `keras.Model` from preprocessed images to logits.
        folder: an existing folder.
        preprocessing: a layer from raw pixels to the network's inputs; None: each image is standardised by itself.
        class_names: one for each logit, or none.

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
    """Exports the network of a run, and says how to load it; where its best weights are others, these as well.

    Args:
        task, run: the training.
        model: the network as it was trained.
        step: the number of updates made.
        out: a folder; None: that of the run. The best weights are exported to its folder `best`.

    Raises:
        RunError: it could not be written.
        PathOccupied: something stands where the exports go; nothing is touched.
        UsageError: the best weights are those of another run.
    """
    folder, names = pathlib.Path(out or run.path), run.data().output_names
    check_exports(folder)
    # Rebuilt in float32 and for one device: what is served should not depend on how it was trained.
    network = in_float32(task, model)
    preprocessing = fitted.load(run.path) if task.settings.data.has_preprocessing else None
    best = saved_steps(run.checkpoints_path / BEST)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tell(*how_to_load(*export(network, folder, preprocessing, names)).splitlines())
        if best and best != [step] and _restore_best(task, run, network):
            (folder / "best").mkdir(exist_ok=True)
            export(network, folder / "best", preprocessing, names)
            tell(f"the same of step {best[-1]}, with the lowest test error: {folder / 'best'}")
    except Exception as error:
        failure = why_not_written(error, folder)
        if failure is None:
            raise
        other = [] if folder == pathlib.Path(run.path) else ["--out", folder]
        again = program_command(task.program, "--export-only", run.path, *other)
        raise RunError(f"the export to {folder} failed: {failure[0]}.", f"{failure[1]}, then use {again}") from error


def _restore_best(task, run, network):
    return restore_weights(run.checkpoints_path / BEST, network, say, identity(type(task), run)) is not None


def how_to_load(keras_path: pathlib.Path, saved_model_path: pathlib.Path) -> str:
    """Two lines of code for the end of a run."""
    return (
        f"load it in Keras:      import idmatters_tf.layers, keras; model = keras.saving.load_model("
        f"{str(keras_path)!r})\n"
        f"load the SavedModel:   import tensorflow as tf; serve = tf.saved_model.load({str(saved_model_path)!r})."
        f"signatures['serving_default']; serve(images=uint8_images)['label']"
    )
