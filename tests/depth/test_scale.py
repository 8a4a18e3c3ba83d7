"""Scaled branches, compared with explicit multipliers and learning rates for each layer, on both backends."""

import keras
import numpy as np
import pytest
from keras import layers

from idmatters_tf import Muon, scale_depth
from idmatters_tf.depth.scale import scale_branches
from idmatters_tf.optimizers import Momentum

DEPTH, STEPS, BATCH = 4, 20, 8
rng = np.random.default_rng(0)
X = rng.normal(size=(STEPS * BATCH, 6)).astype("float32")
Y = np.sin(2 * X[:, :2]).astype("float32")
optimizers = keras.optimizers
EXACT = 2.0**-6


@keras.saving.register_keras_serializable(package="tests")
class Multiplier(layers.Layer):
    """Multiplication by a constant."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, inputs):
        return self.factor * inputs


def build(depth=DEPTH, factor=1.0, penalties=(0.0, 0.0)):
    """Return pre-norm blocks x + factor * f(x), with the L2 penalties of first and last kernels."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    x = layers.Dense(6, name="stem")(inputs)
    first, last = (keras.regularizers.L2(penalty) if penalty else None for penalty in penalties)
    for number in range(depth):
        branch = layers.LayerNormalization(name=f"block{number}_norm")(x)
        branch = layers.Dense(8, "gelu", name=f"block{number}_first", kernel_regularizer=first)(branch)
        branch = layers.Dense(6, name=f"block{number}_last", kernel_regularizer=last)(branch)
        x = layers.Add(name=f"sum{number}")([x, Multiplier(factor)(branch)])
    return keras.Model(inputs, layers.Dense(2, name="head")(x))


def cases(sgd=1.0, adaptive=1.0, scale=1.0):
    """Return optimizers whose rates, epsilons, clipping and weight decay are those of blocks with multipliers."""
    rate = EXACT * adaptive
    small, square = 2.0**-7 * scale, 2.0**-14 * scale**2
    cosine = optimizers.schedules.CosineDecay(8 * EXACT * sgd, 30)
    return {
        "SGD": optimizers.SGD(cosine, weight_decay=0.25 / sgd, use_ema=True),
        "Nesterov": optimizers.SGD(2 * EXACT * sgd, 0.9, nesterov=True, clipnorm=0.25 * scale),
        "Momentum": Momentum(2 * EXACT * sgd, 0.9, gradient_accumulation_steps=2),
        "Adam": optimizers.Adam(rate, epsilon=small, amsgrad=True, clipvalue=0.0625 * scale),
        "AdamW": optimizers.AdamW(rate, 0.25 / adaptive, epsilon=small, gradient_accumulation_steps=2),
        "Nadam": optimizers.Nadam(rate, epsilon=small, clipnorm=0.25 * scale),
        "Adamax": optimizers.Adamax(rate, epsilon=small),
        "Adagrad": optimizers.Adagrad(rate, 0.125 * scale**2, epsilon=square),
        "RMSprop": optimizers.RMSprop(rate, momentum=0.5, epsilon=square, centered=True),
        "Lion": optimizers.Lion(rate, weight_decay=0.25 / adaptive),
        "Keras' Muon": optimizers.Muon(
            rate, epsilon=small, weight_decay=0.25 / adaptive, adam_weight_decay=0.5 / adaptive
        ),
        "Muon, free": Muon(4 * rate, norm="free", weight_decay=0.25 / adaptive, other_rate=0.5 * sgd / adaptive),
        "Muon, AdamW": Muon(4 * rate, norm="free", other="adamw", other_weight_decay=0.25 / adaptive),
        "Muon, keep": Muon(4 * rate, other_rate=0.5 * sgd / adaptive),
    }


def train(model, optimizer):
    # Tracing the functions of so many optimizers takes minutes.
    model.compile(optimizer, "mse", jit_compile=False, run_eagerly=keras.backend.backend() == "tensorflow")
    return model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0).history["loss"]


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("name", cases())
def test_training_equals_that_of_explicit_multipliers_and_rates(name, alpha):
    base = 1
    ratio = base / DEPTH
    factors = ratio ** (1 - 2 * alpha), ratio ** (1 - alpha), ratio**alpha
    explicit, scaled = build(factor=factors[2]), build()
    kinds = optimizers.OptimizerMap(cases()[name], {"block.*": cases(*factors)[name]})
    # Muon's steps for weights other than kernels are those of AdamW with an epsilon of 1e-7.
    tolerance = 1e-4 if "Muon" in name else 1e-6
    losses = train(explicit, optimizers.MultiOptimizer(kinds))
    optimizer = scale_depth(scaled, base, cases()[name], alpha)
    np.testing.assert_allclose(train(scaled, optimizer), losses, rtol=tolerance)
    assert isinstance(optimizer, type(cases()[name]))
    start = {variable.path: np.array(variable) for variable in build().variables}
    for old, new in zip(explicit.variables, scaled.variables, strict=True):
        factor = factors[2] if "_last" in old.path else 1.0
        np.testing.assert_allclose(new, factor * np.array(old), rtol=0, atol=tolerance * np.abs(new).max())
        assert np.abs(np.array(old) - start[old.path]).max() > 1e-3, "every weight is trained"
