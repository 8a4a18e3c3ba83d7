"""Classifies images with an exported network, as a server would: TensorFlow alone, nothing of this package.

    python examples/serve_saved_model.py [SAVED_MODEL] [IMAGE ...]

SAVED_MODEL is the export of a training run, runs/quick/saved_model by default. Images are PNG or JPEG files and are
resized to the network's input; without any, a light disc on a dark ground is classified. The export takes raw pixels:
the standardisation is part of it, and so are the names of the classes.
"""

import argparse
import pathlib
import sys
import time

import quiet  # noqa: F401 - TensorFlow's start-up messages stay off the screen
import tensorflow as tf


def read(path, rows, cols):
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    return tf.cast(tf.round(tf.image.resize(image, (rows, cols), antialias=True)), tf.uint8)


def disc(rows, cols):
    """A light yellow disc on dark blue, uint8."""
    y, x = tf.meshgrid(tf.linspace(-1.0, 1.0, rows), tf.linspace(-1.0, 1.0, cols), indexing="ij")
    inside = (x**2 + y**2 < 0.36)[..., tf.newaxis]
    return tf.cast(tf.where(inside, [240, 220, 120], [30, 40, 90]), tf.uint8)


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
    shown = options.images or ["a disc"]
    images = tf.stack([read(path, rows, cols) for path in options.images] or [disc(rows, cols)])
    serve(images=images)
    start = time.perf_counter()
    answer = serve(images=images)
    milliseconds = 1000 * (time.perf_counter() - start)
    # Exports of earlier versions have numbers, but no names.
    classes = answer.get("name", tf.strings.as_string(answer["label"])).numpy()
    for image, name, probabilities in zip(shown, classes, answer["probabilities"], strict=True):
        print(f"{image}: {name.decode()} with probability {float(tf.reduce_max(probabilities)):.3f}")
    print(f"{len(shown)} images in {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
