"""Claim: a Hessian-vector product of the 55-convolution network costs at most 2.8 gradients.

    python benchmarks/hessian_vector_product.py [--batch N] [--rounds N]

The network of Hardt & Ma's Table 1, 13,538,736 parameters, float32, cross-entropy without weight decay, random
pictures. `HessianOperator.matvec` against the gradient by a plain `tf.function` with a GradientTape, in turn; a
Gauss-Newton product as well. All are traced beforehand.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator
from models.cifar import identity_resnet


def plain_gradient(model, loss, x, y):
    """A function that computes the gradient and waits for it."""
    x, y = tf.constant(x), tf.constant(y)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=False))
        return tape.gradient(value, [variable.value for variable in model.trainable_variables])

    return lambda: [part.numpy() for part in gradient()]


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.batch, 32, 32, 3)).astype(np.float32)
    y = rng.integers(0, 10, options.batch)
    model = identity_resnet()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    settings = {"regularization": False, "check": False, "batch_size": options.batch}
    hessian = HessianOperator(model, loss, (x, y), **settings)
    gauss_newton = GaussNewtonOperator(model, loss, (x, y), **settings)
    vector = rng.normal(size=hessian.shape[0]).astype(np.float32)

    ways = {
        "gradient": plain_gradient(model, loss, x, y),
        "Hessian @ vector": lambda: hessian @ vector,
        "Gauss-Newton @ vector": lambda: gauss_newton @ vector,
    }
    times = {name: [] for name in ways}
    for name, way in ways.items():
        print(f"{name:22} first call, with tracing {seconds(way):6.1f} s", flush=True)
    for _ in range(options.rounds):
        for name, way in ways.items():
            times[name].append(seconds(way))
    gradient = statistics.median(times["gradient"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:22}{median:8.2f} s   ({min(values):.2f} .. {max(values):.2f})   ratio {median / gradient:4.2f}")


if __name__ == "__main__":
    main()
