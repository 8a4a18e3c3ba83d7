"""Compute the Hessian of your own convolutional network: extreme eigenvalues, spectrum, trace, blocks of layers.

    python examples/curvature_of_your_model.py [--out DIR] [--images N] [--epochs N]

Trains a small network on the built-in images, then measures the curvature of its loss. Takes two minutes on two CPU
cores.
"""

import argparse
import pathlib

import keras
import numpy as np

from idmatters_tf.curvature import (
    CurvatureMonitor,
    GaussNewtonOperator,
    HessianOperator,
    spectral_density,
    summarize,
    top_eigenpairs,
    trace,
)
from idmatters_tf.data import shapes


def build():
    """Return a network. Any other built Keras model works as well."""
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Rescaling(1 / 128, offset=-1),
            keras.layers.Conv2D(8, 3, strides=2, activation="tanh", name="first"),
            keras.layers.Conv2D(8, 3, strides=2, activation="tanh", name="second"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, name="logits"),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="runs/curvature", help="folder of the results (default: %(default)s)")
    parser.add_argument("--images", type=int, default=1000, help="training images (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="training epochs (default: %(default)s)")
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)

    keras.utils.set_random_seed(0)
    data = shapes.load(options.images, 10)
    x, y = data.train_images.astype(np.float32), data.train_labels
    model = build()
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    # Measurements on a fixed sample during training. TensorBoard shows them with --logdir DIR.
    sample = x[:256], y[:256]
    few = {"probes": 2, "steps": 15, "products": 12}
    every = f"{max(1, options.epochs // 4)} epochs"
    monitor = CurvatureMonitor(sample, every=every, log_dir=out / "events", measure_options=few)
    model.fit(x, y, epochs=options.epochs, verbose=0, callbacks=[monitor])
    for epoch, measured in monitor.measurements.items():
        ends = f"{measured.smallest[0]:.3f} to {measured.largest[0]:.3f}"
        print(f"epoch {epoch}: loss {measured.loss:.3f}, eigenvalues {ends}")

    # The Hessian of the trained network, a SciPy operator. Each product is a pass over the data; no matrix is formed.
    hessian = HessianOperator(model, model.loss, sample)
    ends = top_eigenpairs(hessian, k=2, which="both", tolerance=1e-3)
    print(f"{hessian.shape[0]:,} parameters; eigenvalues at the ends: {np.array2string(ends.values, precision=3)}")
    estimate = trace(hessian, products=30)
    print(f"trace {estimate.value:.2f} +- {estimate.standard_error:.2f}")
    density = spectral_density(hessian, probes=4, steps=40)
    density.plot(out / "density.png")

    # The network is small enough for the whole matrix and exact eigenvalues.
    eigenvalues = np.linalg.eigvalsh(hessian.to_dense())
    print(f"exactly: {summarize(eigenvalues)}")
    print(f"trace {eigenvalues.sum():.2f}")
    for name, block in hessian.blocks().items():
        print(f"{name:8} largest eigenvalue of its block {np.linalg.eigvalsh(block)[-1]:.3f}")

    # The positive semidefinite part of the Hessian.
    gauss_newton = GaussNewtonOperator(model, model.loss, sample)
    print(f"Gauss-Newton: largest eigenvalue {top_eigenpairs(gauss_newton, tolerance=1e-3).values[0]:.3f}")
    print(f"image: {out / 'density.png'}")


if __name__ == "__main__":
    main()
