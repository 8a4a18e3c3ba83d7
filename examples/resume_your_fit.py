"""Kill `fit` by SIGKILL and resume it, bit for bit.

    python examples/resume_your_fit.py --kill-after 100     # kills itself after 100 batches
    python examples/resume_your_fit.py                      # resumes; prints a checksum at the end
    python examples/resume_your_fit.py --out runs/other     # an uninterrupted run: the same checksum

An ordinary script with a network, arrays and callbacks. A comment marks the line that is added for resuming. Each
command takes half a minute on two CPU cores.
"""

import argparse
import hashlib
import json
import os
import pathlib
import signal

import keras

from idmatters_tf.callbacks import ExactResume
from idmatters_tf.data import shapes
from idmatters_tf.determinism import make_deterministic


def build(classes):
    """Return a network with dropout and random flips."""
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.RandomFlip("horizontal")]
    for width in (16, 32):
        layers += [keras.layers.Conv2D(width, 3, strides=2, activation="relu"), keras.layers.BatchNormalization()]
    layers += [keras.layers.Flatten(), keras.layers.Dropout(0.3), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((32, 32, 3)), *layers])


class KillAfter(keras.callbacks.Callback):
    """End this process by SIGKILL."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.batches:
            os.kill(os.getpid(), signal.SIGKILL)


def compute_checksum(model, history):
    """Return a checksum of the weights, the optimizer's slots and the history."""
    found = hashlib.sha256(json.dumps(history.history).encode())
    for variable in [*model.variables, *model.optimizer.variables]:
        found.update(keras.ops.convert_to_numpy(variable).tobytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default="runs/resume_your_fit",
        help="folder of the checkpoints (default: %(default)s)",
    )
    parser.add_argument("--epochs", type=int, default=4, help="training epochs (default: %(default)s)")
    parser.add_argument("--images", type=int, default=3000, help="training images (default: %(default)s)")
    parser.add_argument("--kill-after", type=int, metavar="N", help="end by SIGKILL after N batches")
    options = parser.parse_args()

    make_deterministic(seed=0)
    data = shapes.load(options.images, 500)
    model = build(data.classes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss, metrics=["accuracy"])

    resume = ExactResume(options.out, every=20)  # the added line: a checkpoint every 20 batches
    callbacks = [resume, keras.callbacks.ReduceLROnPlateau("val_loss", patience=1)]
    if options.kill_after is not None:
        callbacks.append(KillAfter(options.kill_after))
    history = model.fit(
        data.train_images,
        data.train_labels,
        batch_size=64,
        epochs=options.epochs,
        validation_data=(data.test_images, data.test_labels),
        callbacks=callbacks,
        verbose=2,
    )

    print(
        f"began at batch {resume.resumed_at}; weights, optimizer and history: {compute_checksum(model, history)[:16]}"
    )


if __name__ == "__main__":
    main()
