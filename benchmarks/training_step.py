"""Claim: a training step of the Table 1 network is as fast as PyTorch's, also with the metrics of `trainers.cifar`.

    python benchmarks/training_step.py [--precision bfloat16] [--blocks N] [--widths C ...] [--peer-python FILE]

One update with momentum and weight decay on the same batch with the same threads: `model.fit` of the Keras model as
`trainers.cifar` compiles it, as a user would, and, if PyTorch is installed, the same network in PyTorch with the same
initial weights, in a separate process, in both memory formats. Before the measurement, the losses of the first three
steps are checked for agreement. The convolutions alone are measured too: their share of the step bounds what any other
change can gain.
"""

import contextlib
import json
import math
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# As in `trainers.cifar`.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import tensorflow as tf

from harness import peer, results
from harness.timing import in_turn, ratio, seconds
from idmatters_tf._tensorflow_internals.pipelines import without_autotuning
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum
from trainers.training.measure import make_metrics
from trainers.training.settings import Recipe
from trainers.training.train import RecipeSchedule, make_optimizer

RATE, DECAY, STEPS = 0.05, 1e-4, 3
MEMORY_FORMATS = {"PyTorch": "contiguous_format", "PyTorch, channels last": "channels_last"}


def network(options):
    keras.config.set_dtype_policy("mixed_bfloat16" if options.precision == "bfloat16" else "float32")
    return identity_resnet(blocks=options.blocks, widths=tuple(options.widths), weight_decay=DECAY)


def by_program(options, images, labels):
    """Return a function that takes several steps as `trainers.cifar` does and returns the losses."""
    recipe = Recipe(learning_rate=RATE)
    optimizer = make_optimizer(recipe, RecipeSchedule(recipe))
    return by_fit(options, images, labels, optimizer, weighted_metrics=make_metrics(10))


def by_fit(options, images, labels, optimizer=None, **arguments):
    """Return the same function with `fit`, several steps per call so that its start-up time does not dominate."""
    model = network(options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or Momentum(RATE, 0.9), loss, jit_compile=False, **arguments)
    # A `fit` that ends while TensorFlow's autotuning works waits for its next period, here for as long as the steps.
    batches = without_autotuning(tf.data.Dataset.from_tensors((images, labels)).repeat())

    def steps():
        losses = Losses()
        model.fit(batches, steps_per_epoch=STEPS, shuffle=False, verbose=0, callbacks=[losses])
        return losses.values

    return steps


def by_convolutions(options, images):
    """Return a function that computes the convolutions of several steps, forward and backward, and nothing else."""
    dtype, rng = options.precision, np.random.default_rng(0)
    shapes = [variable.shape for variable in network(options).trainable_variables if len(variable.shape) == 4]
    # Kernels that keep the size of their inputs: numbers that vanish would not take the usual time.
    kernels = [tf.constant(rng.normal(size=shape) / math.sqrt(math.prod(shape[:3])), dtype) for shape in shapes]
    first_of_stage = {1 + 2 * options.blocks * stage for stage in range(1, len(options.widths))}

    @tf.function
    def step(features, kernels):
        with tf.GradientTape() as tape:
            tape.watch(kernels)
            for index, kernel in enumerate(kernels):
                features = tf.nn.conv2d(features, kernel, 2 if index in first_of_stage else 1, "SAME")
        gradients = tape.gradient(features, kernels, output_gradients=features)
        return [gradient[0, 0, 0, 0] for gradient in gradients]

    images = tf.constant(images, dtype)
    return lambda: [[float(value) for value in step(images, kernels)] for _ in range(STEPS)]


class Losses(keras.callbacks.Callback):
    """Callback that records the loss of each step, computed from Keras' mean over the epoch."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"] * (batch + 1) - sum(self.values))


def write_inputs(folder, options, images, labels):
    """Write the weights, data and settings with which the peer trains the same network."""
    weights = {f"weight{number}": weight for number, weight in enumerate(network(options).get_weights())}
    np.savez(folder / "inputs.npz", images=images, labels=labels, **weights)
    settings = {"blocks": options.blocks, "precision": options.precision, "learning_rate": RATE}
    settings |= {"weight_decay": DECAY, "weights": len(weights)}
    (folder / "settings.json").write_text(json.dumps(settings))


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="(default: float32)")
    parser.add_argument("--blocks", type=int, default=9, help="residual blocks per stage (default: %(default)s)")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256], help="channels (default: 64 128 256)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per batch (default: %(default)s)")
    peer.add_option(parser)
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])

    rng = np.random.default_rng(0)
    images = rng.normal(size=(options.batch_size, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, options.batch_size).astype("int32")
    ways = {"trainers.cifar": by_program(options, images, labels), "Keras' fit": by_fit(options, images, labels)}
    losses = {name: way() for name, way in ways.items()}
    ways["the convolutions alone"] = by_convolutions(options, images)
    ways["the convolutions alone"]()
    measured = {name: lambda way=way: seconds(way) / STEPS for name, way in ways.items()}
    with contextlib.ExitStack() as stack:
        if torch_version := peer.version("torch", options.peer_python):
            report.versions["torch"] = torch_version
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_inputs(folder, options, images, labels)
            torch = stack.enter_context(peer.Peer("torch_training_step", folder, options.peer_python))
            for name, memory_format in MEMORY_FORMATS.items():
                arguments = {"memory_format": memory_format, "count": STEPS}
                losses[name] = torch.ask("losses", **arguments)
                measured[name] = lambda arguments=arguments: torch.ask("seconds", **arguments)
        check_agreement(losses, options.precision)
        times = in_turn(measured, options.rounds)
    ours = times["trainers.cifar"]
    for name, values in times.items():
        report.add(name, values, "s a step", ratio=ratio(values, ours) if values is not ours else None)
    report.finish(f"Batch {options.batch_size}, {options.precision}.")


def check_agreement(losses, precision):
    expected = losses["trainers.cifar"]
    tolerance = 2e-2 if precision == "bfloat16" else 1e-4
    for name, values in losses.items():
        np.testing.assert_allclose(values, expected, rtol=tolerance, err_msg=name)
    print(f"the losses of the first steps agree: {', '.join(f'{loss:.4f}' for loss in expected)}")


if __name__ == "__main__":
    main()
