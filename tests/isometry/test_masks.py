"""Tests of blocks with Keras masks against finite differences of the whole model."""

import keras
import numpy as np
import pytest

from idmatters_tf.isometry import JacobianOperator, jacobian, measure
from tests.support import mask_cases


@pytest.mark.parametrize("name", mask_cases.CASES)
def test_blocks_have_the_masks_of_the_model(name):
    mask_cases.compare(name)


def test_masks_of_the_inputs():
    x = mask_cases.vectors()
    masked = keras.layers.Masking()(x)
    pooling = keras.layers.GlobalAveragePooling1D()
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, pooling(inputs))
    expected = np.zeros((2, 4, 2, mask_cases.TIME, 4))
    for place, length in enumerate(mask_cases.LENGTHS):
        expected[place, :, place, :length] = np.eye(4)[:, None] / length
    expected = expected.reshape(8, -1)
    # A single product, and several on copies of the inputs.
    for operator in (JacobianOperator(pooling, masked, chunk=4), jacobian(model, masked, chunk=4)):
        np.testing.assert_allclose(operator @ np.ones(expected.shape[1]), expected.sum(axis=1), atol=1e-6)
        np.testing.assert_allclose(operator @ np.eye(expected.shape[1]), expected, atol=1e-6)
    values = measure(model, masked, [pooling.name]).end_to_end
    np.testing.assert_allclose(values, 1 / np.sqrt(np.array(mask_cases.LENGTHS))[:, None].repeat(4, axis=1), atol=1e-6)
