"""Compare AdamW, Keras' Muon and this package's Muon: a GPT with a million weights on the source of Python's library.

    python examples/compare_optimizers_on_text.py [--steps N] [--optimizers NAME ...] [--rates R ...] [--out DIR]

Trains with each optimizer at three learning rates and with two seeds for the same number of steps. Then trains with the
best rate of each optimizer for the time that AdamW has taken, with a schedule for that number of steps. All runs have
linear warm-up and decay, a weight decay of 0.01 and AdamW's second rate 0.95. Both kinds of Muon have momentum 0.95,
five Newton-Schulz iterations and steps of AdamW's size, and update the other variables by AdamW with the same rate.
`keras.optimizers.Muon` orthogonalizes 2-D kernels, here those of the feed-forward layers. The kernels of attention have
three dimensions.

Takes about 20 minutes on two CPU cores. Finished runs in --out are not repeated: the same command continues after an
interruption, and further rates and seeds are added to the table. Requires keras-hub and matplotlib.
"""

import argparse
import csv
import itertools
import os
import pathlib

import keras
import numpy as np
import text_data
from matplotlib.figure import Figure

from idmatters_tf.optimizers import Muon

DECAY = 0.01


def make_adamw(rate):
    return keras.optimizers.AdamW(rate, weight_decay=DECAY, beta_2=0.95, epsilon=1e-8)


def make_keras_muon(rate):
    # The output layer is the embedding, which this optimizer leaves to AdamW as all layers with "embedding" in a path.
    return keras.optimizers.Muon(
        rate, weight_decay=DECAY, adam_weight_decay=DECAY, adam_beta_2=0.95, epsilon=1e-8, momentum=0.95
    )


def make_muon(rate):
    return Muon(
        rate,
        momentum=0.95,
        norm="free",
        scale="rms",
        iterations=5,
        other="adamw",
        other_rate=1.0,
        weight_decay=DECAY,
    )


# Function, label and learning rates of each optimizer.
OPTIMIZERS = {
    "adamw": (make_adamw, "AdamW", (3e-4, 1e-3, 3e-3)),
    "keras-muon": (make_keras_muon, "keras.optimizers.Muon", (3e-4, 1e-3, 3e-3)),
    "muon": (make_muon, "Muon of this package", (3e-3, 1e-2, 3e-2)),
}
COLUMNS = ("optimizer", "rate", "seed", "steps", "batch_size", "step", "seconds", "training_loss", "validation_loss")


class Runs:
    """Finished runs in a CSV file: dict `curves` from (optimizer, rate, seed, steps) to arrays of shape (points, 4)."""

    def __init__(self, options):
        self.options, self.path = options, options.out / "runs.csv"
        self.rows = []
        if self.path.exists():
            with open(self.path, newline="") as stream:
                self.rows = list(csv.reader(stream))[1:]

    @property
    def curves(self):
        found = {}
        for name, rate, seed, steps, size, *point in self.rows:
            if int(size) == self.options.batch_size:
                found.setdefault((name, float(rate), int(seed), int(steps)), []).append([float(cell) for cell in point])
        return {key: np.array(points) for key, points in found.items()}

    def add(self, key, points):
        """Add a run, and replace the file at once, so that it contains whole runs only."""
        name, rate, seed, steps = key
        self.rows += [[name, f"{rate:g}", seed, steps, self.options.batch_size, *point] for point in points]
        written = self.path.with_suffix(".new")
        with open(written, "w", newline="") as stream:
            csv.writer(stream).writerows([COLUMNS, *self.rows])
        os.replace(written, self.path)

    def train(self, wanted, training, validation):
        """Train the wanted runs that are not finished."""
        options = self.options
        missing = [key for key in wanted if key not in self.curves]
        for number, key in enumerate(missing, start=1):
            name, rate, seed, steps = key
            keras.backend.clear_session()
            keras.utils.set_random_seed(seed)
            optimizer = OPTIMIZERS[name][0](text_data.WarmUpAndDecay(rate, steps))
            model = text_data.build_gpt(options.layers, options.width, optimizer, jit_compile=options.jit or "auto")
            if name == "muon":
                optimizer.build_for(model)
            draws = (text_data.draw_batch(training, options.batch_size, seed, step) for step in itertools.count())
            title = f"run {number} of {len(missing)}: {name}, rate {rate:g}, seed {seed}"
            points = text_data.fit(model, draws, steps, options.every, validation, title)
            self.add(key, points.round(5).tolist())
            _, seconds, _, loss = points[-1]
            ended = f"validation loss {loss:.4f} after {steps} steps in {seconds:.1f} s"
            print(f"{name:10} rate {rate:g}, seed {seed}: {ended}", flush=True)

    def curves_of(self, name, rate, steps):
        """Return the curves of the seeds."""
        keys = [(name, rate, seed, steps) for seed in self.options.seeds]
        return [self.curves[key] for key in keys if key in self.curves]

    def losses(self, name, rate, steps):
        """Return the final validation losses of the seeds, infinite for diverged runs."""
        return np.array([np.nan_to_num(curve[-1, 3], nan=np.inf) for curve in self.curves_of(name, rate, steps)])

    def rates(self, name):
        """Return the learning rates with runs of all steps, the best one first."""
        rates = {key[1] for key in self.curves if key[0] == name and key[3] == self.options.steps}
        rates = [rate for rate in rates if len(self.losses(name, rate, self.options.steps))]
        return sorted(rates, key=lambda rate: self.losses(name, rate, self.options.steps).mean())

    def equal_time(self, name):
        """Return the number of steps in the time of AdamW's runs with the best rate, at most that of those runs."""
        options = self.options
        if name == "adamw" or not self.rates("adamw"):
            return options.steps
        ours, theirs = (
            np.mean([curve[-1, 1] for curve in self.curves_of(optimizer, self.rates(optimizer)[0], options.steps)])
            for optimizer in (name, "adamw")
        )
        count = int(options.steps * theirs / ours) // options.every * options.every
        return min(max(count, options.every), options.steps)


def make_tables(runs, names):
    """Return two tables in Markdown: the best rate of each optimizer, and all rates."""
    options = runs.options
    best = [
        ["optimizer", "best rate", f"loss after {options.steps} steps", "ms per step", "steps in AdamW's time", "loss"]
    ]
    every = [["optimizer", "rate", f"loss after {options.steps} steps"]]
    for name in names:
        label = OPTIMIZERS[name][1]
        rates = runs.rates(name)
        every += [[label, f"{rate:g}", describe(runs.losses(name, rate, options.steps))] for rate in sorted(rates)]
        curves = runs.curves_of(name, rates[0], options.steps)
        steps = runs.equal_time(name)
        duration = f"{1000 * np.mean([curve[-1, 1] for curve in curves]) / options.steps:.0f}"
        losses = [describe(runs.losses(name, rates[0], count)) for count in (options.steps, steps)]
        best.append([label, f"{rates[0]:g}", losses[0], duration, str(steps), losses[1]])
    tables = [[table[0], ["---"] * len(table[0]), *table[1:]] for table in (best, every)]
    return "\n\n".join("\n".join(f"| {' | '.join(row)} |" for row in table) for table in tables) + "\n"


def describe(losses):
    """Return the mean and the single values."""
    return f"{losses.mean():.3f} ({', '.join(f'{loss:.3f}' for loss in losses)})" if len(losses) else ""


def draw(runs, names):
    """Return a figure of the validation loss over steps and over seconds."""
    figure = Figure(figsize=(8.0, 3.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for index, name in enumerate(names):
        rates = runs.rates(name)
        for column, (panel, steps) in enumerate(zip(panels, (runs.options.steps, runs.equal_time(name)), strict=True)):
            # The other rates on the left only.
            for rate in rates[: 1 if column else None]:
                is_best = rate == rates[0]
                style = {"linewidth": 1.8} if is_best else {"linewidth": 0.8, "alpha": 0.4}
                label = f"{OPTIMIZERS[name][1]}, rate {rate:g}" if is_best else None
                curves = runs.curves_of(name, rate, steps)
                if curves:
                    mean = np.mean(curves, axis=0)
                    panel.plot(mean[:, column], mean[:, 3], color=f"C{index}", label=label, **style)
    for panel, label in zip(panels, ("steps", "seconds, without compilation and validation"), strict=True):
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    lowest = min(runs.losses(name, runs.rates(name)[0], runs.options.steps).min() for name in names)
    panels[0].set(ylim=(lowest - 0.05, lowest + 1.2), ylabel="validation loss in nats per byte")
    panels[0].set_title("equal steps, other rates thin", fontsize=9)
    panels[1].set_title("equal time, best rates", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    parser.add_argument("--every", type=int, default=25, help="steps between validations (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="sequences of 128 bytes (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=256, help="sequences for validation (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="seeds (default: 0 1)")
    parser.add_argument(
        "--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS), help="optimizers (default: all)"
    )
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates (default: three for each optimizer)")
    parser.add_argument("--layers", type=int, default=5, help="layers of the GPT (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="width of the GPT (default: %(default)s)")
    parser.add_argument("--jit", action="store_true", help="compile with XLA on TensorFlow too")
    parser.add_argument("--plot-only", action="store_true", help="draw the finished runs")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default="runs/optimizers-on-text",
        help="folder of the results, one for each model and data (default: %(default)s)",
    )
    options = parser.parse_args()
    if options.steps % options.every:
        parser.error(f"--steps must be a multiple of --every {options.every}. Received: {options.steps}")
    options.out.mkdir(parents=True, exist_ok=True)

    runs = Runs(options)
    if not options.plot_only:
        training, validation = text_data.load(options.sequences)
        print(f"{len(training):,} bytes for training", flush=True)
        pairs = list(itertools.product(options.seeds, options.optimizers))
        rates = {name: options.rates or OPTIMIZERS[name][2] for name in options.optimizers}
        wanted = [(name, rate, seed, options.steps) for seed, name in pairs for rate in rates[name]]
        runs.train(wanted, training, validation)
        wanted = [(name, runs.rates(name)[0], seed, runs.equal_time(name)) for seed, name in pairs]
        runs.train(wanted, training, validation)
    names = [name for name in OPTIMIZERS if runs.rates(name)]
    if not names:
        parser.error(f"{runs.path} contains no runs of {options.steps} steps. Omit --plot-only")
    (options.out / "results.md").write_text(make_tables(runs, names))
    draw(runs, names).savefig(options.out / "optimizers-on-text.png", dpi=150)
    print(make_tables(runs, names) + f"table and figure: {options.out / 'results.md'}, optimizers-on-text.png")


if __name__ == "__main__":
    main()
