"""Claim: augmented training batches of 128 come at 150,000 images/s or more on two cores.

    python benchmarks/input_pipeline.py [--seconds S] [--rounds N] [--deterministic]

The alternative is what is usually written: `Dataset.from_tensor_slices`, `shuffle`, a `map` of
`tf.image.resize_with_crop_or_pad`, `random_crop`, `random_flip_left_right` and `per_image_standardization` over single
examples with AUTOTUNE, `batch`, `prefetch`. Both pad by 2 pixels, crop to 32x32, flip and standardise the same random
images of CIFAR's number and size.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from harness import results
from harness.timing import in_turn, items_per_second, ratio
from idmatters_tf.data.augment import AUGMENTATIONS
from idmatters_tf.data.batches import TrainBatches

BATCH = 128


def ours(images, labels):
    """Batches as a function of (seed, step), a whole batch at a time."""
    return TrainBatches(images, labels, BATCH, 0, AUGMENTATIONS["paper"]).dataset(0, 10**9)


def usual(images, labels):
    """One example at a time."""

    def augment(image, label):
        image = tf.image.resize_with_crop_or_pad(image, 36, 36)
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [32, 32, 3]))
        return tf.image.per_image_standardization(image), label

    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10_000).repeat()
    return data.map(augment, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True).prefetch(4)


def main():
    parser = results.parser(__doc__, rounds=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default: %(default)s)")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="with op determinism, the default of trainers.cifar; it slows down random operations that keep state",
    )
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow"])
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(0)

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 50_000).astype(np.int32)
    # What one prefetches while the other is measured does not matter: it is at most four batches.
    iterators = {"ours": iter(ours(images, labels)), "per-example map": iter(usual(images, labels))}
    ways = {
        name: lambda iterator=iterator: items_per_second(iterator, options.seconds, BATCH)
        for name, iterator in iterators.items()
    }
    rates = in_turn(ways, options.rounds, warm_up=1)
    report.add("ours", rates["ours"], "images/s")
    report.add(
        "per-example map", rates["per-example map"], "images/s", ratio=ratio(rates["ours"], rates["per-example map"])
    )
    report.finish()


if __name__ == "__main__":
    main()
