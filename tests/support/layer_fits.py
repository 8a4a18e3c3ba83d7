"""Fits of layers and optimizers on several replicas, with uneven parts, see `replicated_fits`."""

import keras
import numpy as np

from idmatters_tf.layers import ResidualConv2D
from idmatters_tf.optimizers import Momentum, Muon

RANDOM = np.random.default_rng(5)
# Batches of 12, 12 and 3.
IMAGES = RANDOM.normal(size=(27, 6, 6, 2)).astype("float32")
PICTURES = RANDOM.normal(size=(27, 8, 8, 3)).astype("float32")
SERIES = RANDOM.normal(size=(27, 5, 3)).astype("float32")
TOKENS = np.where(np.arange(5) < RANDOM.integers(1, 6, (27, 1)), RANDOM.integers(1, 9, (27, 5)), 0)
LABELS = RANDOM.integers(0, 3, 27)
# Gradients of the second example overflow in float16.
LARGE = np.concatenate([SERIES[:1], SERIES[1:2] * 1e6, SERIES[2:]])


def network(shape, *layers, optimizer="sgd", policy="float32", **compiled):
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        made = keras.Sequential([keras.Input(shape), *(make() for make in layers), keras.layers.Dense(3)])
        optimizer = optimizer if isinstance(optimizer, str) else optimizer()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(optimizer, loss, metrics=["accuracy"], **compiled)
    finally:
        keras.config.set_dtype_policy("float32")
    return made


def fit(made, x, y=LABELS, **arguments):
    return made.fit(x, y, **{"batch_size": 12, "epochs": 2, "verbose": 0, "shuffle": False, **arguments}).history


def images(*layers, **options):
    return lambda: network((6, 6, 2), *layers, keras.layers.Flatten, **options), lambda made: fit(made, IMAGES)


def series(*layers, x=SERIES, **options):
    options, arguments = dict(options), {}
    if "epochs" in options:
        arguments["epochs"] = options.pop("epochs")
    return lambda: network((5, 3), *layers, **options), lambda made: fit(made, x, **arguments)


def tokens(*layers, **options):
    embedding = lambda: keras.layers.Embedding(9, 4, mask_zero=True)  # noqa: E731
    return lambda: network((5,), embedding, *layers, **options), lambda made: fit(made, TOKENS)


def attention():
    x = keras.Input((5, 3))
    return keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x))


def with_optimizer(make, **options):
    dense = lambda: keras.layers.Dense(4, "tanh", kernel_regularizer="l2")  # noqa: E731
    return series(keras.layers.Flatten, dense, optimizer=make, **options)


def sgd(**options):
    return lambda: keras.optimizers.SGD(0.2, momentum=0.5, **options)


def scaled(scale=8.0, growth=3, x=SERIES, **options):
    inner = sgd(**options)
    make = lambda: keras.optimizers.LossScaleOptimizer(inner(), initial_scale=scale, dynamic_growth_steps=growth)  # noqa: E731
    return with_optimizer(make, x=x, policy="mixed_float16")


def gpt2():
    """Return a language model of KerasHub without dropout."""
    from keras_hub.metrics import Perplexity

    from tests.support.hub_models import gpt2

    made = gpt2(dropout=0.0)
    made.preprocessor = None
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", Perplexity(from_logits=True, name="perplexity")]
    made.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=metrics)
    return made


def vit():
    from tests.support.hub_models import vit

    made = vit()
    made.preprocessor = None
    made.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def fit_gpt2(made):
    mask = (TOKENS > 0).astype("float32")
    return fit(made, {"token_ids": TOKENS, "padding_mask": mask}, np.roll(TOKENS, -1, 1), sample_weight=mask)


def layer(name, *arguments, **options):
    return lambda: getattr(keras.layers, name)(*arguments, **options)


LAYER_CASES = {
    "layers: convolution, pooling": images(layer("Conv2D", 4, 3, activation="relu"), keras.layers.MaxPooling2D),
    "layers: depthwise, strides, average": images(
        layer("SeparableConv2D", 4, 3, 2, "same"), layer("DepthwiseConv2D", 3), keras.layers.GlobalAveragePooling2D
    ),
    "layers: transposed convolution": images(layer("Conv2DTranspose", 3, 3, 2)),
    "layers: residual convolution": images(lambda: ResidualConv2D(4), keras.layers.GlobalMaxPooling2D),
    "layers: synchronized normalization": images(
        layer("Conv2D", 4, 3), layer("BatchNormalization", synchronized=True), keras.layers.ReLU
    ),
    "layers: layer and group normalization": images(
        layer("Conv2D", 8, 3), layer("GroupNormalization", 2), keras.layers.LayerNormalization
    ),
    "layers: LSTM": tokens(layer("LSTM", 4)),
    "layers: bidirectional GRU": tokens(lambda: keras.layers.Bidirectional(keras.layers.GRU(3))),
    "layers: attention": series(attention, keras.layers.GlobalAveragePooling1D),
    "layers: masked average": tokens(keras.layers.GlobalAveragePooling1D),
    "layers: spectral normalization": series(
        keras.layers.Flatten, lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4))
    ),
    "layers: activity regularizer": series(keras.layers.Flatten, layer("Dense", 4, activity_regularizer="l2")),
    "layers: constraint": series(keras.layers.Flatten, layer("Dense", 4, kernel_constraint="max_norm")),
    "optimizer: accumulation": with_optimizer(sgd(gradient_accumulation_steps=2)),
    "optimizer: accumulation, clipped, averages": with_optimizer(
        sgd(gradient_accumulation_steps=3, global_clipnorm=0.1, use_ema=True, weight_decay=0.01)
    ),
    "optimizer: accumulation, loss scale": scaled(gradient_accumulation_steps=2),
    "optimizer: averages that overwrite": with_optimizer(
        sgd(use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2)
    ),
    "optimizer: loss scale": scaled(),
    "optimizer: loss scale, overflow": scaled(scale=2.0**15, x=LARGE),
    "optimizer: two to one step, accumulation": with_optimizer(
        sgd(gradient_accumulation_steps=2), steps_per_execution=2
    ),
    "optimizer: Adam, amsgrad, epsilon": with_optimizer(lambda: keras.optimizers.Adam(0.02, amsgrad=True, epsilon=0.1)),
    "optimizer: AdamW, clipped": with_optimizer(lambda: keras.optimizers.AdamW(0.02, epsilon=0.1, clipnorm=0.2)),
    "optimizer: RMSprop": with_optimizer(lambda: keras.optimizers.RMSprop(0.01, centered=True, epsilon=0.1)),
    "optimizer: Adagrad": with_optimizer(lambda: keras.optimizers.Adagrad(0.05)),
    "optimizer: Adafactor": with_optimizer(lambda: keras.optimizers.Adafactor(0.05)),
    "optimizer: Lamb": with_optimizer(lambda: keras.optimizers.Lamb(0.02, epsilon=0.1)),
    "optimizer: Ftrl": with_optimizer(lambda: keras.optimizers.Ftrl(0.05)),
    "optimizer: Muon, uneven": with_optimizer(lambda: Muon(0.02)),
    "KerasHub: GPT-2": (gpt2, fit_gpt2),
    "KerasHub: ViT": (vit, lambda made: fit(made, PICTURES, LABELS % 2)),
    "optimizer: momentum, accumulation": with_optimizer(lambda: Momentum(0.1, 0.9, gradient_accumulation_steps=2)),
}
