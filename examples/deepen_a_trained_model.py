"""Make a trained network deeper without changing its outputs, then remove a block again.

    python examples/deepen_a_trained_model.py [--out DIR] [--images N] [--epochs N]

Trains a small network on the built-in images, inserts residual blocks that start as the identity, continues the
training with Adam's state, and removes the block nearest to the identity. Takes two minutes on two CPU cores.
"""

import argparse
import pathlib

import keras
import numpy as np

from idmatters_tf.data import shapes
from idmatters_tf.surgery import deepen, remove_identities


def build():
    """Return a network. Any functional or Sequential model works; blocks are inserted behind layers given by name."""
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Rescaling(1 / 128, offset=-1),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu", name="fine"),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu", name="coarse"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, name="logits"),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=pathlib.Path, default="runs/deepen", help="folder of the model (default: %(default)s)"
    )
    parser.add_argument("--images", type=int, default=5000, help="training images (default: %(default)s)")
    parser.add_argument(
        "--epochs", type=int, default=4, help="epochs before and after the insertion (default: %(default)s)"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    keras.utils.set_random_seed(0)
    data = shapes.load(options.images, 1000)
    train = data.train_images.astype(np.float32), data.train_labels
    test = data.test_images.astype(np.float32), data.test_labels

    def show(model, title):
        loss, accuracy = model.evaluate(*test, verbose=0)
        print(f"{title:28} {model.count_params():7,} weights, test loss {loss:.4f}, accuracy {accuracy:.3f}")

    model = build()
    model.compile(
        keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    model.fit(*train, epochs=options.epochs, verbose=0)
    show(model, "trained")

    deeper = deepen(model, after=["fine", "coarse"], count=2, optimizer=model.optimizer)
    np.testing.assert_array_equal(deeper(test[0][:100]), model(test[0][:100]))
    show(deeper, "deepened: the same outputs")
    deeper.fit(*train, epochs=options.epochs, verbose=0)
    show(deeper, "trained on")
    deeper.save(options.out / "deeper.keras")

    # With tolerance 0 the first call only measures the distances.
    distances = remove_identities(deeper, tolerance=0, data=test).distances
    for name, distance in distances.items():
        print(f"{name:28} ||block(x) - x|| = {distance:.3f} ||x||")
    removal = remove_identities(deeper, min(distances.values()), data=test, optimizer=deeper.optimizer)
    show(removal.model, f"without {', '.join(removal.removed)}")
    removal.model.fit(*train, epochs=1, verbose=0)
    show(removal.model, "trained on for an epoch")


if __name__ == "__main__":
    main()
