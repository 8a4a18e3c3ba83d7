"""Claim: the input pipeline for ImageNet reaches at least 80 % of the rate of bare JPEG decoding.

    python benchmarks/imagenet_input.py [--data-dir DIR] [--augment paper|standard] [--seconds S] [--rounds N]

The alternative is `tf.io.decode_and_crop_jpeg` alone: the same files are read and decoded in the same order, to the
same windows (drawn beforehand), in a `map` with AUTOTUNE, and discarded. Our pipeline also draws the windows and packs
them into batches; the devices resize to 224 x 224, flip and standardize. A third measurement includes this work on the
same cores, as on a CPU device. Without --data-dir, the images are synthetic: 120 images of 500 x 375 pixels and about
90 kB.
"""

import functools
import io
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from harness import results
from harness.timing import in_turn, items_per_second, ratio
from idmatters_tf.data import _decoding
from idmatters_tf.data._folders import list_classes
from idmatters_tf.data.streams import StreamTrainBatches

BATCH, POSITIONS = 32, 600


def write_synthetic(folder, count=120):
    """Write images with the size and approximate detail of ImageNet's into one class folder."""
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder / "class").mkdir()
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        noisy = np.clip(np.asarray(coarse, float) + rng.normal(0, 12, (375, 500, 3)), 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "JPEG", quality=85)
        (folder / "class" / f"{number}.JPEG").write_bytes(stream.getvalue())


def ours(files, augmentation):
    """Return the training batches."""
    return StreamTrainBatches(files, BATCH, 0, augmentation).dataset(0, 1 << 40)


def preprocessed(files, augmentation):
    """Return the training batches, with the work of the devices done on the same cores."""
    finish = functools.partial(_decoding.preprocess_on_device, size=224)
    return ours(files, augmentation).map(lambda images, _: finish(images), num_parallel_calls=tf.data.AUTOTUNE)


def bare(files, augmentation):
    """Return a data set that decodes without augmentation or batching of images."""
    batches = StreamTrainBatches(files, BATCH, 0, augmentation)
    positions = tf.range(POSITIONS, dtype=tf.int64)
    paths = [f"{files.root}/{files.names[index]}" for index in batches.indices(positions).numpy()]
    keys = batches.keys(positions)
    windows = []
    for position, path in enumerate(paths):
        shape = tf.io.extract_jpeg_shape(tf.io.read_file(path))
        window = _decoding.train_window(augmentation, keys[position])
        windows.append(tf.stack([0, 0, shape[0], shape[1]]) if window is None else window(shape))
    paths, windows = tf.constant(paths), tf.stack(windows)

    def decode(position):
        contents = tf.io.read_file(paths[position])
        return tf.io.decode_and_crop_jpeg(contents, windows[position], channels=3)[0, 0, 0]

    return tf.data.Dataset.range(POSITIONS).repeat().map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)


def main():
    parser = results.parser(__doc__, rounds=7)
    parser.add_argument("--data-dir", help="folder with train/CLASS/*.JPEG (default: synthetic images)")
    parser.add_argument("--augment", choices=("paper", "standard"), default="standard", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="time per measurement (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow"])

    def measure(make, files):
        # A new iterator each time, so that none prefetches while another one is measured.
        iterator = iter(make(files, options.augment))
        items_per_second(iterator, min(1.0, options.seconds), BATCH)
        return items_per_second(iterator, options.seconds, BATCH)

    with tempfile.TemporaryDirectory() as folder:
        if options.data_dir is None:
            write_synthetic(pathlib.Path(folder))
        files = list_classes(pathlib.Path(options.data_dir) / "train" if options.data_dir else pathlib.Path(folder))
        ways = {
            "training batches": ours,
            "decoding alone": bare,
            "with the devices' part on the same cores": preprocessed,
        }
        rates = in_turn({name: functools.partial(measure, make, files) for name, make in ways.items()}, options.rounds)
    for name, values in rates.items():
        to_bare = None if name == "decoding alone" else ratio(values, rates["decoding alone"])
        report.add(name, values, "images/s", ratio=to_bare)
    report.finish()


if __name__ == "__main__":
    main()
