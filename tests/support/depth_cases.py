"""Linear networks for learning rates by depth, in float64 and with weights that do not depend on the backend."""

import numpy as np

from idmatters_tf.models.linear import assign_weights, shortcut_network


def units(depth, seed):
    """Build a network of linear 2-shortcut units."""
    model = shortcut_network(3, depth, 2)
    assign_weights(model, np.random.default_rng(seed).normal(0, 0.5, (depth, 2, 3, 3)))
    return model


def units_data():
    return tuple(np.random.default_rng(0).normal(size=(2, 20, 3)))
