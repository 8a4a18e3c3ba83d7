"""Fits with Muon in every mode of Keras, compared with the same path in NumPy with singular value decompositions.

`python -m tests.support.muon_fits` compares those on two devices.
"""

# pyright: reportArgumentType=false

import contextlib

import keras
import numpy as np
import pytest

from idmatters_tf.optimizers import Muon
from idmatters_tf.optimizers.building import build_optimizer
from idmatters_tf.optimizers.orthogonalization import NEWTON_SCHULZ
from tests.support import two_devices

RATE, STEPS, DECAY, AVERAGE = 0.1, 3, 0.5, 0.6
# Tracing takes longer than a few steps.
PLAIN = {"jit_compile": keras.backend.backend() == "jax"}
EAGER = PLAIN if keras.backend.backend() == "jax" else {"run_eagerly": True}
RNG = np.random.default_rng(0)
IMAGES, TARGETS = RNG.normal(size=(6, 2, 2, 3)).astype("float32"), RNG.normal(size=(6, 4)).astype("float32")
KERNEL, BIAS = RNG.normal(size=(2, 2, 3, 4)), RNG.normal(size=4)


def polynomial(s, iterations):
    a, b, c = NEWTON_SCHULZ
    for _ in range(iterations):
        s = a * s + b * s**3 + c * s**5
    return s


def by_svd(matrix, iterations):
    left, s, right = np.linalg.svd(matrix, full_matrices=False)
    return left * polynomial(s / np.linalg.norm(s), iterations) @ right


def moved(matrix, step, rate, norm, iterations=3):
    """Return a matrix after Muon's update along the step of an optimizer with momentum."""
    rows, columns = matrix.shape
    direction = by_svd(step, iterations)
    if norm == "free":
        return matrix - rate * np.sqrt(columns / rows) * direction
    new = matrix - rate * np.linalg.norm(matrix) / np.sqrt(min(rows, columns)) * direction
    return new * np.linalg.norm(matrix) / np.linalg.norm(new)


def expected(norm, decay=0.0, average=0.0):
    """Return kernel and bias after gradient descent on the mean squared error of a linear map."""
    x, W, bias = IMAGES.reshape(6, -1).astype(float), KERNEL.reshape(-1, 4), BIAS
    v, u = np.zeros_like(W), np.zeros_like(bias)
    averages = None
    for _ in range(STEPS):
        residual = 2 * (x @ W + bias - TARGETS) / TARGETS.size
        dW, db = x.T @ residual, residual.sum(0)
        v, u = 0.9 * v + dW, 0.9 * u + db
        W, bias = W * (1 - RATE * decay), bias * (1 - RATE * decay)
        W, bias = moved(W, dW + 0.9 * v, RATE, norm), bias - 0.5 * RATE * (db + 0.9 * u)
        old = averages or (W, bias)
        averages = tuple(average * a + (1 - average) * b for a, b in zip(old, (W, bias), strict=True))
    return averages if average else (W, bias)


def fitted(optimizer, batch_size=6, kernel=KERNEL, **options):
    # The last layer would count among the other variables.
    last = keras.layers.Dense(4, use_bias=False, kernel_initializer="identity", trainable=False)
    convolution = keras.layers.Conv2D(4, 2, name="conv")
    model = keras.Sequential([keras.Input((2, 2, 3)), convolution, keras.layers.Flatten(), last])
    convolution.set_weights([kernel, BIAS])
    # The last layer is frozen, which the paths of the trainable variables do not show.
    build_optimizer(optimizer, model)
    model.compile(optimizer, "mse", **options)
    model.fit(IMAGES, TARGETS, batch_size=batch_size, epochs=STEPS, verbose=0)
    return convolution.get_weights()


def compare(mode, optimizer, wanted, **options):
    atol = 2e-3 if mode == "float16" else 2e-5
    for value, correct in zip(fitted(optimizer, **options), wanted, strict=True):
        np.testing.assert_allclose(value, np.reshape(correct, value.shape), atol=atol, err_msg=mode)


def on_one_device():
    """Compare fits in graphs, compiled and eager ones, with averages, accumulation, decay and scaled losses."""
    compare("keep, graph", Muon(RATE), expected("keep"), jit_compile=False)
    compare("free, jit", Muon(RATE, norm="free"), expected("free"), jit_compile=True)
    scaled = keras.optimizers.LossScaleOptimizer(Muon(RATE, norm="free"), initial_scale=8.0)
    compare("free, loss scale", scaled, expected("free"), **EAGER)
    averaged = Muon(RATE, use_ema=True, ema_momentum=AVERAGE)
    compare("keep, averages", averaged, expected("keep", average=AVERAGE), **EAGER)
    decaying = Muon(RATE, norm="free", weight_decay=DECAY)
    compare("decay", decaying, expected("free", decay=DECAY), **EAGER)
    with pytest.raises(ValueError, match="never learn"):
        fitted(Muon(RATE), kernel=0 * KERNEL, **EAGER)
    accumulated = Muon(RATE, gradient_accumulation_steps=2)
    compare("keep, accumulated", accumulated, expected("keep"), batch_size=3, **EAGER)
    compare_adamw("accumulated, averages", 3, gradient_accumulation_steps=2, use_ema=True)
    keras.config.set_dtype_policy("mixed_float16")
    compare("float16", Muon(RATE, norm="free"), expected("free"), **EAGER)
    keras.config.set_dtype_policy("float32")


def compare_adamw(mode, batch_size=6, scope=contextlib.nullcontext, **arguments):
    adamw = keras.optimizers.AdamW(RATE / 2, DECAY, beta_2=0.95, **arguments)
    wanted = fitted(adamw, batch_size, **EAGER)
    with scope():
        # The weight decay is that of the learning rate, without `other_rate`.
        decay = {"norm": "free", "weight_decay": DECAY / 2}
        muon = Muon(RATE, other="adamw", matrices=lambda *_: None, **decay, **arguments)
        compare(f"adamw, {mode}", muon, wanted, batch_size=batch_size, **(EAGER if mode != "two devices" else PLAIN))


def main(_=()):
    """Compare fits on two devices, and on JAX those on one device."""
    if keras.backend.backend() == "jax":
        on_one_device()
    with two_devices.scope():
        compare("keep, two devices", Muon(RATE), expected("keep"), **PLAIN)
        decaying = Muon(RATE, norm="free", weight_decay=DECAY)
        compare("decay, two devices", decaying, expected("free", decay=DECAY), **PLAIN)
    compare_adamw("two devices", scope=two_devices.scope)
    print("equal")
    return 0


if __name__ == "__main__":
    main()
