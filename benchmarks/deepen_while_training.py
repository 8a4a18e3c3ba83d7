"""Claim: a network that is deepened during training needs less computation than the deep network from scratch.

    python benchmarks/deepen_while_training.py --dataset cifar10 --data-dir DIR [--out runs/deepen_while_training]

Three ways to spend the same number of multiply-adds on CIFAR-10:

    deep        4 residual blocks per stage from the first step
    deepened    1 block per stage, then 2, then 4, each for a third of the multiply-adds: `idmatters_tf.surgery.deepen`
                inserts the new blocks as the identity and keeps the optimizer's velocities
    shallow     1 block per stage throughout

The shallow phases take more steps. The networks belong to the family of Hardt & Ma's Table 1, with batch normalization,
a stem of stride 2, and stages at 16x16, 8x8 and 4x4 pixels. Recipe: momentum 0.9, batches of 128, weight decay 1e-4,
pad by 4, crop, flip, standardize; the learning rate increases over a twentieth of the multiply-adds and then decreases
linearly to zero. An update counts as three forward passes; multiply-adds are those of the
convolutions and the head.

The budget is that of `--steps` updates of the deep network. Each finished run is a line of results.jsonl. If the
benchmark is stopped, the same command resumes it after the last finished network. The outputs are a table with verdicts
(results.md) and a figure of the test errors against multiply-adds (deepen_while_training.png).
"""

import argparse
import json
import logging
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from tqdm import tqdm

from harness import sittings
from idmatters_tf.data.augment import AUGMENTATIONS
from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
from idmatters_tf.initializers import StandardNormal
from idmatters_tf.layers import ResidualConv2D
from idmatters_tf.models.identity import identity_network
from idmatters_tf.models.layout import Layout
from idmatters_tf.surgery import deepen
from trainers.run.figures import save_figure

# Blocks per stage in each third of the multiply-adds.
WAYS = {"deep": (4, 4, 4), "deepened": (1, 2, 4), "shallow": (1, 1, 1)}
DECAY = 1e-4


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--dataset", choices=("cifar10", "shapes"), default="cifar10", help="data set")
    parser.add_argument("--data-dir", help="folder of CIFAR-10's official binary files")
    parser.add_argument("--images", type=int, help="number of training images (None: all)")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("runs/deepen_while_training"), help="output folder"
    )
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), help="networks to train")
    parser.add_argument("--widths", type=int, nargs=3, default=[16, 32, 64], help="channels of each stage")
    parser.add_argument("--steps", type=int, default=1000, help="updates of the deep network")
    parser.add_argument("--batch-size", type=int, default=128, help="images per update")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="largest learning rate")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="random seeds")
    parser.add_argument("--evaluations", type=int, default=2, help="evaluations per third")
    return parser


def layout(blocks, widths):
    options = {"norm": "batch", "norm_momentum": 0.9, "head": "trained", "initializer": "standard"}
    return Layout((blocks,) * 3, tuple(widths), (1, 2, 2), stem=widths[0], stem_strides=2, **options)


def cost(blocks, data, options):
    """Return the multiply-adds of the convolutions and the head in an update."""
    height, width, channels = data.image_shape
    pixels, inputs = -(-height // 2) * -(-width // 2), options.widths[0]
    forward = 9 * channels * inputs * pixels
    for stage, outputs in enumerate(options.widths):
        pixels //= 4 if stage else 1
        forward += pixels * (9 * inputs * outputs + (2 * blocks - 1) * 9 * outputs**2)
        inputs = outputs
    return 3 * (forward + inputs * data.classes) * options.batch_size


def new_block(shape):
    """Return a block like those of the network. `deepen` initializes it as the identity."""
    return ResidualConv2D(
        shape[-1],
        norm="batch",
        kernel_initializer=StandardNormal(),
        kernel_regularizer=keras.regularizers.L2(DECAY / 2),
    )


def deeper(model, have, want):
    """Return the network with `want` blocks per stage, compiled with the optimizer and its velocities."""
    ends = [
        [layer for layer in model.layers if layer.name.startswith(f"stage{stage}_")][-1].name for stage in (1, 2, 3)
    ]
    return deepen(model, ends, new_block, count=want - have, optimizer=model.optimizer)


class Rate(keras.callbacks.Callback):
    """Learning rate as a function of the multiply-adds spent."""

    def __init__(self, highest, budget):
        super().__init__()
        self.highest, self.budget, self.spent, self.each = highest, budget, 0, 0

    def on_train_batch_begin(self, batch, logs=None):
        share = self.spent / self.budget
        self.model.optimizer.learning_rate = self.highest * max(0.0, min(share / 0.05 + 0.01, (1 - share) / 0.95))
        self.spent += self.each


def train(way, seed, data, options, report):
    """Train one network until the budget is spent and return its row of results.jsonl."""
    keras.utils.set_random_seed(seed)
    budget = options.steps * cost(WAYS["deep"][-1], data, options)
    batches = TrainBatches(
        data.train_images[: options.images],
        data.train_labels[: options.images],
        options.batch_size,
        seed,
        AUGMENTATIONS["standard"],
    )
    tests = EvaluationBatches(data.test_images, data.test_labels, 1000).dataset()
    rate, step, points, began, model, have = Rate(options.learning_rate, budget), 0, [], time.monotonic(), None, 0
    for third, blocks in enumerate(WAYS[way]):
        if model is None:
            model = identity_network(data.image_shape, data.classes, layout(blocks, options.widths), DECAY, seed)
            model.compile(
                keras.optimizers.SGD(options.learning_rate, momentum=0.9),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                weighted_metrics=["accuracy"],
            )
        elif blocks > have:
            model = deeper(model, have, blocks)
        have, rate.each = blocks, cost(blocks, data, options)
        for part in range(options.evaluations):
            end = budget * (third + (part + 1) / options.evaluations) / 3
            steps = max(1, round((end - rate.spent) / rate.each))
            model.fit(batches.dataset(step, steps), shuffle=False, verbose=0, callbacks=[rate])
            step += steps
            measured = model.evaluate(tests, verbose=0, return_dict=True)
            points.append([rate.spent, blocks, 1 - measured["accuracy"], measured["loss"]])
            report(f"{way}, seed {seed}: {blocks} blocks per stage, step {step}, test error {points[-1][2]:.1%}")
    seconds = round(time.monotonic() - began, 1)
    return {"way": way, "seed": seed, "steps": step, "points": points, "error": points[-1][2], "seconds": seconds}


def table(rows):
    """Return the table of results in Markdown."""
    text = "| network | updates | multiply-adds | test error: mean | by seed | seconds a run |\n"
    text += "|---|---|---|---|---|---|\n"
    for way in WAYS:
        runs = sorted((row for row in rows if row["way"] == way), key=lambda row: row["seed"])
        if runs:
            errors = ", ".join(f"{100 * row['error']:.2f}" for row in runs)
            mean, seconds = (statistics.mean(row[name] for row in runs) for name in ("error", "seconds"))
            spent = statistics.mean(row["points"][-1][0] for row in runs)
            text += f"| {way} | {runs[0]['steps']:,} | {spent:.3g} | {mean:.2%} | {errors} | {seconds:.0f} |\n"
    return text


def verdicts(rows):
    """Return one sentence per other network that compares its test error with the deepened one's, seed by seed."""
    errors = {(row["way"], row["seed"]): 100 * row["error"] for row in rows}
    text = ""
    for way in WAYS:
        seeds = [seed for kind, seed in sorted(errors) if kind == way and ("deepened", seed) in errors]
        if way == "deepened" or not seeds:
            continue
        found = [errors["deepened", seed] - errors[way, seed] for seed in seeds]
        each = ", ".join(f"{difference:+.2f}" for difference in found)
        if all(difference < 0 for difference in found):
            word = "lower for every seed"
        elif all(difference > 0 for difference in found):
            word = "higher for every seed"
        else:
            word = "lower for some seeds only"
        text += f"- deepened against {way}: the test error is {word} (percentage points by seed: {each})\n"
    return text


def draw(rows, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, way in enumerate(way for way in WAYS if any(row["way"] == way for row in rows)):
        runs = [np.array(row["points"]) for row in rows if row["way"] == way]
        color = f"C{number}"
        for run in runs:
            axes.plot(run[:, 0], 100 * run[:, 2], color=color, alpha=0.3, linewidth=1)
        mean = np.mean(runs, axis=0)
        axes.plot(mean[:, 0], 100 * mean[:, 2], color=color, marker="o", markersize=4, label=way)
    axes.set_xlabel("multiply-adds")
    axes.set_ylabel("test error, %")
    axes.grid(alpha=0.3)
    axes.legend(title=f"mean and single runs ({len({row['seed'] for row in rows})} seeds)")
    save_figure(figure, path)


def main():
    # TensorFlow mistakes each new network for repeated tracing of the same function and warns.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    options = parser().parse_args()
    data = sittings.load(options)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    names = ("dataset", "images", "widths", "steps", "batch_size", "learning_rate", "evaluations")
    settings = {name: getattr(options, name) for name in names}
    rows = sittings.load_finished(path, settings)
    done = {(row["way"], row["seed"]) for row in rows}
    # All networks of one seed before the next seed, so that a comparison is available early.
    wanted = [(way, seed) for seed in options.seeds for way in options.ways]
    with tqdm(total=len(wanted), initial=len(done & set(wanted)), unit="run", dynamic_ncols=True) as progress:
        for way, seed in wanted:
            if (way, seed) in done:
                continue
            rows.append({**train(way, seed, data, options, progress.set_description), "settings": settings})
            with path.open("a") as file:
                print(json.dumps(rows[-1]), file=file, flush=True)
            keras.backend.clear_session()
            progress.update()
    draw(rows, options.out / "deepen_while_training.png")
    text = f"{table(rows)}\n{verdicts(rows)}"
    (options.out / "results.md").write_text(text)
    print(text, options.out / "deepen_while_training.png", sep="")


if __name__ == "__main__":
    main()
