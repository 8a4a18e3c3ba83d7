"""Claim: a training step of the Table 1 network is as fast as PyTorch's, and faster than a plain Keras `fit`.

    python benchmarks/training_step.py [--precision bfloat16] [--blocks N] [--widths C ...] [--batch-size N]

One update with momentum and weight decay, in turn in one process, on the same batch with the same threads: the loop of
`trainers.cifar`, `model.fit` of the compiled Keras model, and, where PyTorch is installed, the same network there with
the same starting weights, in both of its memory formats. Before anything is timed the three have to agree on the losses
of the first three steps. Medians over rounds.
"""

import argparse
import importlib.util
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.optimizers import Momentum
from models.cifar import identity_resnet
from trainers.training.loop import Recipe, Trainer

RATE, DECAY = 0.05, 1e-4


def network(options):
    keras.config.set_dtype_policy("mixed_bfloat16" if options.precision == "bfloat16" else "float32")
    return identity_resnet(blocks=options.blocks, widths=tuple(options.widths), weight_decay=DECAY)


def by_loop(options, images, labels):
    """A function that takes one step and returns the loss."""
    recipe = Recipe(1, RATE, (), 10.0, lambda rate: Momentum(rate, 0.9), None, 1, 1, 1, 1)
    trainer = Trainer(tf.distribute.get_strategy(), lambda: network(options), recipe, len(images))
    batches = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())
    return lambda: float(tf.reduce_sum(trainer.update(batches)[:2]))


def by_fit(options, images, labels):
    """The same by Keras' own training loop, three steps at a time, so that its start-up is not all of the time."""
    model = network(options)
    model.compile(Momentum(RATE, 0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    batches = tf.data.Dataset.from_tensors((images, labels)).repeat()

    def steps(count):
        losses = Losses()
        model.fit(batches, steps_per_epoch=count, shuffle=False, verbose=0, callbacks=[losses])
        return losses.values

    return steps


class Losses(keras.callbacks.Callback):
    """The loss of each step: Keras reports the mean since the epoch began."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"] * (batch + 1) - sum(self.values))


def by_torch(options, images, labels, weights, memory_format):
    """The same in PyTorch, from the same weights."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    layout = getattr(torch, memory_format)
    stem, *kernels, head = (torch.from_numpy(weight) for weight in weights)
    kernels = [kernel.permute(3, 2, 0, 1).contiguous(memory_format=layout) for kernel in (stem, *kernels)]
    kernels = [kernel.requires_grad_() for kernel in kernels]
    images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=layout)
    labels = torch.from_numpy(labels).long()
    # Its momentum is of our form; its weight decay adds decay * w to the gradient, the gradient of decay * |w|^2 / 2.
    optimizer = torch.optim.SGD(kernels, RATE, momentum=0.9, weight_decay=DECAY)

    def same(features, kernel, stride):
        # TensorFlow's "same" for stride 2 and an even size pads at the end only.
        if stride == 1:
            return functional.conv2d(features, kernel, padding=1)
        return functional.conv2d(functional.pad(features, (0, 1, 0, 1)), kernel, stride=2)

    def forward():
        features = same(images, kernels[0], 1)
        for number in range((len(kernels) - 1) // 2):
            first, second = kernels[1 + 2 * number : 3 + 2 * number]
            stride = 2 if number and number % options.blocks == 0 else 1
            branch = same(functional.relu(same(features, first, stride)), second, 1)
            skip = functional.avg_pool2d(features, 2) if stride == 2 else features
            extra = second.shape[0] - skip.shape[1]
            if extra:
                skip = functional.pad(skip, (0, 0, 0, 0, extra // 2, extra - extra // 2))
            features = skip.float() + branch.float()
        return features.mean((2, 3)) @ head

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bfloat16"):
            logits = forward()
        loss = functional.cross_entropy(logits.float(), labels)
        loss.backward()
        with torch.no_grad():
            total = float(loss) + DECAY / 2 * sum(float((kernel**2).sum()) for kernel in kernels)
        optimizer.step()
        return total

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="(default: float32)")
    parser.add_argument("--blocks", type=int, default=9, help="per stage (default: %(default)s)")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256], help="(default: 64 128 256)")
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of three steps each (default: %(default)s)")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    images = rng.normal(size=(options.batch_size, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, options.batch_size).astype("int32")
    loop, fit = by_loop(options, images, labels), by_fit(options, images, labels)
    ways = {"trainers.cifar": lambda count: [loop() for _ in range(count)], "Keras fit": fit}
    if importlib.util.find_spec("torch"):
        for memory_format in ("contiguous_format", "channels_last"):
            step = by_torch(options, images, labels, network(options).get_weights(), memory_format)
            ways[f"PyTorch, {memory_format.removesuffix('_format')}"] = lambda count, step=step: [
                step() for _ in range(count)
            ]
    first = {name: way(3) for name, way in ways.items()}
    expected = first["trainers.cifar"]
    for name, losses in first.items():
        np.testing.assert_allclose(
            losses, expected, rtol=2e-2 if options.precision == "bfloat16" else 1e-4, err_msg=name
        )
    print(f"the losses of the first three steps agree: {', '.join(f'{loss:.4f}' for loss in expected)}")

    times = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way(3)
            times[name].append((time.perf_counter() - start) / 3)
    ours = statistics.median(times["trainers.cifar"])
    for name, values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.3f} .. {max(values):.3f}"
        print(f"{name:26}{median:8.3f} s a step   ({spread})   ratio {median / ours:5.2f}")
    print(f"batch {options.batch_size}, {options.precision}, {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
