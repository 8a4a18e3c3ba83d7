"""Claim: a training step costs in proportion to depth, to the batch, and to the square of the width.

    python benchmarks/growth.py [--blocks N] [--rounds N]

The update of `trainers.cifar` for the network of Table 1 with fewer blocks, one thing changed at a time: blocks per
stage, widths, the batch, and the number of replicas (logical CPUs on the same cores, so the best they can do is the
same time). Each ratio is to the step in the first line, beside what the operation count predicts. Variants take turns.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from idmatters_tf.optimizers import Momentum
from models.cifar import identity_resnet
from trainers.training.loop import Recipe, Trainer

WIDTHS = (64, 128, 256)


def operations(blocks, widths, batch):
    """Multiply-adds of the residual convolutions, forwards."""
    channels, size, total = 16, 32, 0
    for stage, width in enumerate(widths):
        size = size // 2 if stage else size
        total += size * size * 9 * (channels * width + (2 * blocks - 1) * width * width)
        channels = width
    return batch * total


def step(blocks, widths, batch, replicas):
    """A function that takes three steps, and waits until the weights have them."""
    devices = [f"CPU:{number}" for number in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(devices) if replicas > 1 else tf.distribute.get_strategy()
    recipe = Recipe(1, 0.05, (), 10.0, lambda rate: Momentum(rate, 0.9), None, 1, 1, 1, 1)
    trainer = Trainer(strategy, lambda: identity_resnet(blocks=blocks, widths=widths), recipe, batch)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch // replicas, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, batch // replicas).astype("int32")

    def batches(_=None):
        return tf.data.Dataset.from_tensors((images, labels)).repeat()

    iterator = iter(strategy.distribute_datasets_from_function(batches) if replicas > 1 else batches())

    def steps():
        for _ in range(3):
            trainer.update(iterator)
        return [variable.numpy() for variable in trainer.model.trainable_variables]

    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=2, help="per stage (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    options = parser.parse_args()

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    base = {"blocks": options.blocks, "widths": WIDTHS, "batch": 32, "replicas": 1}
    variants = {
        f"{options.blocks} blocks a stage, widths 64/128/256, batch 32": base,
        "twice the blocks": {**base, "blocks": 2 * options.blocks},
        "half the widths": {**base, "widths": tuple(width // 2 for width in WIDTHS)},
        "twice the batch": {**base, "batch": 64},
        "four times the batch": {**base, "batch": 128},
        "two replicas, each half the batch": {**base, "replicas": 2},
    }
    steps = {name: step(**variant) for name, variant in variants.items()}
    times = {name: [] for name in variants}
    for number in range(options.rounds + 1):
        for name, take in steps.items():
            start = time.perf_counter()
            take()
            if number:
                times[name].append((time.perf_counter() - start) / 3)
    first, counted = statistics.median(next(iter(times.values()))), operations(base["blocks"], WIDTHS, base["batch"])
    for name, variant in variants.items():
        median = statistics.median(times[name])
        predicted = operations(variant["blocks"], variant["widths"], variant["batch"]) / counted
        spread = f"{min(times[name]):.2f} .. {max(times[name]):.2f}"
        print(f"{name:50}{median:7.2f} s ({spread})   ratio {median / first:5.2f}   operations {predicted:5.2f}")
    print(f"float32, {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
