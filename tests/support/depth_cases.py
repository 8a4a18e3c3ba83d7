"""Models for depth profiles, in float64 and with weights that do not depend on the backend.

`python -m tests.support.depth_cases` prints the rows of both profiles, and those of rates, as JSON.
"""

import functools
import json

import keras
import numpy as np

from idmatters_tf import depth_profile, rate_profile
from idmatters_tf.models.linear import assign_weights, shortcut_network


def half_squares(y, outputs):
    return keras.ops.sum(0.5 * (y - outputs) ** 2, axis=-1)


def units(depth, seed):
    """Build a network of linear 2-shortcut units."""
    model = shortcut_network(3, depth, 2)
    assign_weights(model, np.random.default_rng(seed).normal(0, 0.5, (depth, 2, 3, 3)))
    return model


def units_data():
    return tuple(np.random.default_rng(0).normal(size=(2, 20, 3)))


def sequences(depth, seed):
    """Build a network of attention blocks on two inputs of padded tokens."""
    layers, rng = keras.layers, np.random.default_rng(seed)
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in ("tokens", "segments")]
    hidden = layers.Add()([layers.Embedding(6, 3, mask_zero=True)(tokens) for tokens in inputs])
    for number in range(depth):
        # Attention removes the mask of its input.
        branch = layers.LayerNormalization()(hidden)
        hidden = layers.Add(name=f"sum{number}")([hidden, layers.MultiHeadAttention(1, 3)(branch, branch)])
    model = keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(hidden)))
    for variable in model.weights:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    return model


def sequences_data(padding):
    rng = np.random.default_rng(0)
    tokens = np.pad(rng.integers(1, 6, (2, 4, 3)), ((0, 0), (0, 0), (0, padding)))
    return list(tokens), rng.normal(size=(4, 2))


@functools.cache
def profiles():
    """Return the profiles of both models, with data as arrays and as batches."""
    keras.config.set_dtype_policy("float64")
    return (
        depth_profile(units, (1, 3), units_data(), half_squares, seeds=1),
        depth_profile(sequences, (1, 2), [sequences_data(2)], "mse", seeds=1),
    )


def rates():
    """Return losses after short trainings with AdamW."""
    options = {"rates": [0.003, 0.03], "steps": 20, "batch_size": 8}
    return rate_profile(units, [1, 3], units_data(), "mse", keras.optimizers.AdamW, **options)


if __name__ == "__main__":
    print(json.dumps([[row for profile in profiles() for row in profile.rows()], rates().rows()]))
