"""Hessian of a causal language model of KerasHub with padding and sample weights.

It is compared with differences of the gradients in Keras' training step. `test_jax` compares both backends.
"""

import keras
import numpy as np
import pytest

from idmatters_tf.curvature import HessianOperator, top_eigenpairs, trace
from tests.support.both_backends import language_model


def differences(model, data, directions, step):
    """Return derivatives of the gradient along the columns of `directions`, as columns."""
    start = [np.array(variable) for variable in model.trainable_variables]
    stops = np.cumsum([value.size for value in start])[:-1]

    def moved(direction, length):
        for variable, value, part in zip(model.trainable_variables, start, np.split(direction, stops), strict=True):
            variable.assign(value + length * part.reshape(value.shape))
        return gradient(model, data)

    columns = []
    for direction in directions.T:
        wide, narrow = ((moved(direction, h) - moved(direction, -h)) / (2 * h) for h in (step, step / 2))
        columns.append((4 * narrow - wide) / 3)
    moved(0 * direction, 0)
    return np.stack(columns, axis=-1)


def gradient(model, data):
    """Return the gradient as the change of the weights in a training step of rate 1, which is undone."""
    before = [np.array(variable) for variable in model.trainable_variables]
    model.train_on_batch(*data)
    slopes = [value - np.array(variable) for value, variable in zip(before, model.trainable_variables, strict=True)]
    for variable, value in zip(model.trainable_variables, before, strict=True):
        variable.assign(value)
    return np.concatenate([slope.ravel() for slope in slopes])


def assert_close(actual, expected, tolerance):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


# Keras 3.15 keeps the factors of LoRA in float32.
@pytest.mark.parametrize(("rank", "step", "tolerance"), [(None, 1e-4, 1e-8), (1, 2e-2, 1e-3)])
def test_products_and_eigenvalues(rank, step, tolerance):
    model, loss, data = language_model(rank)
    model.compile(keras.optimizers.SGD(1.0), loss)
    operator = HessianOperator(model, data=data, batch_size=2, check=rank is None)
    assert_close(operator.gradient(), gradient(model, data), tolerance)
    size = operator.shape[0]
    vectors = np.random.default_rng(2).normal(size=(size, 2)) if rank is None else np.eye(size)
    expected = differences(model, data, vectors, step)
    assert_close(operator @ vectors, expected, tolerance)
    assert_close(operator @ vectors[:, 0], expected[:, 0], tolerance)
    if rank is not None:
        # In two layers, for queries and values: factors of the kernel for two heads of width 4, and the bias.
        assert size == 2 * 2 * (2 * 8 + 4 + 8)
        assert abs(trace(operator, size).value - np.trace(expected)) < 1e-3 * np.abs(np.diag(expected)).sum()
        largest = np.linalg.eigvalsh((expected + expected.T) / 2)[[-1, -2]]
        assert_close(top_eigenpairs(operator, 2).values, largest, tolerance)
