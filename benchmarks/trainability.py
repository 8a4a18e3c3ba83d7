"""Claim: networks near the identity train at every depth; other initializations need smaller rates or do not train.

    python benchmarks/trainability.py --dataset cifar10 --data-dir DIR [--out runs/trainability]

The benchmark tests Hardt & Ma's central practical claim. Narrow networks of the family of Table 1, from 7 to 109
convolutions, are trained for a few hundred steps from six initializations, at learning rates over two decades:

    identity        the paper's: residual kernels N(0, 1/(k^2 c)^2) and a frozen random head
    standard        residual kernels N(0, 1/(k sqrt c)^2)
    clipped         standard, with the gradient clipped to norm 1
    fixup           Zhang et al. (2019): branches scaled by depth, second kernels and head zero, biases, multipliers
    skipinit        De & Smith (2020): standard kernels, each branch times a trained factor that starts at 0
    batch           standard kernels with batch normalization after each convolution

A heat map for each initialization shows the training loss by depth and learning rate: the mean over the last tenth of
the steps and over the seeds that did not diverge. A cross marks runs whose loss was not finite, or exceeded 100, for at
least one seed. Recipe: momentum 0.9, batches of 64, weight decay 1e-4, pad by 2, crop, flip, standardize, constant
rate.

Each finished run is a line of results.jsonl. If the benchmark is stopped, the same command resumes it. All runs of one
seed precede those of the next seed, so that a coarse map is available early.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from idmatters_tf.data import official, shapes
from idmatters_tf.data.batches import AUGMENTATIONS, TrainBatches
from idmatters_tf.data.images import DataError
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum
from trainers.run.figures import save_figure

STARTS = {
    "identity": {},
    "standard": {"initializer": "standard"},
    "clipped": {"initializer": "standard"},
    "fixup": {"initializer": "fixup", "head": "trained", "bias": True, "branch_scale": 1.0},
    "skipinit": {"initializer": "standard", "branch_scale": 0.0},
    "batch": {"initializer": "standard", "norm": "batch"},
}
TITLES = {
    "identity": "the paper's: near the identity",
    "clipped": "standard, clipped to norm 1",
    "fixup": "Fixup",
    "skipinit": "SkipInit",
    "batch": "standard, batch normalization",
}
BOUND = 100.0


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--dataset", choices=("cifar10", "shapes"), default="cifar10", help="data set")
    parser.add_argument("--data-dir", help="folder of CIFAR-10's official binary files")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/trainability"), help="output folder")
    parser.add_argument("--starts", nargs="+", choices=tuple(STARTS), default=tuple(STARTS), help="initializations")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 4, 9, 18], help="residual blocks per stage")
    parser.add_argument("--widths", type=int, nargs=3, default=[8, 16, 32], help="channels of each stage")
    default_rates = [0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0]
    parser.add_argument("--rates", type=float, nargs="+", default=default_rates, help="learning rates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="random seeds")
    parser.add_argument("--steps", type=int, default=200, help="updates of each run")
    parser.add_argument("--batch-size", type=int, default=64, help="images per update")
    return parser


class Trainee:
    """Network that is trained many times with a training step that is compiled once."""

    def __init__(self, start, blocks, options, classes):
        self.start, self.options, self.classes = start, options, classes
        self.arguments = {"blocks": blocks, "widths": tuple(options.widths), "stem": options.widths[0], **STARTS[start]}
        self.model = self.network(0)
        self.optimizer = Momentum(0.1, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        self.update = tf.function(self._update)

    def network(self, seed):
        return identity_resnet(classes=self.classes, seed=seed, **self.arguments)

    def _update(self, images, labels, rate):
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            objective = loss + tf.add_n(self.model.losses)
        variables = self.model.trainable_variables
        gradients = tape.gradient(objective, [variable.value for variable in variables])
        if self.start == "clipped":
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        for gradient, variable in zip(gradients, variables, strict=True):
            self.optimizer.update_step(gradient, variable.value, rate)
        return loss

    def train(self, batches, rate, seed):
        """Train from a seed and return the mean loss over the last tenth of the steps, infinite if it diverged."""
        for variable, first in zip(self.model.variables, self.network(seed).variables, strict=True):
            variable.assign(first)
        for variable in self.optimizer.variables:
            variable.assign(keras.ops.zeros_like(variable))
        losses = []
        for images, labels in batches.dataset(0, self.options.steps):
            losses.append(float(self.update(images, labels, tf.constant(rate, tf.float32))))
            if not losses[-1] < BOUND:
                return math.inf
        return float(np.mean(losses[-max(1, len(losses) // 10) :]))


def load_data(options):
    """Load the images; exit with an error message if they are missing."""
    try:
        return official.load("cifar10", options.data_dir) if options.dataset == "cifar10" else shapes.load()
    except DataError as error:
        sys.exit(f"error: {error}")


def load_finished(path, settings):
    """Load the rows of earlier runs with the same settings; exit with an error message if settings differ."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        # The last line may be truncated.
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    if rows and rows[0]["settings"] != settings:
        sys.exit(f"error: {path} contains runs with other settings: {rows[0]['settings']}. Use another --out.")
    return rows


def cell_of(row):
    return row["start"], row["blocks"], row["rate"]


def draw(rows, options, path):
    from matplotlib.figure import Figure

    starts = list(options.starts)
    columns = min(3, len(starts))
    figure = Figure(figsize=(3.1 * columns + 1, 2.9 * -(-len(starts) // columns)), layout="constrained", dpi=150)
    axes = list(figure.subplots(-(-len(starts) // columns), columns, squeeze=False).flat)
    blocks, rates = sorted(options.blocks), sorted(options.rates)
    image = None
    lowest = math.floor(10 * min((row["loss"] for row in rows if row["loss"] is not None), default=1.0)) / 10
    for panel, start in zip(axes, starts, strict=False):
        losses = np.full((len(blocks), len(rates)), np.nan)
        for i, j in itertools.product(range(len(blocks)), range(len(rates))):
            cell = [row["loss"] for row in rows if cell_of(row) == (start, blocks[i], rates[j])]
            finite = [loss for loss in cell if loss is not None]
            if finite:
                losses[i, j] = np.mean(finite)
            if len(finite) < len(cell):
                panel.plot(j, i, "x", color="black", markersize=6)
        image = panel.imshow(losses, origin="lower", aspect="auto", cmap="viridis_r", vmin=lowest, vmax=math.log(10))
        panel.set_xticks(range(len(rates)), [f"{rate:.3g}" for rate in rates], fontsize=7, rotation=45)
        panel.set_yticks(range(len(blocks)), [f"{6 * count + 1}" for count in blocks], fontsize=7)
        panel.set_title(TITLES.get(start, start), fontsize=9)
        panel.set_facecolor("lightgrey")
    for panel in axes[len(starts) :]:
        panel.remove()
    figure.supxlabel("learning rate", fontsize=9)
    figure.supylabel("convolutions", fontsize=9)
    if image is not None:
        bar = figure.colorbar(image, ax=axes[: len(starts)], shrink=0.8, extend="both")
        crossed = "diverged" if len(options.seeds) == 1 else f"diverged for at least one of {len(options.seeds)} seeds"
        bar.set_label(f"training loss after {options.steps} steps; cross: {crossed}", fontsize=8)
    save_figure(figure, path)


def main():
    options = parser().parse_args()
    data = load_data(options)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    settings = {name: getattr(options, name) for name in ("dataset", "widths", "steps", "batch_size")}
    rows = load_finished(path, settings)
    done = {(row["seed"], row["blocks"], row["start"], row["rate"]) for row in rows}
    wanted = list(itertools.product(options.seeds, sorted(options.blocks), options.starts, options.rates))
    open_runs = [run for run in wanted if run not in done]
    images = data.train_images, data.train_labels
    progress = tqdm(total=len(wanted), initial=len(wanted) - len(open_runs), unit="run", dynamic_ncols=True)
    with path.open("a") as file:
        for (seed, blocks, start), group in itertools.groupby(open_runs, lambda run: run[:3]):
            trainee = Trainee(start, blocks, options, data.classes)
            for *_, rate in group:
                batches = TrainBatches(*images, options.batch_size, seed, AUGMENTATIONS["paper"])
                began = time.monotonic()
                loss = trainee.train(batches, rate, seed)
                row = {"start": start, "blocks": blocks, "rate": rate, "seed": seed, "settings": settings}
                row |= {"loss": loss if math.isfinite(loss) else None, "seconds": round(time.monotonic() - began, 1)}
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                progress.set_description(f"{start}, {6 * blocks + 1} convolutions, rate {rate:.3g}: {loss:.2f}")
                progress.update()
            keras.backend.clear_session()
            draw(rows, options, options.out / "trainability.png")
    draw(rows, options, options.out / "trainability.png")
    print(f"{options.out / 'trainability.png'}")


if __name__ == "__main__":
    main()
