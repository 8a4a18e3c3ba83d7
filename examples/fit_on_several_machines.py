"""Train with Keras' `fit` on several machines, here two processes of this one.

    python -m trainers.launch --workers 2 examples/fit_on_several_machines.py

The launcher sets TF_CONFIG for each process. On two machines, start the script on each of them yourself:

    TF_CONFIG='{"cluster": {"worker": ["host0:5000", "host1:5000"]}, "task": {"type": "worker", "index": 0}}' \\
        python fit_on_several_machines.py        # on host0; with "index": 1 on host1

Without TF_CONFIG the script trains on one device and ends with the same weights, up to rounding.
"""

import argparse
import pathlib

import keras

from idmatters_tf.data import shapes
from idmatters_tf.determinism import make_deterministic
from idmatters_tf.distribute import chief_only, is_chief, multi_worker_strategy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=pathlib.Path, default="runs/machines", help="folder of the files (%(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs (%(default)s)")
    parser.add_argument("--images", type=int, default=2000, help="number of training images (%(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    # First of all: TensorFlow connects the workers before it computes anything.
    strategy = multi_worker_strategy()
    make_deterministic(seed=0)
    data = shapes.load(train=options.images, test=500)
    with strategy.scope():
        layers = [keras.Input(data.train_images.shape[1:]), keras.layers.Rescaling(1 / 255)]
        layers += [keras.layers.Conv2D(channels, 5, strides=2, activation="relu") for channels in (16, 32)]
        layers += [keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(data.classes)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])

    # Every worker is given the same data. The batch size is that of the global batch, of which each takes its part.
    logger = keras.callbacks.CSVLogger(options.out / "log.csv")
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2)
    model.fit(
        data.train_images,
        data.train_labels,
        batch_size=100,
        epochs=options.epochs,
        validation_data=(data.test_images, data.test_labels),
        callbacks=[stop, *chief_only(logger)],
        verbose=2 if is_chief() else 0,
    )
    # Every worker evaluates its part; every worker has the result.
    loss, accuracy = model.evaluate(data.test_images, data.test_labels, verbose=0)
    if is_chief():
        model.save(options.out / "model.keras")
        print(f"test loss {loss:.4f}, accuracy {accuracy:.3f}, on {strategy.num_replicas_in_sync} replicas")


if __name__ == "__main__":
    main()
