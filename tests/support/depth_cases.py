"""Models for depth profiles, in float64 and with weights that do not depend on the backend.

`python -m tests.support.depth_cases` prints the values of two profiles as JSON.
"""

import json

import keras
import numpy as np

from idmatters_tf import depth_profile
from idmatters_tf.layers import ResidualDense

FLOATS = "float64"
LENGTH, WIDTH = 3, 4


def assign(model, seed):
    """Set random weights, with zeros for biases."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        size = 0.5 if len(variable.shape) > 1 else 0.0
        offset = 1.0 if variable.path.endswith("gamma") else 0.0
        variable.assign(offset + rng.normal(0, 1, variable.shape) * size)
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
    """Build a network of attention blocks on padded tokens and a second input."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    side = keras.Input((WIDTH,), dtype=FLOATS, name="side")
    embedded = keras.layers.Embedding(9, WIDTH, mask_zero=True, dtype=FLOATS)(tokens)
    hidden = keras.layers.Add(dtype=FLOATS)([embedded, keras.layers.Reshape((1, WIDTH), dtype=FLOATS)(side)])
    for number in range(depth):
        attention = keras.layers.MultiHeadAttention(1, WIDTH, dtype=FLOATS)(hidden, hidden)
        hidden = keras.layers.Add(name=f"sum{number}", dtype=FLOATS)([hidden, attention])
    pooled = keras.layers.GlobalAveragePooling1D(dtype=FLOATS)(hidden)
    return assign(keras.Model({"tokens": tokens, "side": side}, keras.layers.Dense(2, dtype=FLOATS)(pooled)), seed)


def sequences_data(padding=0):
    rng = np.random.default_rng(0)
    tokens = np.pad(rng.integers(1, 9, (4, LENGTH)), ((0, 0), (0, padding)))
    return {"tokens": tokens, "side": rng.normal(size=(4, WIDTH))}, rng.normal(size=(4, 2))


def values(build, data):
    """Return the values of all quantities at depths 1 and 2."""
    profile = depth_profile(build, (1, 2), data, "mse", seeds=1)
    return {f"{m.depth} {name}": value for m in profile.measurements for name, value in m.values.items()}


if __name__ == "__main__":
    print(json.dumps([values(vectors, vectors_data()), values(sequences, [sequences_data(2)])]))
