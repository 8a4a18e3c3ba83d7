"""Use the residual layer and the frozen random head in your own Keras model: compile, fit, save, reload, export.

    python examples/layers_in_your_model.py [--out FOLDER] [--epochs N]

Trains on the built-in images, then checks that the saved and the exported model return the same logits. The layers are
ordinary Keras layers and do not need the training programs. Takes a minute on two CPU cores.
"""

import argparse
import pathlib

import keras
import numpy as np

from idmatters_tf.data import shapes
from idmatters_tf.layers import PerImageStandardization, RandomProjection, ResidualConv2D
from idmatters_tf.optimizers import Momentum


def build(classes):
    """Return a network from raw pixels to logits."""
    images = keras.Input((32, 32, 3), dtype="uint8")
    features = PerImageStandardization()(images)
    features = keras.layers.Conv2D(16, 3, padding="same")(features)
    features = ResidualConv2D(16)(features)
    features = ResidualConv2D(32, strides=2)(features)
    features = ResidualConv2D(64, strides=2)(features)
    features = keras.layers.GlobalMaxPooling2D()(features)
    return keras.Model(images, RandomProjection(classes, seed=0)(features))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default="runs/layers_in_your_model",
        help="folder of the models (default: %(default)s)",
    )
    parser.add_argument("--epochs", type=int, default=4, help="training epochs (default: %(default)s)")
    parser.add_argument("--images", type=int, default=5000, help="training images (default: %(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    keras.utils.set_random_seed(0)
    data = shapes.load(options.images, 1000)
    model = build(data.classes)
    model.summary()
    model.compile(
        Momentum(0.1, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        data.train_images,
        data.train_labels,
        batch_size=64,
        epochs=options.epochs,
        validation_data=(data.test_images, data.test_labels),
        callbacks=[
            keras.callbacks.ModelCheckpoint(options.out / "best.keras", monitor="val_accuracy", save_best_only=True),
            keras.callbacks.TerminateOnNaN(),
        ],
    )

    model.save(options.out / "model.keras")
    reloaded = keras.saving.load_model(options.out / "model.keras")
    model.export(options.out / "saved_model", verbose=False)
    served = keras.layers.TFSMLayer(options.out / "saved_model", call_endpoint="serve")
    images = data.test_images[:100]
    expected = model.predict(images, verbose=0)
    np.testing.assert_allclose(reloaded.predict(images, verbose=0), expected, atol=1e-5)
    np.testing.assert_allclose(served(images), expected, atol=1e-4)
    print(f"saved and exported to {options.out}; the reloaded and the exported model give the same logits")


if __name__ == "__main__":
    main()
