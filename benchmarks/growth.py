"""Claim: the time of a training step is proportional to depth, to batch size and to the square of the width.

    python benchmarks/growth.py [--blocks N] [--rounds N]

The update of `trainers.cifar` for the network of Table 1 with fewer blocks, with one change at a time: blocks per
stage, widths, batch size, and number of replicas (logical CPUs on the same cores, so at best the time is the same).
Ratios are relative to the first line; predicted ratios are ratios of numbers of operations.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from harness import results
from harness.timing import in_turn, ratio, seconds
from harness.trainer import make_trainer
from idmatters_tf.models.cifar import identity_resnet

WIDTHS, STEPS = (64, 128, 256), 3


def operations(blocks, widths, batch):
    """Return the multiply-adds of the residual convolutions in the forward pass."""
    channels, size, total = 16, 32, 0
    for stage, width in enumerate(widths):
        size = size // 2 if stage else size
        total += size * size * 9 * (channels * width + (2 * blocks - 1) * width * width)
        channels = width
    return batch * total


def step(blocks, widths, batch, replicas):
    """Return a function that measures the seconds per step over a few steps, until the weights are available."""
    devices = [f"CPU:{number}" for number in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(devices) if replicas > 1 else tf.distribute.get_strategy()
    trainer = make_trainer(lambda: identity_resnet(blocks=blocks, widths=widths), batch, strategy)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch // replicas, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, batch // replicas).astype("int32")

    def batches(_=None):
        return tf.data.Dataset.from_tensors((images, labels)).repeat()

    iterator = iter(strategy.distribute_datasets_from_function(batches) if replicas > 1 else batches())

    def steps():
        for _ in range(STEPS):
            trainer.update(iterator)
        return [variable.numpy() for variable in trainer.learner.model.trainable_variables]

    return lambda: seconds(steps) / STEPS


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--blocks", type=int, default=2, help="residual blocks per stage (default: %(default)s)")
    parser.add_argument("--widths", type=int, nargs=3, default=WIDTHS, help="channels (default: 64 128 256)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    widths = tuple(options.widths)
    base = {"blocks": options.blocks, "widths": widths, "batch": 32, "replicas": 1}
    variants = {
        f"{options.blocks} blocks a stage, widths {'/'.join(map(str, widths))}, batch 32": base,
        "twice the blocks": {**base, "blocks": 2 * options.blocks},
        "half the widths": {**base, "widths": tuple(width // 2 for width in widths)},
        "twice the batch": {**base, "batch": 64},
        "four times the batch": {**base, "batch": 128},
        "two replicas, each with half the batch": {**base, "replicas": 2},
    }
    times = in_turn({name: step(**variant) for name, variant in variants.items()}, options.rounds, warm_up=1)
    first, *_ = times
    counted = operations(base["blocks"], widths, base["batch"])
    for name, variant in variants.items():
        if name == first:
            report.add(name, times[name], "s")
        else:
            predicted = operations(variant["blocks"], variant["widths"], variant["batch"]) / counted
            report.add(name, times[name], "s", ratio=ratio(times[name], times[first]), expected=predicted)
    report.finish()


if __name__ == "__main__":
    main()
