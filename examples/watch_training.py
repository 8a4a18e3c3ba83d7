"""Measure norms of blocks, distances from the identity and curvature during `model.fit`.

    python examples/watch_training.py [--out DIR] [--images N] [--epochs N]

Trains a small residual network on the built-in images with three callbacks and prints their measurements.
`tensorboard --logdir DIR` shows them, with images of the Hessian's spectral density and of ||J - I|| by block. Takes a
minute on two CPU cores.
"""

import argparse
import pathlib

import keras

from idmatters_tf.callbacks import BlockNorms, CurvatureMonitor, IsometryMonitor
from idmatters_tf.data import shapes
from idmatters_tf.layers import ResidualConv2D
from idmatters_tf.optimizers import Momentum


def build():
    """Return a network. Any other model with residual blocks works as well."""
    images = keras.Input((32, 32, 3))
    features = keras.layers.Rescaling(1 / 128, offset=-1)(images)
    features = keras.layers.Conv2D(8, 3, strides=2, padding="same", name="stem")(features)
    for number, (width, stride) in enumerate([(8, 1), (8, 1), (16, 2), (16, 1)], start=1):
        features = ResidualConv2D(width, strides=stride, name=f"block{number}")(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(images, keras.layers.Dense(10, name="logits")(features))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=pathlib.Path, default="runs/watched", help="folder of the results (default: %(default)s)"
    )
    parser.add_argument("--images", type=int, default=2000, help="training images (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=6, help="training epochs (default: %(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    keras.utils.set_random_seed(0)
    data = shapes.load(options.images, 10)
    x, y = data.train_images.astype("float32"), data.train_labels
    model = build()
    model.compile(Momentum(0.1, global_clipnorm=1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    # All callbacks measure at the same epochs and write TensorBoard's files to the same folder.
    shared = {"every": f"{max(1, options.epochs // 3)} epochs", "log_dir": options.out / "events"}
    norms = BlockNorms(**shared)
    isometry = IsometryMonitor(x[:2], **shared)
    few = {"probes": 1, "steps": 10, "products": 6, "tolerance": 1e-2}
    # The check compares with differences of gradients, which are not reliable across the kinks of ReLUs.
    curvature = CurvatureMonitor((x[:128], y[:128]), measure_options=few, check=False, **shared)
    model.fit(x, y, batch_size=64, epochs=options.epochs, verbose=0, callbacks=[norms, isometry, curvature])

    print("epoch   loss   norm  largest ||J - I||  blocks' singular values  sharpness")
    for epoch, norm in norms.measurements.items():
        block = isometry.measurements[epoch].summary()
        curve = curvature.measurements[epoch]
        ends = f"{block['smallest_singular_value']:.3f} to {block['largest_singular_value']:.3f}"
        numbers = f"{curve.loss:6.3f} {norm.summary()['largest_spectral']:6.2f} {block['largest_distance']:18.3f}"
        print(f"{epoch:5} {numbers} {ends:>24} {curve.largest[0]:10.2f}")
    isometry.plot(options.out / "distances.png")
    print(f"image: {options.out / 'distances.png'}")


if __name__ == "__main__":
    main()
