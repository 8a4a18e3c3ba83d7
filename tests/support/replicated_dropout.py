"""Dropout on two logical devices: `python -m tests.support.replicated_dropout` checks the masks of the replicas."""

import sys

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.distribute import mirrored_strategy


def draw_masks(strategy, steps):
    """Return the masks of each step and replica."""
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=3)

    @tf.function
    def step():
        return strategy.run(lambda: layer(tf.ones((4, 50)), training=True))

    return [[np.array(part) for part in strategy.experimental_local_results(step())] for _ in range(steps)]


def main(argv):
    masks = draw_masks(mirrored_strategy(["CPU:0", "CPU:1"]), 2)
    again = draw_masks(mirrored_strategy(["CPU:0", "CPU:1"]), 2)
    np.testing.assert_array_equal(masks, again)
    alone = draw_masks(tf.distribute.get_strategy(), 2)
    np.testing.assert_array_equal([first for first, _ in masks], [first for (first,) in alone])
    several = [mask for step in masks for mask in step]
    for number, mask in enumerate(several):
        assert 0.3 < (mask == 0).mean() < 0.7
        for other in several[:number]:
            assert 0.3 < (mask != other).mean() < 0.7
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
