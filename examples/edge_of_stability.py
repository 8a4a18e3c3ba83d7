"""The edge of stability on CIFAR-10: full-batch descent raises the sharpness to the threshold, and stays there.

    python examples/edge_of_stability.py [--data-dir DIR] [--images N] [--steps N] [--rate R] [--momentum M]

Trains a small identity network, without and with batch normalisation, by full-batch gradient descent at a constant
rate on the first images of CIFAR-10 (the built-in shapes without --data-dir), and measures the largest eigenvalue of
the Hessian on the way (Cohen et al., 2021). Prints sharpness over 2 (1 + m) / rate, and saves the curves and the table
of the Hessian's block norms between layers before and after training.
"""

import argparse
import pathlib

import quiet  # noqa: F401 - TensorFlow's start-up messages stay off the screen

# isort: split
import keras
import numpy as np
from matplotlib import image
from matplotlib.figure import Figure

from idmatters_tf.curvature import (
    HessianOperator,
    draw_coupling,
    layer_coupling,
    stability_threshold,
    top_eigenpairs,
)
from idmatters_tf.data import shapes
from idmatters_tf.optimizers import Momentum
from models.cifar import identity_resnet


def load(options):
    """Standardised images and labels."""
    if options.data_dir:
        from idmatters_tf.data import cifar

        data = cifar.load("cifar10", options.data_dir)
    else:
        data = shapes.load(options.images, 10)
    images = data.train_images[: options.images].astype("float32")
    images = (images - images.mean()) / images.std()
    return images, np.asarray(data.train_labels[: options.images])


def descend(norm, images, labels, options):
    """[(step, loss, sharpness)], and the couplings before and after."""
    model = identity_resnet(blocks=1, widths=(8, 16), stem=8, norm=norm, head="trained", weight_decay=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = Momentum(options.rate, momentum=options.momentum)
    optimizer.build(model.trainable_variables)
    # With batch normalisation the loss that is descended on is the one in training mode, of all images as one batch.
    operator = HessianOperator(
        model, loss, (images, labels), training=norm is not None, batch_size=len(images), check=False
    )
    splits = np.cumsum([int(np.prod(variable.shape)) for variable in model.trainable_variables])[:-1]
    before, found, start = layer_coupling(operator), [], None
    for step in range(options.steps + 1):
        if step % options.every == 0:
            pairs = top_eigenpairs(operator, tolerance=1e-2, start=start)
            start = pairs.vectors
            found.append((step, operator.loss(), float(pairs.values[-1])))
            print(
                f"{norm or 'no norm':8} step {step:5}: loss {found[-1][1]:.4f}, sharpness {found[-1][2]:9.2f}, over "
                f"the threshold {found[-1][2] / options.threshold:.2f}, {pairs.products} products",
                flush=True,
            )
        parts = np.split(operator.gradient(), splits)
        gradients = [
            keras.ops.convert_to_tensor(part.reshape(variable.shape))
            for part, variable in zip(parts, model.trainable_variables, strict=True)
        ]
        optimizer.apply(gradients, model.trainable_variables)
    return found, before, layer_coupling(operator)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="folder of CIFAR-10's binary files (default: the built-in shapes)")
    parser.add_argument("--images", type=int, default=500, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="(default: %(default)s)")
    parser.add_argument("--every", type=int, default=10, help="steps between measurements (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.1, help="(default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.0, help="(default: %(default)s)")
    parser.add_argument("--out", default="runs/edge-of-stability", help="(default: %(default)s)")
    options = parser.parse_args()
    options.threshold = stability_threshold(options.rate, options.momentum)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)
    images, labels = load(options)

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for norm in (None, "batch"):
        found, before, after = descend(norm, images, labels, options)
        name = "identity network" if norm is None else "with batch normalisation"
        axes.semilogy([step for step, _, _ in found], [sharpness for _, _, sharpness in found], label=name)
        for coupling, moment in ((before, "start"), (after, "end")):
            path = out / f"coupling-{norm or 'none'}-{moment}.png"
            image.imsave(path, draw_coupling(coupling, f"{name}, {moment}"))
            print(f"{name}, {moment}: {100 * coupling.off_diagonal_share:.0f} % of ||H||^2 between layers, {path}")
    axes.axhline(options.threshold, color="grey", linestyle="dashed", label="stability threshold")
    axes.set_xlabel("step")
    axes.set_ylabel("largest eigenvalue of the Hessian")
    axes.legend()
    figure.savefig(out / "sharpness.png", dpi=100)
    print(f"curves: {out / 'sharpness.png'}")


if __name__ == "__main__":
    main()
