"""Train on CIFAR with Keras' `fit`, on TensorFlow or JAX: the paper's network or the fast preset, with exact resume.

    python examples/cifar_with_fit.py             # a small network on the built-in data, four minutes on two CPU cores
    KERAS_BACKEND=jax python examples/cifar_with_fit.py --preset paper --data-dir DIR --precision bfloat16

The network, the optimizer, the batches and the resume are from `idmatters_tf`, and `fit` does the rest. On JAX the
script needs numpy, keras and jax only; on a GPU, add `--steps-per-execution 10`. The presets are those of
`trainers.cifar`, and the options are some of its options. The same command resumes a killed run, bit for bit.
"""

import argparse
import functools
import pathlib

import quiet  # noqa: F401 - TensorFlow's start-up messages stay off the screen

# isort: split
import keras
import numpy as np

from idmatters_tf.callbacks import ExactResume, FunctionBatches
from idmatters_tf.data import cifar, shapes
from idmatters_tf.data.images import DataError
from idmatters_tf.determinism import make_deterministic
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.normalizer_free import normalizer_free_resnet
from idmatters_tf.optimizers import Momentum, Muon
from trainers.cifar import PROGRAM
from trainers.cli.settings import as_dict, list_options
from trainers.training.settings import Settings

# The settings of the trainer that this script has.
SETTINGS = ("dataset", "model", "blocks", "widths", "stem", "weight_decay", "label_smoothing", "precision", "optimizer")
SETTINGS += ("nesterov", "other_rate", "clip_norm", "steps", "batch_size", "learning_rate", "schedule")
SETTINGS += ("drop_steps", "warm_up_steps", "evaluate_every", "checkpoint_every", "augment", "cutout", "seed")
# Here `evaluate_every` must divide `steps`. The preset "short" scales images and averages weights, as `fit` does not.
CHANGES = {"quick": {}, "fast": {"evaluate_every": 430}, "paper": {}}
PADDING = {"paper": 2, "standard": 4, "alternating": 4}
CHOICES = {"dataset": ("cifar10", "cifar100", "shapes"), "model": ("identity", "normalizer-free")}
CHOICES |= {"schedule": ("drops", "linear"), "augment": tuple(PADDING)}


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A rate divided by 10 at each of `drop_steps`; if it is linear, one that rises to its peak and falls to zero."""

    def __init__(self, schedule, learning_rate, steps, warm_up_steps, drop_steps):
        self.schedule, self.learning_rate, self.steps = schedule, learning_rate, steps
        self.warm_up_steps, self.drop_steps = warm_up_steps, drop_steps

    def __call__(self, step):
        step = keras.ops.cast(step, "float32")
        if self.schedule == "drops":
            return self.learning_rate * 0.1 ** sum(keras.ops.cast(step >= drop, "float32") for drop in self.drop_steps)
        rising = (step + 1) / (self.warm_up_steps + 1)
        return self.learning_rate * keras.ops.minimum(rising, (self.steps - step) / (self.steps - self.warm_up_steps))

    def get_config(self):
        return dict(vars(self))


def standardize(images):
    """Return each image with mean 0 and standard deviation 1, as `layers.PerImageStandardization`."""
    images = images.astype("float32")
    deviation = images.std((1, 2, 3), keepdims=True)
    return (images - images.mean((1, 2, 3), keepdims=True)) / np.maximum(deviation, images[0].size ** -0.5)


def make_batch_function(images, targets, options):
    """Return the training batch as a function of the step: shuffled, cropped, flipped, standardized, with cutout."""
    seed, size, side, border = options.seed, options.batch_size, options.cutout, PADDING[options.augment]
    alternates = options.augment == "alternating"
    padding = ((0, 0), (border, border), (border, border), (0, 0))
    padded = np.pad(images, padding, "reflect" if alternates else "constant")
    windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[1:3], axis=(1, 2))
    first_flips = np.random.default_rng(seed).integers(0, 2, len(images))
    order = functools.lru_cache(2)(lambda epoch: np.random.default_rng((seed, 0, epoch)).permutation(len(images)))

    def batch(step):
        random = np.random.default_rng((seed, 1, step))
        epochs, places = np.divmod(step * size + np.arange(size), len(images))
        rows = np.array([order(epoch)[place] for epoch, place in zip(epochs, places, strict=True)])
        top, left = random.integers(0, 2 * border + 1, (2, size))
        chosen = windows[rows, top, left].transpose(0, 2, 3, 1)
        flips = (first_flips[rows] + epochs) % 2 if alternates else random.integers(0, 2, size)
        chosen = standardize(np.where(flips[:, None, None, None] == 1, chosen[:, :, ::-1], chosen))
        starts = random.integers(0, images.shape[1:3], (size, 2)) - side // 2
        for image, (row, column) in zip(chosen if side else (), starts, strict=False):
            image[max(row, 0) : max(row + side, 0), max(column, 0) : max(column + side, 0)] = 0
        return chosen, targets[rows]

    return batch


def build(data, options):
    """Return the compiled network."""
    keras.config.set_dtype_policy("mixed_bfloat16" if options.precision == "bfloat16" else "float32")
    shared = {name: getattr(options, name) for name in ("blocks", "widths", "stem", "weight_decay", "seed")}
    make = {"identity": identity_resnet, "normalizer-free": normalizer_free_resnet}[options.model]
    model = make(data.train_images.shape[1:], data.classes, **shared)
    names = ("schedule", "learning_rate", "steps", "warm_up_steps", "drop_steps")
    rate = Schedule(**{name: getattr(options, name) for name in names})
    arguments = {"momentum": 0.9, "nesterov": options.nesterov, "global_clipnorm": options.clip_norm}
    if options.optimizer in ("muon", "muon-free"):
        norm = "keep" if options.optimizer == "muon" else "free"
        optimizer = Muon(rate, norm=norm, other_rate=options.other_rate, **arguments)
    else:
        optimizer = Momentum(rate, **arguments)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=options.label_smoothing)
    model.compile(optimizer, loss, metrics=["accuracy"], steps_per_execution=options.steps_per_execution)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", choices=CHANGES, default="quick", help="defaults of the settings (%(default)s)")
    parser.add_argument("--data-dir", help="folder with the official binary files of CIFAR")
    parser.add_argument("--out", type=pathlib.Path, default="runs/cifar_with_fit", help="run's folder (%(default)s)")
    parser.add_argument("--steps-per-execution", type=int, default=1, help="steps of a compiled call (%(default)s)")
    preset = parser.parse_known_args()[0].preset
    defaults, described = as_dict(PROGRAM.resolve(preset)) | CHANGES[preset], list_options(Settings, {})
    # The networks have as many blocks in each stage.
    (defaults["blocks"],) = defaults["blocks"]
    for name in SETTINGS:
        option = described[name]
        kind = {"type": option.kind, "choices": CHOICES.get(name, option.choices) or None}
        if option.kind is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        elif isinstance(defaults[name], list):
            kind |= {"nargs": "*"}
        parser.add_argument(option.flag, default=defaults[name], help=f"{option.help} (%(default)s)", **kind)
    parser.add_argument("--help", action="help", help="show this message and exit")
    options = parser.parse_args()
    epochs, rest = divmod(options.steps, options.evaluate_every)
    if rest:
        parser.error("--evaluate-every must divide --steps.")

    make_deterministic(options.seed)
    try:
        data = shapes.load() if options.dataset == "shapes" else cifar.load(options.dataset, options.data_dir)
    except DataError as error:
        parser.error(str(error))
    one_hot = np.eye(data.classes, dtype="float32")
    model, tests = build(data, options), (standardize(data.test_images), one_hot[data.test_labels])
    batch = make_batch_function(data.train_images, one_hot[data.train_labels], options)
    batches = FunctionBatches(batch, steps_per_epoch=options.evaluate_every)
    callbacks = [ExactResume(options.out / "checkpoints", every=options.checkpoint_every)]
    model.fit(batches, epochs=epochs, validation_data=tests, validation_batch_size=500, callbacks=callbacks, verbose=2)
    keras.Model(model.inputs, model.outputs).save(options.out / "model.keras")  # without the optimizer
    error = 1 - model.evaluate(*tests, batch_size=500, verbose=0, return_dict=True)["accuracy"]
    print(f"test error {100 * error:.2f} % after {options.steps} steps")


if __name__ == "__main__":
    main()
