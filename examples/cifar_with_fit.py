"""Train the paper's network on CIFAR-10 with Keras' `fit`, on TensorFlow or JAX, with exact resume.

    python examples/cifar_with_fit.py                  # a small network on the built-in data
    KERAS_BACKEND=jax python examples/cifar_with_fit.py --dataset cifar10 --blocks 9 --widths 64 128 256 --steps 60000

On JAX the script needs numpy, keras and jax only. The same command resumes a killed run, bit for bit. `trainers.cifar`
has all options of the paper, on both backends.
"""

import argparse
import pathlib

import keras

from idmatters_tf.callbacks import ExactResume, FunctionBatches
from idmatters_tf.data import official, shapes
from idmatters_tf.data.batches import TrainBatches, standardize
from idmatters_tf.determinism import make_deterministic
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=("shapes", "cifar10", "cifar100"), default="shapes")
    parser.add_argument("--data-dir", help="folder with the official binary files of CIFAR")
    parser.add_argument("--blocks", type=int, default=1, help="residual blocks per stage (%(default)s)")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="channels per stage")
    parser.add_argument("--batch-size", type=int, default=64, help="images per batch (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="number of updates (%(default)s)")
    parser.add_argument("--every", type=int, default=200, help="steps per epoch, a divisor of --steps (%(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default="runs/cifar_with_fit", help="folder of the run")
    options = parser.parse_args()

    make_deterministic(0)
    data = shapes.load() if options.dataset == "shapes" else official.load(options.dataset, options.data_dir)
    source = TrainBatches(data.train_images, data.train_labels, options.batch_size)
    tests = standardize(data.test_images), data.test_labels
    model = identity_resnet(blocks=options.blocks, widths=tuple(options.widths), classes=data.classes)
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([options.steps // 2], [0.05, 0.005])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(Momentum(rate, global_clipnorm=1.0), loss, metrics=["accuracy"])
    batches = FunctionBatches(source, options.every)
    resume = ExactResume(options.out / "checkpoints", every=100)
    epochs = options.steps // options.every
    model.fit(batches, epochs=epochs, validation_data=tests, callbacks=[resume], verbose=2)
    keras.Model(model.inputs, model.outputs).save(options.out / "model.keras")  # without the optimizer
    error = 1 - model.evaluate(*tests, verbose=0, return_dict=True)["accuracy"]
    print(f"test error {100 * error:.2f} % after {options.steps} steps")


if __name__ == "__main__":
    main()
