"""Finished networks in the forms that other programs load: `.keras` and SavedModel, both taking raw pixels."""

import pathlib

import keras
import tensorflow as tf

from idmatters_tf.layers import PerImageStandardization
from trainers.run.files import replacing


def with_preprocessing(network, preprocessing=None):
    """The network with its preprocessing in front: uint8 pictures in, logits out."""
    preprocessing = preprocessing or PerImageStandardization(name="standardization")
    images = keras.Input(network.input_shape[1:], dtype="uint8", name="images")
    return keras.Model(images, network(preprocessing(images)), name=f"{network.name}_on_pixels")


def export(network, folder, preprocessing=None):
    """Writes `model.keras` and `saved_model/` into a folder, each beside its place and then renamed.

    The SavedModel's signatures, for uint8 pictures of shape (batch, rows, cols, channels):

    - `serving_default`: a dict with `logits`, `probabilities` and `label`, the most probable class.
    - `logits`: the logits alone.

    Args:
        network: a float32 `keras.Model` from preprocessed pictures to logits.
        folder: an existing folder.
        preprocessing: a layer from raw pixels to the network's inputs; None: standardisation, picture by picture.

    Returns:
        The two paths.
    """
    folder = pathlib.Path(folder)
    model = with_preprocessing(network, preprocessing)

    keras_path = folder / "model.keras"
    with replacing(keras_path) as beside:
        model.save(beside)

    saved_model_path = folder / "saved_model"
    specification = [tf.TensorSpec([None, *network.input_shape[1:]], tf.uint8, name="images")]
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", lambda images: _answers(model, images), specification)
    archive.add_endpoint("logits", lambda images: model(images, training=False), specification)
    with replacing(saved_model_path) as beside:
        archive.write_out(str(beside), verbose=False)
    return keras_path, saved_model_path


def _answers(model, images):
    logits = model(images, training=False)
    return {
        "logits": logits,
        "probabilities": tf.nn.softmax(logits),
        "label": tf.argmax(logits, axis=1, output_type=tf.int32),
    }


def how_to_load(keras_path, saved_model_path):
    """Two sentences for the end of a run."""
    return (
        f"load it in Keras:      import idmatters_tf.layers, keras; model = keras.saving.load_model('{keras_path}')\n"
        f"load it without us:    import tensorflow as tf; serve = tf.saved_model.load('{saved_model_path}')."
        f"signatures['serving_default']; serve(images=uint8_pictures)['label']"
    )
