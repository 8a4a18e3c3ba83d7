"""Hessian of a causal language model of KerasHub with padding and sample weights; `test_jax` compares both backends."""

import keras
import numpy as np
import pytest

from idmatters_tf.curvature import HessianOperator, trace
from tests.curvature.both_backends import language_model
from tests.curvature.cases import relative_error


def training_step(model, data):
    """Return the change of the weights in a training step of rate 1, the gradient, and undo it."""
    before = [np.array(variable) for variable in model.trainable_variables]
    model.train_on_batch(*data)
    slopes = [value - np.array(variable) for value, variable in zip(before, model.trainable_variables, strict=True)]
    for variable, value in zip(model.trainable_variables, before, strict=True):
        variable.assign(value)
    return np.concatenate([slope.ravel() for slope in slopes])


# Keras 3.15 keeps the factors of LoRA in float32.
@pytest.mark.slow
@pytest.mark.parametrize(("rank", "step", "tolerance"), [(None, 1e-5, 1e-7), (1, 1e-3, 1e-3)])
def test_gradient_and_products(rank, step, tolerance):
    model, loss, data = language_model(rank)
    model.compile(keras.optimizers.SGD(1.0), loss)
    operator = HessianOperator(model, data=data, check=rank is None)
    expected = training_step(model, data)
    np.testing.assert_allclose(operator.gradient(), expected, rtol=0, atol=tolerance * np.abs(expected).max())
    assert relative_error(operator, step) < tolerance
    if rank is not None:
        # For queries and values: factors of the kernel for two heads of width 4, and the bias.
        size = 2 * (2 * 8 + 4 + 8)
        assert operator.shape == (size, size)
        assert trace(operator, size).value == pytest.approx(np.trace(operator.to_dense()), rel=1e-3)
