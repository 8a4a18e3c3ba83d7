"""Claim: a network that is deepened while it trains needs less computation than the deep one from scratch.

    python benchmarks/deepen_while_training.py --dataset cifar10 --data-dir DIR [--out runs/deepen_while_training]

Three ways to spend the same number of multiply-adds on CIFAR-10:

    deep        4 residual blocks a stage from the first step on
    deepened    1 block a stage, then 2, then 4, each for a third of the multiply-adds: `idmatters_tf.surgery.deepen`
                inserts the new ones as the identity, and the optimizer's velocities are carried over
    shallow     1 block a stage to the end

so the shallow phases take more steps. Networks of the family of Hardt & Ma's Table 1 with batch normalisation: a stem
of stride 2, stages at 16x16, 8x8 and 4x4 pixels. Momentum 0.9, batches of 128, weight decay 1e-4, pad by 4, crop, flip,
standardise; the rate rises over a twentieth of the multiply-adds and then falls to zero in a straight line. An update
counts as three forward passes; multiply-adds are those of `idmatters_tf.models.cost` (convolutions and head).

The budget is that of `--steps` updates of the deep network. Each finished run is a line of results.jsonl: a sitting
that was stopped goes on with the same command, from the last network that was finished. At the end there are a table
with verdicts (results.md) and the test errors against multiply-adds (deepen_while_training.png).
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
from idmatters_tf.models.cost import identity_network_cost
from idmatters_tf.models.identity import identity_network
from idmatters_tf.models.layout import Layout
from idmatters_tf.surgery import deepen
from trainers.run.figures import save_figure

# By way: the blocks of each stage, one number for each third of the multiply-adds.
WAYS = {"deep": (4, 4, 4), "deepened": (1, 2, 4), "shallow": (1, 1, 1)}
DECAY = 1e-4


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--dataset", choices=("cifar10", "shapes"), default="cifar10", help="the data")
    parser.add_argument("--data-dir", help="folder with the official binary files")
    parser.add_argument("--images", type=int, help="training images; all if not given")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/deepen_while_training"), help="results")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), help="which networks")
    parser.add_argument("--widths", type=int, nargs=3, default=[16, 32, 64], help="channels of each stage")
    parser.add_argument("--steps", type=int, default=1000, help="updates of the deep network")
    parser.add_argument("--batch-size", type=int, default=128, help="images per update")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="the highest")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds")
    parser.add_argument("--evaluations", type=int, default=2, help="tests in each third")
    return parser


def layout(blocks, widths):
    options = {"norm": "batch", "norm_momentum": 0.9, "head": "trained", "initializer": "standard"}
    return Layout((blocks,) * 3, tuple(widths), (1, 2, 2), stem=widths[0], stem_strides=2, **options)


def cost(blocks, data, options):
    """Multiply-adds of an update."""
    forward = identity_network_cost(layout(blocks, options.widths), data.image_shape[0], data.classes).multiply_adds
    return 3 * forward * options.batch_size


def new_block(shape):
    """What is inserted: the same block as the network's own. `deepen` makes it the identity."""
    return ResidualConv2D(
        shape[-1],
        norm="batch",
        kernel_initializer=StandardNormal(),
        kernel_regularizer=keras.regularizers.L2(DECAY / 2),
    )


def deeper(model, have, want):
    """The network with `want` blocks a stage, compiled with the optimizer and its velocities."""
    ends = [
        [layer for layer in model.layers if layer.name.startswith(f"stage{stage}_")][-1].name for stage in (1, 2, 3)
    ]
    return deepen(model, ends, new_block, count=want - have, optimizer=model.optimizer)


class Rate(keras.callbacks.Callback):
    """The learning rate as a function of the multiply-adds that were spent."""

    def __init__(self, highest, budget):
        super().__init__()
        self.highest, self.budget, self.spent, self.each = highest, budget, 0, 0

    def on_train_batch_begin(self, batch, logs=None):
        share = self.spent / self.budget
        self.model.optimizer.learning_rate = self.highest * max(0.0, min(share / 0.05 + 0.01, (1 - share) / 0.95))
        self.spent += self.each


def train(way, seed, data, options, told):
    """One network from the first step to the end of the budget: its row of results.jsonl."""
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
            told(f"{way}, seed {seed}: {blocks} blocks a stage, step {step}, test error {points[-1][2]:.1%}")
    seconds = round(time.monotonic() - began, 1)
    return {"way": way, "seed": seed, "steps": step, "points": points, "error": points[-1][2], "seconds": seconds}


def table(rows):
    """The results in Markdown."""
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
    """One sentence for each network beside the deepened one: which has the lower test error, seed by seed."""
    errors = {(row["way"], row["seed"]): 100 * row["error"] for row in rows}
    text = ""
    for way in WAYS:
        seeds = [seed for kind, seed in sorted(errors) if kind == way and ("deepened", seed) in errors]
        if way == "deepened" or not seeds:
            continue
        found = [errors["deepened", seed] - errors[way, seed] for seed in seeds]
        each = ", ".join(f"{difference:+.2f}" for difference in found)
        if all(difference < 0 for difference in found):
            word = "lower with every seed"
        elif all(difference > 0 for difference in found):
            word = "higher with every seed"
        else:
            word = "lower with some seeds and not with others"
        text += f"- deepened against {way}: its test error is {word} (percentage points by seed: {each})\n"
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
    # TensorFlow takes a new network for an old one that is traced too often.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    options = parser().parse_args()
    data = sittings.load(options)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    names = ("dataset", "images", "widths", "steps", "batch_size", "learning_rate", "evaluations")
    settings = {name: getattr(options, name) for name in names}
    rows = sittings.finished(path, settings)
    done = {(row["way"], row["seed"]) for row in rows}
    # All ways of one seed before the next seed, so that a comparison is there early.
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
