"""Models for depth profiles, in float64 and with weights that do not depend on the backend.

`python -m tests.support.depth_cases` prints the values of both profiles as JSON.
"""

import functools
import json

import keras
import numpy as np

from idmatters_tf import depth_profile
from idmatters_tf.layers import ResidualDense

FLOATS = "float64"
WIDTH = 4


def assign(model, seed):
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    return model


def vectors(depth, seed):
    """Build a residual network with tanh."""
    inputs = hidden = keras.Input((WIDTH,), dtype=FLOATS)
    for number in range(depth):
        hidden = ResidualDense(WIDTH, activation="tanh", name=f"residual{number}", dtype=FLOATS)(hidden)
    return assign(keras.Model(inputs, keras.layers.Dense(2, name="head", dtype=FLOATS)(hidden)), seed)


def vectors_data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, WIDTH)), rng.normal(size=(6, 2))


def sequences(depth, seed):
    """Build a network of attention blocks on two inputs of padded tokens."""
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in ("tokens", "segments")]
    embedded = [keras.layers.Embedding(6, WIDTH, mask_zero=True, dtype=FLOATS)(tokens) for tokens in inputs]
    hidden = keras.layers.Add(dtype=FLOATS)(embedded)
    for number in range(depth):
        attention = keras.layers.MultiHeadAttention(1, WIDTH, dtype=FLOATS)(hidden, hidden)
        hidden = keras.layers.Add(name=f"sum{number}", dtype=FLOATS)([hidden, attention])
    pooled = keras.layers.GlobalAveragePooling1D(dtype=FLOATS)(hidden)
    return assign(keras.Model(inputs, keras.layers.Dense(2, dtype=FLOATS)(pooled)), seed)


def sequences_data(padding):
    rng = np.random.default_rng(0)
    tokens = np.pad(rng.integers(1, 6, (2, 4, 3)), ((0, 0), (0, 0), (0, padding)))
    return list(tokens), rng.normal(size=(4, 2))


@functools.cache
def profiles():
    """Return the profiles of both models, with data as arrays and as batches."""
    return (
        depth_profile(vectors, (1, 2), vectors_data(), "mse", seeds=1),
        depth_profile(sequences, (1, 2), [sequences_data(2)], "mse", seeds=1),
    )


def values(profile):
    """Return the values of all quantities at all depths."""
    return {f"{m.depth} {name}": value for m in profile.measurements for name, value in m.values.items()}


if __name__ == "__main__":
    print(json.dumps([values(profile) for profile in profiles()]))
