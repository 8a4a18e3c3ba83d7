"""Grow a GPT from two to eight layers during training, compare it with eight layers from scratch, and remove two again.

    python examples/grow_a_language_model.py [--steps N N N] [--optimizer NAME] [--rate R] [--out DIR]

Trains a GPT with two layers on the source of Python's standard library, inserts a layer that starts as the identity
after each layer, trains the four layers, inserts four more, and trains the eight layers. The optimizer's state and its
schedule continue. A second model has eight layers from the beginning and trains for the same time, with a schedule for
its number of steps. Then the influence of each layer of the grown model is measured, and the two layers that change
their input least are removed. Both models are trained further.

Takes about eight minutes on two CPU cores. Every training is saved with `ExactResume` in a folder below --out: the same
command continues after an interruption, bit for bit. Use another --out for other settings. Requires keras-hub and
matplotlib.
"""

import argparse
import csv
import pathlib
import warnings

import keras
import numpy as np
import text_data
from compare_optimizers_on_text import OPTIMIZERS
from matplotlib.figure import Figure

from idmatters_tf.callbacks import ExactResume, FunctionBatches
from idmatters_tf.isometry import layer_influence
from idmatters_tf.surgery import deepen, remove_identities

LAYERS = (2, 4, 8)


class Trainer:
    """Training of models on the same text, with a folder of checkpoints for each."""

    def __init__(self, options):
        self.options = options
        self.training, self.validation = text_data.load(options.sequences)

    def build(self, layers, steps):
        """Return a compiled model with a schedule for a number of steps."""
        keras.utils.set_random_seed(0)
        make, _, _ = OPTIMIZERS[self.options.optimizer]
        optimizer = make(text_data.WarmUpAndDecay(self.options.rate, steps))
        return text_data.build_gpt(layers, self.options.width, optimizer)

    def fit(self, model, name, steps, seed=0):
        """Train a model, or continue or read its training. Return an array of shape (points, 4)."""
        options = self.options

        def draw(step):
            return text_data.draw_batch(self.training, options.batch_size, seed, step)

        resume = ExactResume(options.out / name)
        batches = FunctionBatches(draw, options.every)
        return text_data.fit(model, batches, steps, options.every, self.validation, name, [resume])


def grow(trainer, steps):
    """Train two, four and eight layers for the given numbers of steps. Return the model and its curve.

    The curve has columns for the layers, the step, the seconds and both losses.
    """
    model = trainer.build(LAYERS[0], sum(steps))
    curve = np.zeros((0, 5))
    for phase, (layers, count) in enumerate(zip(LAYERS, steps, strict=True)):
        if phase:
            model = deepen(model, "interleaved", optimizer=model.optimizer)
            print(f"{layers} layers, {model.count_params():,} weights, the same outputs", flush=True)
        points = trainer.fit(model, f"grown-{layers}", count, seed=phase)
        if phase:
            points[:, :2] += curve[-1, 1:3]
        curve = np.vstack([curve, np.insert(points, 0, layers, axis=1)])
        print(f"{layers} layers: validation loss {curve[-1, 4]:.4f} after {curve[-1, 2]:.1f} s", flush=True)
    return model, curve


def train_from_scratch(trainer, grown):
    """Train eight layers from the beginning for the time of the grown model. Return the curve."""
    last = grown[grown[:, 0] == LAYERS[-1]]
    # The first points of eight layers give the duration of a step, which is the same in both models.
    before = grown[grown[:, 0] < LAYERS[-1]][-1]
    duration = (last[-1, 2] - before[2]) / (last[-1, 1] - before[1])
    every = trainer.options.every
    steps = max(every, round(grown[-1, 2] / duration / every) * every)
    points = trainer.fit(trainer.build(LAYERS[-1], steps), f"scratch-{steps}", steps)
    print(
        f"{LAYERS[-1]} layers from scratch: validation loss {points[-1, 3]:.4f} after {steps} steps in "
        f"{points[-1, 1]:.1f} s",
        flush=True,
    )
    return np.insert(points, 0, LAYERS[-1], axis=1)


def shorten(trainer, model):
    """Remove the two layers that change their input least, and train on with and without them. Return the influence."""
    influence = layer_influence(model, data=trainer.validation, progress=True)
    print(influence.table())
    # Between the distances of the second and the third layer.
    distances = sorted(block.relative for block in influence.blocks.values())
    removal = remove_identities(model, sum(distances[1:3]) / 2, trainer.validation, optimizer=model.optimizer)
    print(f"removed: {', '.join(removal.removed)}; the loss increases least without {' and '.join(influence.least(2))}")
    # The learning rate stays at the end of the schedule, a tenth of the largest.
    further = trainer.options.further
    losses = {
        name: trainer.fit(either, name, further, seed=len(LAYERS))[-1, 3]
        for name, either in (("further-8", model), ("further-6", removal.model))
    }
    print(f"{'':9} {'now':>7}  after {further} more steps")
    print(f"8 layers  {removal.before['loss']:7.4f}  {losses['further-8']:.4f}")
    print(f"6 layers  {removal.after['loss']:7.4f}  {losses['further-6']:.4f}", flush=True)
    return influence, removal.removed


def draw(curves, influence, removed):
    """Return a figure of the losses over time and of the influence of each layer."""
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    losses, bars = figure.subplots(1, 2)
    grown = curves["grown"]
    for index, (label, curve) in enumerate((("2, 4, 8 layers", grown), ("8 layers from scratch", curves["scratch"]))):
        losses.plot(curve[:, 2], curve[:, 4], color=f"C{index}", label=label)
    for layers in LAYERS[:-1]:
        losses.axvline(grown[grown[:, 0] == layers][-1, 2], color="grey", linestyle="dotted", linewidth=1)
    lowest = min(curve[:, 4].min() for curve in curves.values())
    losses.set(xlabel="seconds, without compilation and validation", ylabel="validation loss in nats per byte")
    losses.set_ylim(lowest - 0.05, lowest + 1.2)
    losses.grid(alpha=0.3)
    losses.legend(fontsize=8)
    changes = [block.loss_change for block in influence.blocks.values()]
    colors = ["tab:red" if name in removed else "tab:grey" for name in influence.blocks]
    bars.bar(range(len(changes)), changes, color=colors)
    bars.set_yscale("symlog", linthresh=1e-3)
    bars.set(xlabel="layer", ylabel="increase of the loss without it")
    bars.set_title(f"grown model; removed: {', '.join(name.split('_')[-1] for name in removed)}", fontsize=9)
    bars.grid(alpha=0.3, axis="y")
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps",
        type=int,
        nargs=3,
        default=[500, 400, 250],
        metavar="N",
        help="training steps with two, four and eight layers (default: 500 400 250)",
    )
    parser.add_argument("--further", type=int, default=50, help="steps after the removal (default: %(default)s)")
    parser.add_argument(
        "--every", type=int, default=25, help="steps between validations and checkpoints (default: %(default)s)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="sequences of 128 bytes (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=256, help="sequences for validation (default: %(default)s)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="muon", help="optimizer (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1e-2, help="largest learning rate (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="width of the GPT (default: %(default)s)")
    parser.add_argument(
        "--out", type=pathlib.Path, default="runs/grown-gpt", help="folder of the results (default: %(default)s)"
    )
    options = parser.parse_args()
    if any(steps % options.every for steps in (*options.steps, options.further)):
        parser.error(f"--steps and --further must be multiples of --every {options.every}.")
    options.out.mkdir(parents=True, exist_ok=True)
    # A finished training is read when the command is repeated.
    warnings.filterwarnings("ignore", message=r"The run in .* is finished")

    trainer = Trainer(options)
    model, grown = grow(trainer, options.steps)
    curves = {"grown": grown, "scratch": train_from_scratch(trainer, grown)}
    with open(options.out / "curves.csv", "w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["model", "layers", "step", "seconds", "training_loss", "validation_loss"])
        table.writerows([name, *row] for name, curve in curves.items() for row in curve.round(5).tolist())
    influence, removed = shorten(trainer, model)
    with open(options.out / "influence.csv", "w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["layer", "relative", "angle", "loss", "loss_change", "removed"])
        for name, block in influence.blocks.items():
            table.writerow([name, block.relative, block.angle, block.loss, block.loss_change, name in removed])
    draw(curves, influence, removed).savefig(options.out / "grown-gpt.png", dpi=150)
    print(f"curves, influence and figure: {options.out}/curves.csv, influence.csv, grown-gpt.png")


if __name__ == "__main__":
    main()
