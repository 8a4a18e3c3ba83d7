"""Question: does Muon help batch-normalized networks? Five optimizers train ResNet-20 for equal time.

    python benchmarks/optimizers.py --dataset cifar10 --data-dir DIR [--out runs/optimizers]

    sgd         momentum 0.9 with Nesterov, L2 regularization as in He et al. (2015)
    adamw       Loshchilov & Hutter (2019), decoupled weight decay
    keras-muon  keras.optimizers.Muon, which uses AdamW for all variables of other than two axes, such as convolutions
    muon-keep   idmatters_tf.optimizers.Muon(norm="keep"): kernels keep their norms
    muon-free   idmatters_tf.optimizers.Muon(norm="free"), decoupled weight decay

Each optimizer has three learning rates, a factor of three apart. Recipe: Keras' `fit`, batches of 128, pad by 4, crop,
flip, standardize; the rate increases over a twentieth of the steps and then decreases linearly to zero.

Times of a step are measured first, all optimizers in turn, with nothing else running. `--steps` is the number of steps
with sgd; other optimizers take as many as fit into the same time. Each finished run is a line of results.jsonl. If the
benchmark is stopped, the same command resumes it after the last finished run. The outputs are a table (results.md) and
a figure of the test errors against the learning rate (optimizers.png).
"""

import argparse
import functools
import itertools
import json
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
from harness.timing import in_turn, timed
from idmatters_tf.data.augment import AUGMENTATIONS
from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
from idmatters_tf.models.resnet import resnet
from idmatters_tf.optimizers import Muon
from trainers.run.figures import save_figure

# Weight decay of the network's regularizers; the other optimizers decay weights themselves or keep their norms.
L2 = {"sgd": 1e-4}
OPTIMIZERS = {
    "sgd": functools.partial(keras.optimizers.SGD, momentum=0.9, nesterov=True),
    "adamw": functools.partial(keras.optimizers.AdamW, weight_decay=0.01),
    "keras-muon": functools.partial(keras.optimizers.Muon, weight_decay=0.01, adam_weight_decay=0.01),
    "muon-keep": functools.partial(Muon, norm="keep"),
    "muon-free": functools.partial(Muon, norm="free", weight_decay=0.01),
}
RATES = {
    "sgd": (0.03, 0.1, 0.3),
    "adamw": (0.001, 0.003, 0.01),
    "keras-muon": (0.001, 0.003, 0.01),
    "muon-keep": (0.03, 0.1, 0.3),
    "muon-free": (0.03, 0.1, 0.3),
}


@keras.saving.register_keras_serializable(package="benchmarks")
class Triangle(keras.optimizers.schedules.LearningRateSchedule):
    """Rate that increases over a twentieth of the steps and then decreases linearly to zero."""

    def __init__(self, highest, steps):
        self.highest, self.steps = highest, steps

    def __call__(self, step):
        share = (keras.ops.cast(step, "float32") + 1) / (self.steps + 1)
        return self.highest * keras.ops.minimum(share / 0.05, (1 - share) / 0.95)

    def get_config(self):
        return {"highest": self.highest, "steps": self.steps}


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--dataset", choices=("cifar10", "shapes"), default="cifar10", help="data set")
    parser.add_argument("--data-dir", help="folder of CIFAR-10's official binary files")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/optimizers"), help="output folder")
    parser.add_argument(
        "--optimizers", nargs="+", choices=tuple(OPTIMIZERS), default=tuple(OPTIMIZERS), help="optimizers to compare"
    )
    parser.add_argument("--depth", type=int, default=20, help="layers of the network, 6 n + 2")
    parser.add_argument("--steps", type=int, default=1950, help="steps with sgd; 391 are an epoch")
    parser.add_argument("--batch-size", type=int, default=128, help="images per step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="random seeds")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of 10 steps of each optimizer")
    return parser


def build(name, rate, steps, seed, data, options):
    """Return the compiled network."""
    keras.utils.set_random_seed(seed)
    model = resnet(data.image_shape, data.classes, options.depth, weight_decay=L2.get(name, 0.0), seed=seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[name](Triangle(rate, steps)), loss, weighted_metrics=["accuracy"])
    return model


def make_batches(seed, data, options):
    """Return the augmented training batches."""
    augmentation = AUGMENTATIONS["standard"]
    return TrainBatches(data.train_images, data.train_labels, options.batch_size, seed, augmentation)


def measure_steps(data, options):
    """Return the median seconds of a step of `fit` by optimizer, measured in turn."""
    batches = make_batches(0, data, options)

    def ten_steps(name):
        model = build(name, RATES[name][0], 1000, 0, data, options)
        return timed(lambda: model.fit(batches.dataset(0, 10), shuffle=False, verbose=0))

    times = in_turn({name: ten_steps(name) for name in OPTIMIZERS}, options.rounds, warm_up=1)
    return {name: statistics.median(values) / 10 for name, values in times.items()}


def train(name, rate, seed, steps, data, options):
    """Train a network and return its row of results.jsonl."""
    model, batches = build(name, rate, steps, seed, data, options), make_batches(seed, data, options)
    began = time.monotonic()
    history = model.fit(batches.dataset(0, steps), shuffle=False, verbose=0)
    seconds = round(time.monotonic() - began, 1)
    tests = EvaluationBatches(data.test_images, data.test_labels, 1000).dataset()
    measured = model.evaluate(tests, verbose=0, return_dict=True)
    row = {"optimizer": name, "rate": rate, "seed": seed, "steps": steps, "seconds": seconds}
    training_loss = history.history["loss"][-1]
    return row | {"training_loss": training_loss, "error": 1 - measured["accuracy"], "loss": measured["loss"]}


def mean_errors(rows, name):
    """Return the mean test error of an optimizer in percent by learning rate, for the rates with results."""
    found = {}
    for rate in RATES[name]:
        errors = [100 * row["error"] for row in rows if (row["optimizer"], row["rate"]) == (name, rate)]
        if errors:
            found[rate] = statistics.mean(errors)
    return found


def table(rows, seconds):
    """Return the table of results in Markdown; the best learning rate of each optimizer is bold."""
    text = "| optimizer | learning rate | steps | seconds per step | test error: mean | by seed |\n"
    text += "|---|---|---|---|---|---|\n"
    for name in OPTIMIZERS:
        means = mean_errors(rows, name)
        for rate, mean in means.items():
            runs = [row for row in rows if (row["optimizer"], row["rate"]) == (name, rate)]
            errors = ", ".join(f"{100 * row['error']:.2f}" for row in sorted(runs, key=lambda row: row["seed"]))
            shown = f"**{mean:.2f} %**" if mean == min(means.values()) else f"{mean:.2f} %"
            text += f"| {name} | {rate:g} | {runs[0]['steps']:,} | {seconds[name]:.3f} | {shown} | {errors} |\n"
    return text


def draw(rows, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(name for name in OPTIMIZERS if any(row["optimizer"] == name for row in rows)):
        runs = np.array([[row["rate"], 100 * row["error"]] for row in rows if row["optimizer"] == name])
        axes.plot(*runs.T, "o", color=f"C{number}", alpha=0.4, markersize=4)
        means = mean_errors(rows, name)
        axes.plot(list(means), list(means.values()), color=f"C{number}", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("test error, %")
    axes.grid(alpha=0.3, which="both")
    axes.legend(title="mean and single runs")
    save_figure(figure, path)


def main():
    options = parser().parse_args()
    data = sittings.load(options)
    options.out.mkdir(parents=True, exist_ok=True)
    path, step_times = options.out / "results.jsonl", options.out / "seconds.json"
    settings = {name: getattr(options, name) for name in ("dataset", "depth", "steps", "batch_size")}
    rows = sittings.load_finished(path, settings)
    if not step_times.exists():
        step_times.write_text(json.dumps(measure_steps(data, options)))
        keras.backend.clear_session()
    seconds = json.loads(step_times.read_text())
    done = {(row["optimizer"], row["rate"], row["seed"]) for row in rows}
    # All runs of one seed before the next seed, and the middle rates first.
    order = itertools.product(options.seeds, (1, 0, 2), options.optimizers)
    wanted = [(name, RATES[name][place], seed) for seed, place, name in order]
    with tqdm(total=len(wanted), initial=len(done & set(wanted)), unit="run", dynamic_ncols=True) as progress:
        for name, rate, seed in wanted:
            if (name, rate, seed) in done:
                continue
            steps = round(options.steps * seconds["sgd"] / seconds[name])
            rows.append({**train(name, rate, seed, steps, data, options), "settings": settings})
            with path.open("a") as file:
                print(json.dumps(rows[-1]), file=file, flush=True)
            progress.set_description(f"{name}, rate {rate:g}, seed {seed}: {rows[-1]['error']:.1%}")
            keras.backend.clear_session()
            progress.update()
    draw(rows, options.out / "optimizers.png")
    (options.out / "results.md").write_text(table(rows, seconds))
    print(table(rows, seconds), options.out / "optimizers.png", sep="")


if __name__ == "__main__":
    main()
