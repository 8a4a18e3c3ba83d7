"""Full-batch descent at the edge of stability: the sharpness rises to the stability threshold and stays there.

    python examples/edge_of_stability.py [--data-dir DIR] [--images N] [--steps N] [--rate R] [--momentum M]
        [--networks NAME ...]

Trains a small identity network without and with batch normalization, and a plain one without skips, by full-batch
gradient descent at a constant rate on the first images of CIFAR-10 (the built-in shapes without --data-dir). Measures
the largest eigenvalue of the Hessian during training (Cohen et al., 2021). Prints sharpness over 2 (1 + m) / rate, and
saves the curves and their table.

Takes about twenty minutes on two CPU cores (extrapolated), and less with fewer --images and --steps.
"""

import argparse
import pathlib
import sys

import keras
import numpy as np
from matplotlib.figure import Figure

from idmatters_tf.curvature import HessianOperator, stability_threshold, top_eigenpairs
from idmatters_tf.data import shapes
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum

# Arguments of the network and label of its curve, by name.
NETWORKS = {
    "identity": ({}, "identity network"),
    "identity-batch": ({"norm": "batch"}, "identity network with batch normalization"),
    "plain": ({"shortcut": "none", "initializer": "standard"}, "plain network"),
}


def load(options):
    """Return standardized images and labels."""
    if options.data_dir:
        from idmatters_tf.data import official

        data = official.load("cifar10", options.data_dir)
    else:
        data = shapes.load(options.images, 10)
    images = data.train_images[: options.images].astype("float32")
    images = (images - images.mean()) / images.std()
    return images, np.asarray(data.train_labels[: options.images])


def descend(name, images, labels, options):
    """Train one network. Return [(step, loss, sharpness)]."""
    print(f"{name}: {options.steps} steps on {len(images)} images", file=sys.stderr, flush=True)
    keras.utils.set_random_seed(0)
    kind = NETWORKS[name][0]
    model = identity_resnet(blocks=1, widths=(8, 16), stem=8, head="trained", weight_decay=0.0, **kind)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = Momentum(options.rate, momentum=options.momentum)
    optimizer.build(model.trainable_variables)
    # With batch normalization the loss is that of training mode, with all images in one batch.
    operator = HessianOperator(
        model, loss, (images, labels), training="norm" in kind, batch_size=len(images), check=False
    )
    splits = np.cumsum([int(np.prod(variable.shape)) for variable in model.trainable_variables])[:-1]
    measured = []
    start = None
    for step in range(options.steps + 1):
        if step % options.every == 0:
            value = operator.loss()
            if not np.isfinite(value):
                raise SystemExit(f"error: {name} diverged before step {step}. Use a smaller --rate.")
            pairs = top_eigenpairs(operator, tolerance=1e-2, start=start, progress=True)
            start = pairs.vectors
            sharpness = float(pairs.values[0])
            measured.append((step, value, sharpness))
            print(
                f"{name:14} step {step:5}: loss {value:.4f}, sharpness {sharpness:9.2f}, over the threshold "
                f"{sharpness / options.threshold:.2f}, {pairs.products} products",
                flush=True,
            )
        parts = np.split(operator.gradient(), splits)
        gradients = [
            keras.ops.convert_to_tensor(part.reshape(variable.shape))
            for part, variable in zip(parts, model.trainable_variables, strict=True)
        ]
        optimizer.apply(gradients, model.trainable_variables)
    return measured


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="folder of CIFAR-10's binary files (default: the built-in shapes)")
    parser.add_argument("--images", type=int, default=500, help="training images (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="steps of gradient descent (default: %(default)s)")
    parser.add_argument("--every", type=int, default=10, help="steps between measurements (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.0, help="momentum (default: %(default)s)")
    parser.add_argument(
        "--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="networks (default: all three)"
    )
    parser.add_argument("--out", default="runs/edge-of-stability", help="folder of the results (default: %(default)s)")
    options = parser.parse_args()
    options.threshold = stability_threshold(options.rate, options.momentum)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    images, labels = load(options)

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for name in options.networks:
        table = np.array(descend(name, images, labels, options))
        axes.semilogy(table[:, 0], table[:, 2], label=NETWORKS[name][1])
        np.savetxt(out / f"sharpness-{name}.csv", table, "%.8g", ",", header="step,loss,sharpness", comments="")
    axes.axhline(options.threshold, color="grey", linestyle="dashed", label="stability threshold")
    axes.set_xlabel("step")
    axes.set_ylabel("largest eigenvalue of the Hessian")
    axes.legend()
    figure.savefig(out / "sharpness.png", dpi=100)
    print(f"curves: {out / 'sharpness.png'}")


if __name__ == "__main__":
    main()
