"""Claim: the same Hessian and Gauss-Newton products as PyTorch's curvlinops on the same weights and data, to rounding.

    pip install '.[bench]'
    python benchmarks/curvature_against_torch.py [--rounds N]

A small convolutional network (a 3 x 3 convolution with stride 2, tanh, dense layer) and a wide dense one, float64 for
the agreement and float32 for the times; cross-entropy, 256 examples. The two take turns in one process.
"""

import argparse
import importlib.util
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator

EXAMPLES = 256


def convolutional(dtype):
    """(Keras model, PyTorch model, pictures with channels last)."""
    import torch

    keras.config.set_dtype_policy(dtype)
    layers = [keras.layers.Conv2D(16, 3, strides=2, activation="tanh"), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((16, 16, 3), dtype=dtype), *layers, keras.layers.Dense(10)])
    twin = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2),
        torch.nn.Tanh(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 10),
    )
    return model, twin, np.random.default_rng(0).normal(size=(EXAMPLES, 16, 16, 3)).astype(dtype)


def dense(dtype):
    """(Keras model, PyTorch model, vectors)."""
    import torch

    keras.config.set_dtype_policy(dtype)
    layers = [keras.layers.Dense(width, activation="tanh") for width in (256, 256)]
    model = keras.Sequential([keras.Input((784,), dtype=dtype), *layers, keras.layers.Dense(10)])
    twin = torch.nn.Sequential(
        torch.nn.Linear(784, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 10)
    )
    return model, twin, np.random.default_rng(0).normal(size=(EXAMPLES, 784)).astype(dtype)


def to_torch(array):
    """A kernel, or a vector in its shape, with the axes in PyTorch's order."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def operators(build, dtype, ours, theirs):
    """Our operator, theirs, and a function from our vectors to theirs."""
    import torch

    model, twin, x = build(dtype)
    y = np.random.default_rng(1).integers(0, 10, EXAMPLES)
    twin = twin.to(getattr(torch, dtype))
    with torch.no_grad():
        for weight, parameter in zip(model.get_weights(), twin.parameters(), strict=True):
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(to_torch(weight))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    inputs = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2) if x.ndim == 4 else x))
    data = [(inputs, torch.from_numpy(y))]
    operator = theirs(twin, torch.nn.CrossEntropyLoss(), list(twin.parameters()), data)
    shapes = [variable.shape for variable in model.trainable_variables]

    def translated(vector):
        parts = np.split(vector, np.cumsum([np.prod(shape) for shape in shapes])[:-1])
        return np.concatenate(
            [to_torch(part.reshape(shape)).ravel() for part, shape in zip(parts, shapes, strict=True)]
        )

    return ours(model, loss, (x, y), batch_size=EXAMPLES), operator, translated


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="(default: %(default)s)")
    rounds = parser.parse_args().rounds
    if importlib.util.find_spec("curvlinops") is None:
        print("PyTorch and curvlinops are not installed: pip install '.[bench]'")
        return

    import torch
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for build in (convolutional, dense):
        for name, ours, theirs in (
            ("Hessian", HessianOperator, HessianLinearOperator),
            ("Gauss-Newton", GaussNewtonOperator, GGNLinearOperator),
        ):
            operator, other, translated = operators(build, "float64", ours, theirs)
            vector = np.random.default_rng(2).normal(size=operator.shape[0])
            expected = (other @ torch.from_numpy(translated(vector))).numpy()
            error = np.abs(translated(operator @ vector) - expected).max() / np.abs(expected).max()
            operator, other, translated = operators(build, "float32", ours, theirs)
            vector = vector.astype(np.float32)
            tensor = torch.from_numpy(translated(vector))
            ways = {"idmatters_tf": lambda o=operator, v=vector: o @ v, "curvlinops": lambda o=other, v=tensor: o @ v}
            times = {way: [] for way in ways}
            for number in range(rounds + 1):
                for way, function in ways.items():
                    taken = seconds(function)
                    if number:
                        times[way].append(taken)
            here, there = (1e3 * statistics.median(values) for values in times.values())
            print(
                f"{build.__name__:14}{name:13}{len(vector):8,} parameters   difference {error:.1e}   "
                f"{here:7.2f} against {there:7.2f} ms, ratio {there / here:4.2f}"
            )


if __name__ == "__main__":
    main()
