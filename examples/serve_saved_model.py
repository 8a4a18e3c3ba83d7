"""Classify images with an exported network, as a server does: with TensorFlow alone, without this package.

    python examples/serve_saved_model.py [SAVED_MODEL] [IMAGE ...]

SAVED_MODEL is the export of a training run, by default runs/quick/saved_model, which `make train` writes. Images are
PNG or JPEG files and are resized to the network's input, as in evaluations of runs with --augment paper or none.
Without images the script classifies a light disc on a dark ground. The export takes raw pixels and contains the
standardization and the names of the classes. Takes seconds.
"""

import argparse
import pathlib
import sys
import time

import tensorflow as tf


def read(path, rows, cols):
    """Return the pixels that evaluations of the training programs see, see `idmatters_tf.data.imagenet.load_image`."""
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    # Without antialiasing, like the images of the training.
    return tf.cast(tf.round(tf.image.resize(image, (rows, cols))), tf.uint8)


def draw_disc(rows, cols):
    """Return the image of a light yellow disc on dark blue, uint8."""
    y, x = tf.meshgrid(tf.linspace(-1.0, 1.0, rows), tf.linspace(-1.0, 1.0, cols), indexing="ij")
    inside = (x**2 + y**2 < 0.36)[..., tf.newaxis]
    return tf.cast(tf.where(inside, [240, 220, 120], [30, 40, 90]), tf.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "saved_model", nargs="?", default="runs/quick/saved_model", help="exported network (default: %(default)s)"
    )
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="PNG or JPEG files")
    options = parser.parse_args()
    if not (pathlib.Path(options.saved_model) / "saved_model.pb").is_file():
        sys.exit(f"error: {options.saved_model} is not a SavedModel. Use make train to write one.")

    served = tf.saved_model.load(options.saved_model)
    serve = served.signatures["serving_default"]
    rows, cols = serve.structured_input_signature[1]["images"].shape[1:3]
    shown = options.images or ["a disc"]
    images = tf.stack([read(path, rows, cols) for path in options.images] or [draw_disc(rows, cols)])
    serve(images=images)
    start = time.perf_counter()
    answer = serve(images=images)
    milliseconds = 1000 * (time.perf_counter() - start)
    # Exports of data without class names return numbers only.
    classes = answer.get("name", tf.strings.as_string(answer["label"])).numpy()
    for image, name, probabilities in zip(shown, classes, answer["probabilities"], strict=True):
        print(f"{image}: {name.decode()} with probability {float(tf.reduce_max(probabilities)):.3f}")
    print(f"{len(shown)} images in {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
