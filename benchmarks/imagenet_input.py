"""Claim: batches of ImageNet come at 80 % or more of the rate at which JPEGs can be decoded at all.

    python benchmarks/imagenet_input.py [--data-dir DIR] [--augment paper|standard] [--seconds S] [--rounds N]

Compared in the same process, in turn, with `tf.io.decode_and_crop_jpeg` alone: the same files, read and decoded in the
same order and to the same windows (found beforehand), in a `map` with AUTOTUNE, and thrown away. Ours also finds the
windows and packs them into batches; the devices resize to 224 x 224, flip and standardise. A third line has that done
on these same cores too, as where the device is the processor. Without --data-dir the pictures are made up: 120 of
500 x 375 pixels and about 90 kB. Medians over the rounds, with the smallest and largest.
"""

import argparse
import functools
import io
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from idmatters_tf.data import decoding
from idmatters_tf.data.folders import ImageFiles, list_classes
from idmatters_tf.data.streams import _AUGMENTATION, StreamTrainBatches, source

BATCH = 32
POSITIONS = 600


def made_up(folder, count=120):
    """Writes pictures with the size and about the detail of ImageNet's."""
    from PIL import Image

    rng = np.random.default_rng(0)
    names = []
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        noisy = np.clip(np.asarray(coarse, float) + rng.normal(0, 12, (375, 500, 3)), 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "JPEG", quality=85)
        names.append(f"{number}.JPEG")
        (folder / names[-1]).write_bytes(stream.getvalue())
    return ImageFiles(folder, names, [0] * count, ("made up",))


def ours(files, augmentation):
    """The training batches."""
    return StreamTrainBatches(files, BATCH, 0, augmentation).dataset(0, 1 << 40)


def preprocessed(files, augmentation):
    """The training batches, with the devices' part done on the same cores."""
    preprocess = functools.partial(decoding.preprocess_on_device, size=224)
    return ours(files, augmentation).map(lambda pictures, _: preprocess(pictures), num_parallel_calls=tf.data.AUTOTUNE)


def bare(files, augmentation):
    """Decoding alone."""
    batches = StreamTrainBatches(files, BATCH, 0, augmentation)
    order = batches.indices(tf.range(POSITIONS, dtype=tf.int64))
    paths, _ = source(files).look_up(order)
    windows = []
    for position, path in enumerate(paths):
        shape = tf.io.extract_jpeg_shape(tf.io.read_file(path))
        key = tf.constant([_AUGMENTATION, position], tf.int64)
        whole = tf.stack([0, 0, shape[0], shape[1]])
        windows.append(decoding.random_window(shape, key) if augmentation == "standard" else whole)
    windows = tf.stack(windows)

    def decode(position):
        contents = tf.io.read_file(paths[position])
        return tf.io.decode_and_crop_jpeg(contents, windows[position], channels=3)[0, 0, 0]

    return tf.data.Dataset.range(POSITIONS).repeat().map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)


def rate(iterator, seconds):
    """Pictures per second over about `seconds`."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(iterator)
        count += BATCH
    return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="with train/CLASS/*.JPEG (default: made-up pictures)")
    parser.add_argument("--augment", choices=("paper", "standard"), default="standard", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        if options.data_dir:
            files = list_classes(pathlib.Path(options.data_dir) / "train")
        else:
            files = made_up(pathlib.Path(folder))
        rates = {"ours": [], "decode_and_crop_jpeg": [], "ours, preprocessed here": []}
        for _ in range(options.rounds):
            for name, make in zip(rates, (ours, bare, preprocessed), strict=True):
                # Made anew and stopped each time: neither works ahead while the other is timed.
                iterator = iter(make(files, options.augment))
                rate(iterator, 1.0)
                rates[name].append(rate(iterator, options.seconds))
                del iterator
    for name, values in rates.items():
        print(f"{name:22} {statistics.median(values):8,.1f} pictures/s   ({min(values):,.1f} .. {max(values):,.1f})")
    alone = rates["decode_and_crop_jpeg"]
    for name in ("ours", "ours, preprocessed here"):
        ratio = statistics.median(a / b for a, b in zip(rates[name], alone, strict=True))
        print(f"{name}: ratio {ratio:.3f} on {len(os.sched_getaffinity(0))} cores, {options.augment}")


if __name__ == "__main__":
    main()
