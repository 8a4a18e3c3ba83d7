"""Fits with data of all types, and evaluations with empty parts, see `replicated_fits`."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.support.fits import build, case, fit
from tests.support.step_fits import compiled

RANDOM = np.random.default_rng(9)
X = RANDOM.normal(size=(29, 2)).astype("float32")
NUMBERS = np.arange(29)[:, None] % 5
WORDS = np.array(["", "a", "long word", "é"])[np.arange(29) % 4][:, None]
SERIES = RANDOM.normal(size=(29, 6, 3)).astype("float32")
SYMBOLS = RANDOM.integers(1, 4, (29, 2))


def squares(y_true, y_pred):
    return ops.mean(ops.square(ops.cast(y_true, "float32") - ops.cast(y_pred, "float32")))


class Images(keras.Model):
    """Model of integers with a `compute_loss` of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(ops.cast(x, "float32"))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred)) + 0.1 * ops.mean(ops.cast(x, "float32")) * ops.mean(y_pred)


class Words(keras.Model):
    """Model of strings with a `compute_loss` of its own."""

    def __init__(self):
        super().__init__()
        self.lookup = keras.layers.StringLookup(vocabulary=["a", "long word", "é"])
        self.embed = keras.layers.Embedding(5, 1)

    def call(self, x):
        return self.embed(self.lookup(x))[:, 0]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        lengths = ops.cast(tf.strings.length(x, "UTF8_CHAR"), "float32")
        return ops.mean(ops.square(lengths - y_pred))


class Outputs(keras.Model):
    """Model whose outputs have several types."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        found = self.dense(x)
        kinds = {kind: ops.cast(found * 3, kind) for kind in ("int16", "uint8", "bfloat16", "float16", "int64")}
        return {"float": found, "bool": found > 0, "string": tf.as_string(found, precision=3), **kinds}


def dense(policy="float32", **options):
    return build((2,), lambda: layers.Dense(1), policy=policy, **{"loss": squares, "metrics": [squares], **options})


def labels(kind, policy="float32", **options):
    return case(lambda: dense(policy, **options), X, NUMBERS.astype(kind))


def evaluate_first(model):
    found = model.evaluate(X, NUMBERS, 12, verbose=0, return_dict=True)
    return {**{f"before {name}": [value] for name, value in found.items()}, **fit(model, X, NUMBERS)}


def predict(model):
    outputs = model.predict(X, 12, verbose=0)
    codes = {"string": [list(each[0].ljust(9)) for each in outputs.pop("string")]}
    return {**{name: value.astype("float64") for name, value in outputs.items()}, **codes}


def speech():
    """Return a model with the loss CTC, which fails for no examples."""
    return build((6, 3), layers.Dense(4), loss=keras.losses.CTC())


def numbers():
    """Return data of float64, which arrays do not keep."""
    return tf.data.Dataset.from_tensor_slices((X.astype("float64"), NUMBERS.astype("float64"))).batch(8)


TYPE_CASES = {
    **{f"types: {kind} labels": labels(kind) for kind in ("int16", "bool")},
    "types: uint8 labels, loss of Keras": labels("uint8", loss="mse"),
    "types: mixed bfloat16": labels("float32", "mixed_bfloat16"),
    "types: bfloat16, uint8 labels": labels("uint8", "bfloat16"),
    "types: float64": case(lambda: dense("float64", loss="mse"), numbers),
    "types: uint8 inputs, compute_loss": case(
        lambda: compiled(Images()), np.tile(NUMBERS, 2).astype("uint8"), NUMBERS.astype("float32")
    ),
    "types: strings, compute_loss": case(lambda: compiled(Words()), lambda: tf.constant(WORDS)),
    "types: predicted": (lambda: compiled(Outputs()), predict),
    "evaluation before a fit": (lambda: dense(loss="mse", metrics=["mae"]), evaluate_first),
    "evaluation of empty parts": case(speech, SERIES, SYMBOLS, validation_data=(SERIES[:13], SYMBOLS[:13])),
}
