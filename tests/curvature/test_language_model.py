"""Curvature of a causal language model of KerasHub with padding and sample weights.

The Hessian is compared with differences of the gradients in Keras' training step, the Gauss-Newton matrix with
differences of the outputs.
"""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator, top_eigenpairs, trace
from tests.conftest import ROOT

models = pytest.importorskip("keras_hub").models

ROWS, TIME, TOKENS, WIDTH = 4, 5, 12, 8
on_jax = keras.backend.backend() == "jax"
# Keras 3.15 keeps the factors of LoRA in float32 and, on JAX, rounds float64 to float32 in the normalization.
ROUNDED = {"step": 2e-2, "tolerance": 1e-3}
EXACT = ROUNDED if on_jax else {"step": 1e-4, "tolerance": 1e-8}


def language_model(rank=None):
    """Return a compiled model in float64, whose training step subtracts the gradient from the weights."""
    rng = np.random.default_rng(0)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": WIDTH, "intermediate_dim": 10, "max_sequence_length": TIME}
    backbone = models.GPT2Backbone(TOKENS, dropout=0.0, dtype="float64", **sizes)
    model = models.GPT2CausalLM(backbone)
    for variable in model.trainable_variables:
        variable.assign(0.4 * rng.normal(size=variable.shape))
    if rank is not None:
        backbone.enable_lora(rank)
        for variable in model.trainable_variables:
            variable.assign(0.4 * rng.normal(size=variable.shape))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
    model.compile(keras.optimizers.SGD(1.0), loss)
    return model


def examples():
    """Return tokens with padding, next tokens, and weights of zero for padding."""
    rng = np.random.default_rng(1)
    real = np.arange(TIME) < np.array([5, 2, 4, 3])[:, None]
    tokens = real * rng.integers(1, TOKENS, (ROWS, TIME))
    weights = real * np.array([[0.5], [1.0], [2.0], [0.25]])
    return {"token_ids": tokens, "padding_mask": real}, rng.integers(0, TOKENS, (ROWS, TIME)), weights


def differences(model, function, directions, step):
    """Return derivatives of a function of the model along the columns of `directions`, as columns."""
    start = [np.array(variable) for variable in model.trainable_variables]
    stops = np.cumsum([value.size for value in start])[:-1]

    def moved(direction, length):
        for variable, value, part in zip(model.trainable_variables, start, np.split(direction, stops), strict=True):
            variable.assign(value + length * part.reshape(value.shape))
        return function()

    columns = []
    for direction in directions.T:
        wide, narrow = ((moved(direction, h) - moved(direction, -h)) / (2 * h) for h in (step, step / 2))
        columns.append((4 * narrow - wide) / 3)
    moved(0 * direction, 0)
    return np.stack(columns, axis=-1)


def gradient(model):
    """Return the gradient as the change of the weights in a training step, which is undone."""
    x, y, weights = examples()
    before = [np.array(variable) for variable in model.trainable_variables]
    model.train_on_batch(x, y, sample_weight=weights)
    slopes = [value - np.array(variable) for value, variable in zip(before, model.trainable_variables, strict=True)]
    for variable, value in zip(model.trainable_variables, before, strict=True):
        variable.assign(value)
    return np.concatenate([slope.ravel() for slope in slopes])


def assert_close(actual, expected, tolerance):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_products():
    model = language_model()
    operator = HessianOperator(model, data=examples(), batch_size=2)
    assert_close(operator.gradient(), gradient(model), 1e-6 if on_jax else 1e-12)
    vectors = np.random.default_rng(2).normal(size=(operator.shape[0], 2))
    expected = differences(model, lambda: gradient(model), vectors, EXACT["step"])
    assert_close(operator @ vectors, expected, EXACT["tolerance"])
    assert_close(operator @ vectors[:, 0], expected[:, 0], EXACT["tolerance"])


def test_only_lora():
    model = language_model(rank=1)
    operator = HessianOperator(model, data=examples(), batch_size=2, check=False)
    size = operator.shape[0]
    # In two layers, for queries and values: factors of the kernel for two heads of width 4, and the bias.
    assert size == 2 * 2 * (2 * WIDTH + 4 + WIDTH)
    dense = differences(model, lambda: gradient(model), np.eye(size), ROUNDED["step"])
    assert_close(operator.to_dense(), dense, ROUNDED["tolerance"])
    assert abs(trace(operator, size).value - np.trace(dense)) < ROUNDED["tolerance"] * np.abs(np.diag(dense)).sum()
    expected = np.linalg.eigvalsh((dense + dense.T) / 2)[[-1, -2]]
    assert_close(top_eigenpairs(operator, 2).values, expected, ROUNDED["tolerance"])


def test_gauss_newton():
    model = language_model(rank=1)
    x, _, weights = examples()
    operator = GaussNewtonOperator(model, data=examples(), batch_size=2, check=False)

    def logits():
        return keras.ops.convert_to_numpy(model(x))

    jacobian = differences(model, logits, np.eye(operator.shape[0]), ROUNDED["step"])
    chances = keras.ops.convert_to_numpy(keras.ops.softmax(logits()))
    curved = chances[..., None] * (np.eye(TOKENS) - chances[:, :, None, :]) * (weights / (ROWS * TIME))[..., None, None]
    expected = np.einsum("btip,btij,btjq->pq", jacobian, curved, jacobian)
    assert_close(operator.to_dense(), expected, ROUNDED["tolerance"])


@pytest.mark.skipif(on_jax, reason="this is the process on JAX")
def test_on_jax():
    pytest.importorskip("jax")
    env = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
