"""Claim: a step on two replicas takes up to 1.6 times as long as on one device with the same batch and cores.

    python benchmarks/replica_step.py [--steps N]

`fit` under `mirrored_strategy` on two logical CPUs, compared with `fit` on one device: an image classifier (three
convolutions, batches of 128 images of 32 x 32 pixels, accuracy), and a language model (one layer of attention, batches
of 16 sequences of 64 tokens of 8,000, accuracy). Losses are compared before the measurement.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import contextlib

import keras
import numpy as np
import tensorflow as tf

from harness import results
from harness.timing import in_turn, ratio, seconds
from idmatters_tf.distribute import mirrored_strategy

TOKENS, LENGTH = 8000, 64


def compile_model(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, 0.9), loss, metrics=["accuracy"], jit_compile=False)
    return model


def classifier():
    convolutions = [keras.layers.Conv2D(width, 3, 2, "same", activation="relu") for width in (32, 64, 128)]
    layers = [keras.Input((32, 32, 3)), *convolutions, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    return compile_model(keras.Sequential(layers))


def language_model():
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(TOKENS, 64)(tokens)
    x = x + keras.layers.MultiHeadAttention(2, 32)(x, x, use_causal_mask=True)
    return compile_model(keras.Model(tokens, keras.layers.Dense(TOKENS)(keras.layers.LayerNormalization()(x))))


def data(name, steps):
    rng = np.random.default_rng(0)
    if name == "classifier":
        return rng.normal(size=(128 * steps, 32, 32, 3)).astype("float32"), rng.integers(0, 10, 128 * steps), 128
    tokens = rng.integers(0, TOKENS, (16 * steps, LENGTH + 1)).astype("int32")
    return tokens[:, :-1], tokens[:, 1:], 16


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    parser = results.parser(str(__doc__), rounds=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of each measurement (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])
    strategy = mirrored_strategy(["CPU:0", "CPU:1"])
    for name, build in {"classifier": classifier, "language model": language_model}.items():
        x, y, batch_size = data(name, options.steps)
        ways, losses = {}, {}
        for place, scope in {"one device": contextlib.nullcontext, "two replicas": strategy.scope}.items():
            keras.utils.set_random_seed(0)
            with scope():
                model = build()
            fit = functools.partial(model.fit, x, y, batch_size=batch_size, shuffle=False, verbose=0)
            losses[place] = fit().history["loss"][0]
            ways[place] = functools.partial(seconds, fit)
        np.testing.assert_allclose(losses["two replicas"], losses["one device"], 1e-4)
        times = in_turn(ways, options.rounds, warm_up=1)
        for place, values in times.items():
            report.add(f"{name}, {place}", values, "ms/step", 1e3 / options.steps, ratio(values, times["one device"]))
    report.finish()


if __name__ == "__main__":
    main()
