"""Claim: augmented training batches of 128 come at 150,000 images/s or more on two cores.

    python benchmarks/input_pipeline.py [--seconds S] [--rounds N] [--deterministic]

Compared in the same process, in turn, with what is usually written: `Dataset.from_tensor_slices`, `shuffle`, a `map` of
`tf.image.resize_with_crop_or_pad`, `random_crop`, `random_flip_left_right` and `per_image_standardization` over single
examples with AUTOTUNE, `batch`, `prefetch`. Both pad by 2 pixels, crop to 32x32, flip and standardise the same random
pictures of CIFAR's number and size. Medians over the rounds, with the smallest and largest.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from idmatters_tf.data.augment import AUGMENTATIONS
from idmatters_tf.data.batches import TrainBatches

BATCH = 128


def ours(images, labels):
    """Batches as a function of (seed, step), each made at once."""
    return TrainBatches(images, labels, BATCH, 0, AUGMENTATIONS["paper"]).dataset(0, 10**9)


def usual(images, labels):
    """One example at a time."""

    def augment(image, label):
        image = tf.image.resize_with_crop_or_pad(image, 36, 36)
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [32, 32, 3]))
        return tf.image.per_image_standardization(image), label

    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10_000).repeat()
    return data.map(augment, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True).prefetch(4)


def rate(iterator, seconds):
    """Images per second over about `seconds`."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(iterator)
        count += BATCH
    return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="as trainers.cifar runs by default; slows random operations with state",
    )
    options = parser.parse_args()
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(0)

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 50_000).astype(np.int32)
    pipelines = {"ours": iter(ours(images, labels)), "per-example map": iter(usual(images, labels))}
    rates = {name: [] for name in pipelines}
    # To warm up. What is prefetched while the other one is timed counts for nothing: it is at most four batches.
    for iterator in pipelines.values():
        rate(iterator, 1.0)
    for _ in range(options.rounds):
        for name, iterator in pipelines.items():
            rates[name].append(rate(iterator, options.seconds))
    for name, values in rates.items():
        print(f"{name:16} {statistics.median(values):9,.0f} images/s   ({min(values):,.0f} .. {max(values):,.0f})")
    ratio = statistics.median(a / b for a, b in zip(*rates.values(), strict=True))
    print(f"ratio            {ratio:9.2f}             on {os.cpu_count()} cores, batch {BATCH}")


if __name__ == "__main__":
    main()
