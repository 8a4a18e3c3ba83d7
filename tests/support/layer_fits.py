"""Fits of layers and optimizers on several replicas, with uneven parts, see `replicated_fits`."""

import keras
import numpy as np
from keras import layers, optimizers

from idmatters_tf import scale_depth
from idmatters_tf.layers import ResidualDense
from idmatters_tf.optimizers import Momentum, Muon
from tests.support.fits import build, case

RANDOM = np.random.default_rng(5)
# Batches of 12, 12 and 5.
IMAGES = RANDOM.normal(size=(29, 6, 6, 2)).astype("float32")
PICTURES = RANDOM.normal(size=(29, 8, 8, 3)).astype("float32")
SERIES = RANDOM.normal(size=(29, 5, 3)).astype("float32")
TOKENS = np.where(np.arange(5) < RANDOM.integers(1, 6, (29, 1)), RANDOM.integers(1, 9, (29, 5)), 0)
LABELS = RANDOM.integers(0, 3, 29)
# Gradients of the eighth example, which the second replica receives, overflow in float16.
LARGE = np.concatenate([SERIES[:7], SERIES[7:8] * 1e6, SERIES[8:]])


def network(shape, *hidden, **compiled):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return build(shape, *hidden, lambda: layers.Dense(3), **{"loss": loss, "metrics": ["accuracy"], **compiled})


def images(*hidden):
    return case(lambda: network((6, 6, 2), *hidden, layers.Flatten), IMAGES, LABELS)


def series(*hidden):
    return case(lambda: network((5, 3), *hidden), SERIES, LABELS)


def tokens(*hidden):
    return case(lambda: network((5,), lambda: layers.Embedding(9, 4, mask_zero=True), *hidden), TOKENS, LABELS)


def with_optimizer(make, x=SERIES, **options):
    def dense():
        return layers.Dense(4, "tanh", kernel_regularizer="l2")

    # Six steps.
    return case(lambda: network((5, 3), layers.Flatten, dense, optimizer=make, **options), x, LABELS, epochs=2)


def scaled(scale=8.0, x=SERIES, **options):
    """Return a case in mixed precision, whose loss scale grows after three steps."""

    def make():
        return optimizers.LossScaleOptimizer(optimizers.SGD(0.2, 0.5, **options), scale, dynamic_growth_steps=3)

    return with_optimizer(make, x, policy="mixed_float16")


def scaled_branches():
    blocks = [ResidualDense(15, kernel_regularizer="l2") for _ in range(3)]
    made = build((5, 3), layers.Flatten(), *blocks, layers.Dense(3))
    made.compile(scale_depth(made, 1, optimizers.SGD(0.1, 0.9, global_clipnorm=0.5)), "mse")
    return made


def gpt2():
    """Return a language model of KerasHub without dropout."""
    from keras_hub.metrics import Perplexity

    from tests.support.hub_models import gpt2

    made = gpt2(dropout=0.0)
    made.preprocessor = None
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", Perplexity(from_logits=True, name="perplexity")]
    made.compile(optimizers.SGD(0.1), loss, weighted_metrics=metrics)
    return made


def vit():
    from tests.support.hub_models import vit

    made = vit()
    made.preprocessor = None
    made.compile(optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def layer(name, *arguments, **options):
    return lambda: getattr(layers, name)(*arguments, **options)


PADDING = (TOKENS > 0).astype("float32")
OPTIMIZERS = {
    "accumulation": lambda: optimizers.SGD(0.2, 0.5, gradient_accumulation_steps=2),
    "averages that overwrite": lambda: optimizers.SGD(
        0.2, 0.5, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2
    ),
    "a schedule": lambda: optimizers.AdamW(optimizers.schedules.CosineDecay(0.02, 8), 0.1, epsilon=0.1),
    "clipped values": lambda: optimizers.Adam(0.1, clipvalue=0.01, epsilon=0.1),
    "RMSprop": lambda: optimizers.RMSprop(0.01, centered=True, epsilon=0.1),
    "Muon and AdamW": lambda: Muon(0.02, norm="free", other="adamw", weight_decay=0.01),
    "momentum, accumulation": lambda: Momentum(0.1, 0.9, nesterov=True, gradient_accumulation_steps=2),
}
LAYER_CASES = {
    "layers: convolution, pooling": images(layer("Conv2D", 4, 3, activation="relu"), layers.MaxPooling2D),
    "layers: synchronized normalization": images(
        layer("Conv2D", 4, 3), layer("BatchNormalization", synchronized=True), layers.ReLU
    ),
    "layers: LSTM": tokens(layer("LSTM", 4)),
    "layers: spectral normalization": series(layers.Flatten, lambda: layers.SpectralNormalization(layers.Dense(4))),
    "layers: constraint": series(layers.Flatten, layer("Dense", 4, kernel_constraint="max_norm")),
    "layers: scaled branches": case(scaled_branches, SERIES, SERIES[:, 0]),
    **{f"optimizer: {name}": with_optimizer(make) for name, make in OPTIMIZERS.items()},
    "optimizer: two to one step": with_optimizer(OPTIMIZERS["accumulation"], steps_per_execution=2),
    "optimizer: loss scale, accumulation": scaled(gradient_accumulation_steps=2),
    "optimizer: loss scale, overflow, clipped": scaled(2.0**15, LARGE, global_clipnorm=0.1),
    "KerasHub: GPT-2": case(
        gpt2, {"token_ids": TOKENS, "padding_mask": PADDING}, np.roll(TOKENS, -1, 1), sample_weight=PADDING
    ),
    "KerasHub: ViT": case(vit, PICTURES, LABELS % 2),
}
