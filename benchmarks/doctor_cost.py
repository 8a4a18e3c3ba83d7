"""Claim: an observed `fit` takes at most twice the time of the same `fit`, unless a step does little but read weights.

    python benchmarks/doctor_cost.py [--steps N]

The records of the doctor at level 1 (digests before each step), compared with `fit` without them: an image classifier
(three convolutions, batches of 128 images of 32 x 32 pixels), a language model (one layer of attention, batches of 16
sequences of 64 tokens of 8,000), and Dense layers with two million weights and batches of 32. Weights are compared.
"""

import functools
import os
import pathlib
import tempfile

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np

from harness import results
from harness.timing import in_turn, ratio, seconds
from idmatters_tf.doctor._recorder import Plan, observed

TOKENS, LENGTH = 8000, 64


def dense():
    model = keras.Sequential([keras.Input((1000,)), *(keras.layers.Dense(1000, "relu") for _ in range(2))])
    model.add(keras.layers.Dense(10))
    return model


def classifier():
    convolutions = [keras.layers.Conv2D(width, 3, 2, "same", activation="relu") for width in (32, 64, 128)]
    layers = [keras.Input((32, 32, 3)), *convolutions, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    return keras.Sequential(layers)


def language_model():
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(TOKENS, 64)(tokens)
    x = x + keras.layers.MultiHeadAttention(2, 32)(x, x, use_causal_mask=True)
    return keras.Model(tokens, keras.layers.Dense(TOKENS)(keras.layers.LayerNormalization()(x)))


def data(name, steps):
    rng = np.random.default_rng(0)
    if name == "language model":
        tokens = rng.integers(0, TOKENS, (16 * steps, LENGTH + 1)).astype("int32")
        return tokens[:, :-1], tokens[:, 1:], 16
    size, shape = (128, (32, 32, 3)) if name == "classifier" else (32, (1000,))
    return rng.normal(size=(size * steps, *shape)).astype("float32"), rng.integers(0, 10, size * steps), size


def main():
    parser = results.parser(str(__doc__), rounds=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of each measurement (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, [keras.backend.backend(), "keras"])
    for name, build in {"classifier": classifier, "language model": language_model, "dense": dense}.items():
        x, y, batch_size = data(name, options.steps)
        ways, weights = {}, {}
        for way in ("fit", "observed fit"):
            keras.utils.set_random_seed(0)
            model = build()
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("adam", loss, metrics=["accuracy"], jit_compile=keras.backend.backend() == "jax")
            fit = functools.partial(train, model, x, y, batch_size)
            run = fit if way == "fit" else functools.partial(observe, fit, options.steps)
            run()
            weights[way] = model.get_weights()
            ways[way] = functools.partial(seconds, run)
        for one, other in zip(*weights.values(), strict=True):
            np.testing.assert_array_equal(one, other)
        times = in_turn(ways, options.rounds, warm_up=1)
        for way, values in times.items():
            report.add(f"{name}, {way}", values, "ms/step", 1e3 / options.steps, ratio(values, times["fit"]))
    report.finish()


def train(model, x, y, batch_size):
    # The observation replaces `Model.fit`.
    model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0)


def observe(fit, steps):
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(str(pathlib.Path(folder) / "trace.jsonl"), steps)
        with observed(plan, lambda: None):
            fit()


if __name__ == "__main__":
    main()
