"""Classifies images with an exported network, as a server would: TensorFlow alone, nothing of this package.

    python examples/serve_saved_model.py [SAVED_MODEL] [IMAGE ...]

SAVED_MODEL is the export of a training run, runs/quick/saved_model by default. Images are PNG or JPEG files and are
resized to the network's input; without any, an image of random noise is classified. The export takes raw pixels: the
standardisation is part of it.
"""

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf


def read(path, rows, cols):
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    return tf.cast(tf.round(tf.image.resize(image, (rows, cols), antialias=True)), tf.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("saved_model", nargs="?", default="runs/quick/saved_model", help="(default: %(default)s)")
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="PNG or JPEG files")
    options = parser.parse_args()
    if not (pathlib.Path(options.saved_model) / "saved_model.pb").is_file():
        sys.exit(f"error: {options.saved_model} is not a SavedModel. Make one: make train")

    served = tf.saved_model.load(options.saved_model)
    serve = served.signatures["serving_default"]
    rows, cols = serve.structured_input_signature[1]["images"].shape[1:3]
    names = options.images or ["noise"]
    if options.images:
        images = tf.stack([read(path, rows, cols) for path in options.images])
    else:
        images = tf.cast(tf.random.uniform((1, rows, cols, 3), 0, 256, tf.int32), tf.uint8)
    serve(images=images)
    start = time.perf_counter()
    answer = serve(images=images)
    milliseconds = 1000 * (time.perf_counter() - start)
    for name, label, probabilities in zip(names, answer["label"], answer["probabilities"], strict=True):
        print(f"{name}: class {int(label)} with probability {float(tf.reduce_max(probabilities)):.3f}")
    print(f"{len(names)} images in {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
