"""Claim: the dense Hessian of 32 layers of 10 x 10 comes 10 times faster than by automatic differentiation of the loss.

    python benchmarks/linear_hessian.py [--samples M] [--rounds N]

16 two-layer shortcut units, 3,200 parameters, float64. Compared, in turn, with TensorFlow's `tape.jacobian` of the
gradient inside a `tf.function`, traced beforehand, and, where PyTorch is installed, with `torch.func.hessian`. Their
time and memory grow with the samples; the formula sees second moments. Also: a Hessian-vector product takes under a
millisecond.
"""

import argparse
import importlib.util
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from idmatters_tf import linear

UNITS, DEPTH, DIM = 16, 2, 10


def by_tensorflow(W, X, Y):
    """A function that returns the Hessian."""
    weights, X, Y = tf.Variable(W.reshape(UNITS * DEPTH, DIM, DIM)), tf.constant(X), tf.constant(Y)

    @tf.function
    def hessian():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                layers = tf.unstack(weights)
                outputs = X
                for first, second in zip(layers[::2], layers[1::2], strict=True):
                    outputs = outputs + second @ (first @ outputs)
                loss = tf.reduce_sum((Y - outputs) ** 2) / (2 * X.shape[1])
            gradient = inner.gradient(loss, weights)
        return tf.reshape(outer.jacobian(gradient, weights), (W.size, W.size))

    return lambda: hessian().numpy()


def by_torch(W, X, Y):
    """A function that returns the Hessian."""
    import torch

    X, Y = torch.from_numpy(X), torch.from_numpy(Y)

    def loss(flat):
        outputs = X
        for first, second in flat.reshape(UNITS, DEPTH, DIM, DIM):
            outputs = outputs + second @ (first @ outputs)
        return ((Y - outputs) ** 2).sum() / (2 * X.shape[1])

    flat = torch.from_numpy(W.ravel())
    return lambda: torch.func.hessian(loss)(flat).numpy()


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, DIM, options.samples))
    W = linear.initial_weights("xavier", UNITS, DEPTH, DIM, seed=1) / 2
    sxx, syx, _ = linear.sufficient_statistics(X, Y)

    ways = {"Kronecker formula": lambda: linear.shortcut_hessian(W, sxx, syx), "tape.jacobian": by_tensorflow(W, X, Y)}
    if importlib.util.find_spec("torch"):
        ways["torch.func.hessian"] = by_torch(W, X, Y)
    expected, *others = (way() for way in ways.values())
    agreement = max(np.abs(other - expected).max() / np.abs(expected).max() for other in others)
    times = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            times[name].append(seconds(way))
    ours = statistics.median(times["Kronecker formula"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:20}{median:8.3f} s   ({min(values):.3f} .. {max(values):.3f})   ratio {median / ours:5.1f}")
    print(f"agreement           {agreement:.1e} of the largest entry")

    operator, vector = linear.ShortcutHessian(W, sxx, syx), rng.normal(size=W.size)
    products = [seconds(lambda: operator @ vector) for _ in range(200)]
    print(f"operator @ vector   {1e3 * statistics.median(products):8.3f} ms")


if __name__ == "__main__":
    main()
