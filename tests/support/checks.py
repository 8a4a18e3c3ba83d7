"""Checks for all layers and models."""

import functools

import keras
import numpy as np
import pytest


def check_layer(layer, inputs, expected=None, atol=1e-5):
    """Check building, shapes, dtype, serialization, use in a model and one training step of a layer.

    Args:
        layer: a new layer.
        inputs: a NumPy batch.
        expected: expected output, if known.
        atol: absolute tolerance of the comparison.

    Returns:
        The layer's output as a NumPy array.
    """
    outputs = keras.ops.convert_to_numpy(layer(inputs))
    assert tuple(layer.compute_output_shape(inputs.shape)) == outputs.shape
    if expected is not None:
        np.testing.assert_allclose(outputs, expected, atol=atol)

    copy = type(layer).from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    copy.build(inputs.shape)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(copy(inputs)), outputs)

    unknown = keras.Input((None,) * (inputs.ndim - 2) + inputs.shape[-1:])
    model = keras.Model(unknown, layer(unknown))
    assert model.output_shape[-1] == outputs.shape[-1]
    np.testing.assert_allclose(model.predict(inputs, verbose=0), outputs, atol=1e-5)
    if layer.trainable_variables:
        model.compile("sgd", "mse", run_eagerly=True)
        before = [np.array(weight) for weight in layer.trainable_variables]
        model.fit(inputs, outputs + 1, verbose=0)
        assert any(not np.array_equal(old, new) for old, new in zip(before, layer.trainable_variables, strict=True)), (
            "no weight moved in a training step"
        )
    return outputs


def check_saving(model, inputs, path):
    """Check that a model has the same outputs after `.keras` save and load in safe mode. Return the loaded model."""
    expected = keras.ops.convert_to_numpy(model(inputs))
    model.save(path)
    reloaded = keras.saving.load_model(path, safe_mode=True)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(reloaded(inputs)), expected)
    return reloaded


def skip_without_channels_first():
    """Skip the current test if TensorFlow has no convolutions with channels first on this processor."""
    if not _has_channels_first():
        pytest.skip("TensorFlow computes convolutions with channels first on CPUs only by oneDNN, which is off")


@functools.cache
def _has_channels_first():
    if keras.backend.backend() != "tensorflow":
        return True
    import tensorflow as tf

    try:
        tf.nn.conv2d(tf.ones([1, 1, 2, 2]), tf.ones([1, 1, 1, 1]), 1, "VALID", data_format="NCHW")
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
        return False
    return True
