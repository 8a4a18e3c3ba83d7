"""What the theory watches, all at once, during `model.fit`: norms of blocks, distances from the identity, curvature.

    python examples/watch_training.py [--out DIR] [--images N] [--epochs N]

Trains a small residual network on the built-in images with three callbacks and prints what they saw; `tensorboard
--logdir DIR` shows it, with the density of the Hessian's spectrum and "block number against ||J - I||" as images. A
minute on two CPU cores.
"""

import argparse
import pathlib

import quiet  # noqa: F401 - TensorFlow's start-up messages stay off the screen

# isort: split
import keras
from matplotlib import image

from idmatters_tf.callbacks import BlockNorms, CurvatureMonitor, IsometryMonitor
from idmatters_tf.data import shapes
from idmatters_tf.isometry import draw_distances
from idmatters_tf.layers import ResidualConv2D
from idmatters_tf.optimizers import Momentum


def network():
    """Any model with residual blocks."""
    images = keras.Input((32, 32, 3))
    features = keras.layers.Rescaling(1 / 128, offset=-1)(images)
    features = keras.layers.Conv2D(8, 3, strides=2, padding="same", name="stem")(features)
    for number, (width, stride) in enumerate([(8, 1), (8, 1), (16, 2), (16, 1)], start=1):
        features = ResidualConv2D(width, strides=stride, name=f"block{number}")(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(images, keras.layers.Dense(10, name="logits")(features))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default="runs/watched", help="(default: %(default)s)")
    parser.add_argument("--images", type=int, default=2000, help="training images (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=6, help="(default: %(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    keras.utils.set_random_seed(0)
    data = shapes.load(options.images, 10)
    x, y = data.train_images.astype("float32"), data.train_labels
    model = network()
    model.compile(Momentum(0.1, global_clipnorm=1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    # The same options everywhere: how often, and where TensorBoard's files go.
    when_and_where = {"every": max(1, options.epochs // 3), "log_dir": options.out / "events"}
    norms = BlockNorms(**when_and_where)
    isometry = IsometryMonitor(x[:2], **when_and_where)
    few = {"probes": 1, "steps": 10, "products": 6, "tolerance": 1e-2}
    # A network with ReLUs: differences of gradients see the kinks, which the check would report.
    curvature = CurvatureMonitor((x[:128], y[:128]), measure_options=few, check=False, **when_and_where)
    model.fit(x, y, batch_size=64, epochs=options.epochs, verbose=0, callbacks=[norms, isometry, curvature])

    print("epoch   loss    tau  largest ||J - I||  blocks' singular values  sharpness")
    for epoch, of_norms in norms.measurements.items():
        of_blocks, of_loss = isometry.measurements[epoch].summary(), curvature.measurements[epoch]
        ends = f"{of_blocks['smallest_singular_value']:.3f} to {of_blocks['largest_singular_value']:.3f}"
        numbers = f"{of_loss.loss:6.3f} {of_norms.tau:6.2f} {of_blocks['largest_distance']:18.3f}"
        print(f"{epoch:5} {numbers} {ends:>24} {of_loss.largest[0]:10.2f}")
    left = norms.left_ball
    print(f"tau reached 1 {'never' if left is None else f'within {left} epochs'}")
    curves = {f"epoch {epoch}": measured.distances() for epoch, measured in isometry.measurements.items()}
    image.imsave(options.out / "distances.png", draw_distances(curves, "how far each block is from the identity"))
    print(f"image: {options.out / 'distances.png'}")


if __name__ == "__main__":
    main()
