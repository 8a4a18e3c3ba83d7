"""Measure how the start of training depends on the depth of your network: curvature, and distances of blocks from I.

    python examples/depth_of_your_model.py [--depths 2 4 8] [--images N]

Prints, for two types of blocks and each depth, the largest eigenvalue of the Hessian of the loss, the largest stable
rate of gradient descent that it implies, 2 / lambda, and the mean distance ||J - I|| of the blocks from the identity.
Takes two minutes on two CPU cores.
"""

import argparse

import keras
import numpy as np
from keras import layers

from idmatters_tf import HessianOperator, block_distances
from idmatters_tf.curvature import top_eigenpairs
from idmatters_tf.data import shapes
from idmatters_tf.layers import ResidualConv2D


def usual(hidden):
    """Return x + f(x) with Keras' initialization."""
    branch = layers.Conv2D(16, 3, padding="same", activation="relu")(hidden)
    return layers.Add()([hidden, layers.Conv2D(16, 3, padding="same")(branch)])


def near_identity(hidden):
    """Return x + f(x) with the initialization of Hardt & Ma."""
    return ResidualConv2D(16)(hidden)


def build(depth, block):
    """Return a network with this number of blocks. Replace it by your own."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 32, 3))
    hidden = layers.Conv2D(16, 8, 8)(inputs)
    for _ in range(depth):
        hidden = block(hidden)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(hidden)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 4, 8], help="numbers of blocks")
    parser.add_argument("--images", type=int, default=32, help="number of images (default: %(default)s)")
    options = parser.parse_args()
    data = shapes.load(options.images, 10)
    x, y = data.train_images.astype("float32") / 255, data.train_labels
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    print("blocks          depth  largest eigenvalue  2 / eigenvalue  mean ||J - I||")
    for block in (usual, near_identity):
        for depth in options.depths:
            model = build(depth, block)
            largest = top_eigenpairs(HessianOperator(model, loss, (x, y)), 1).values[0]
            distances = np.mean([value for values in block_distances(model, x[:2]).values() for value in values])
            print(f"{block.__name__:15} {depth:5} {largest:19.3g} {2 / largest:15.3g} {distances:15.3g}", flush=True)


if __name__ == "__main__":
    main()
