"""Data sets in memory: shapes, and held-out images."""

import dataclasses
import re

import numpy as np
import pytest

from idmatters_tf.data import shapes
from idmatters_tf.data.images import DataError


def test_shapes_are_a_function_of_the_seed():
    data, again, other = shapes.load(30, 20), shapes.load(30, 20), shapes.load(30, 20, seed=1)
    assert data.digest() == again.digest() != other.digest()
    assert data.train_images.shape == (30, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(data.train_labels), 3)
    assert not np.array_equal(data.train_images[:20], data.test_images)
    with pytest.raises(ValueError, match="Argument `train` must be a positive integer"):
        shapes.load(0)


def test_held_out_images():
    data = shapes.load(train=50, test=20)
    held_out = data.hold_out(15)
    np.testing.assert_array_equal(held_out.train_images, data.train_images[:35])
    np.testing.assert_array_equal(held_out.test_images, data.train_images[35:])
    np.testing.assert_array_equal(held_out.test_labels, data.train_labels[35:])
    with pytest.raises(DataError, match="`count`"):
        data.hold_out(50)
    message = re.escape("train images must be a non-empty uint8 array (n, rows, cols, channels). Received: float64")
    with pytest.raises(DataError, match=message):
        dataclasses.replace(data, train_images=data.train_images / 255)
