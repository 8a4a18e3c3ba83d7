"""Claim: the input pipeline delivers at least 150,000 augmented images/s in batches of 128 on two cores.

    python benchmarks/input_pipeline.py [--seconds S] [--rounds N] [--deterministic]

The alternatives are the usual pipeline and, if Grain is installed, two pipelines of Grain. The usual pipeline is
`Dataset.from_tensor_slices`, `shuffle`, a `map` of `tf.image.resize_with_crop_or_pad`, `random_crop`,
`random_flip_left_right` and `per_image_standardization` over single examples with AUTOTUNE, `batch`, `prefetch`. The
pipelines of Grain are a shuffled, repeated `MapDataset` with the same augmentation in NumPy as a `random_map`: over
single examples, and over whole batches. All pad by 2 pixels, crop to 32x32, flip and standardize the same random
images, which have CIFAR's number and size.
"""

import importlib.util
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from harness import results
from harness.timing import available_cores, in_turn, ratio
from idmatters_tf.data.batches import AUGMENTATIONS, TrainBatches

BATCH = 128


def ours(images, labels):
    """Return batches as a function of (seed, step), augmented a whole batch at a time."""
    return TrainBatches(images, labels, BATCH, 0, AUGMENTATIONS["paper"]).dataset(0, 10**9)


def usual(images, labels):
    """Return batches augmented one example at a time."""

    def augment(image, label):
        image = tf.image.resize_with_crop_or_pad(image, 36, 36)
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [32, 32, 3]))
        return tf.image.per_image_standardization(image), label

    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10_000).repeat()
    return data.map(augment, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True).prefetch(4)


def crop_flip_standardize(batch, rng):
    """Augment a batch (images, labels) in NumPy. A loop over the images is faster here than fancy indexing."""
    images, labels = batch
    size = images.shape[1]
    crops = np.empty(images.shape, np.float32)
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    draws = rng.integers(0, [[5], [5], [2]], (3, len(images))).tolist()
    for crop, image, row, col, flip in zip(crops, padded, *draws, strict=True):
        window = image[row : row + size, col : col + size]
        crop[:] = window[:, ::-1] if flip else window
    flat = crops.reshape(len(crops), -1)
    flat -= flat.mean(1, keepdims=True)
    flat /= np.maximum(flat.std(1, keepdims=True), flat.shape[1] ** -0.5)
    return crops, labels


def grain_iterator(images, labels, batches_at_once):
    """Return a Grain iterator that augments single examples or whole batches."""
    import grain

    def read(index):
        return images[index], labels[index]

    def augment_one(example, rng):
        crops, label = crop_flip_standardize((example[0][None], example[1]), rng)
        return crops[0], label

    data = grain.MapDataset.range(len(images)).seed(0).shuffle().repeat().map(read)
    if batches_at_once:
        data = data.batch(BATCH, drop_remainder=True).random_map(crop_flip_standardize)
    else:
        data = data.random_map(augment_one).batch(BATCH, drop_remainder=True)
    threads = available_cores()
    return iter(data.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(4, threads))))


def images_per_second(iterator, duration):
    """Return the rate of an iterator over batches, measured for about `duration` seconds."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < duration:
        next(iterator)
        count += BATCH
    return count / (time.perf_counter() - start)


def main():
    parser = results.parser(__doc__, rounds=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="time per measurement (default: %(default)s)")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="enable op determinism, as trainers.cifar does; it slows down stateful random operations",
    )
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "grain"])
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(0)

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 50_000).astype(np.int32)
    # Each pipeline prefetches only a few batches while another one is measured, which is negligible.
    iterators = {"ours": iter(ours(images, labels)), "per-example map": iter(usual(images, labels))}
    if importlib.util.find_spec("grain"):
        for name, batches_at_once in {"Grain, per example": False, "Grain, whole batches": True}.items():
            iterators[name] = grain_iterator(images, labels, batches_at_once)
    ways = {
        name: lambda iterator=iterator: images_per_second(iterator, options.seconds)
        for name, iterator in iterators.items()
    }
    rates = in_turn(ways, options.rounds, warm_up=1)
    report.add("ours", rates["ours"], "images/s")
    for name in list(rates)[1:]:
        report.add(name, rates[name], "images/s", ratio=ratio(rates["ours"], rates[name]))
    report.finish()


if __name__ == "__main__":
    main()
