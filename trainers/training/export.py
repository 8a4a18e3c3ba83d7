"""Export of trained networks as `.keras` files and, on TensorFlow, SavedModels that accept raw pixels."""

import pathlib
from collections.abc import Mapping, Sequence

import keras

from idmatters_tf.callbacks import load_weights
from idmatters_tf.checkpointing import replacing
from idmatters_tf.layers import ClassNames, PerImageStandardization
from trainers import preprocessing as fitted
from trainers.backends import runs_on_tensorflow
from trainers.cli.arguments import RunError, UsageError, program_command
from trainers.cli.startup import print_lines, print_warnings
from trainers.training.settings import Task

SPACE = "Make sure that the disk is writable and not full"


def export_newest(task: Task) -> None:
    """Write the exports of the newest checkpoint to the folder of the run, whose lock is held, without the data.

    How to load them is printed.

    Raises:
        RunError: the files could not be written.
        UsageError: there is no checkpoint, or one of them belongs to another run.
    """
    run, described = task.run, task.run.data()
    # In float32 and for one device, whatever the precision and devices of the training.
    network = task.build_network(described.image_shape, described.classes)
    step = restore(task, network, task.recorded_identity)
    again = program_command(task.program, "--export-only", run.path)
    load = f"import idmatters_tf.layers, keras; model = keras.saving.load_model({str(run.path / 'model.keras')!r})"
    saved = f"KERAS_BACKEND=tensorflow {again}"
    if runs_on_tensorflow():
        saved = f"import tensorflow as tf; serve = tf.saved_model.load({str(run.path / 'saved_model')!r}).signatures"
        saved += "['serving_default']; serve(images=uint8_images)['label']"
    try:
        export(task, network, run.path)
    except OSError as error:
        raise RunError(f"the export to {run.path} failed: {error}.", f"{SPACE}, then use {again}") from error
    print_lines(f"{run.path}, step {step}:", f"load it in Keras:      {load}", f"SavedModel:            {saved}")


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


def export(task: Task, network: keras.Model, folder: pathlib.Path) -> None:
    """Write `model.keras` and, on TensorFlow, `saved_model/` into a folder, each atomically.

    Both map uint8 images of shape (batch, rows, cols, channels) to logits, with the preprocessing of the run. A layer
    "classes" has the names of the classes. The signatures of the SavedModel:

    - `serving_default` returns a dict with `logits`, `probabilities`, the most probable class `label` and its `name`,
      if it has one.
    - `logits` returns the logits.

    Raises:
        OSError: the files could not be written.
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
    model = keras.Model(images, logits, name=f"{network.name}_on_pixels")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.keras") as beside:
        model.save(beside)
    if runs_on_tensorflow():
        _export_saved_model(model, folder, class_names)


def _export_saved_model(model: keras.Model, folder: pathlib.Path, class_names: Sequence[str]) -> None:
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
