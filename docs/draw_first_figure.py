"""Draw the first figure of README.md: both papers at a glance.

    python -m trainers.shortcuts --experiment conditions --data-dir MNIST --out runs/conditions
    python docs/draw_first_figure.py RUN runs/conditions

RUN is a run of the network of Hardt & Ma's Table 1 on CIFAR-10, with 50,000 training images.
"""

import argparse
import csv
import json
import pathlib

from matplotlib.figure import Figure

FIGURE = pathlib.Path(__file__).resolve().parent / "figures/papers.png"
# Hardt & Ma: test error in percent (Table 2), with "peak performance at around 50k steps" of 128 images.
PAPER_ERROR, PAPER_EPOCHS = 6.38, 128
TRAINING_IMAGES = 50_000
# Color, style and label by kind. The curves of orthogonal networks and of 1-shortcuts nearly coincide.
KINDS = {
    "xavier": ("tab:green", "-", "no shortcut, Xavier"),
    "orthogonal": ("tab:orange", "-", "no shortcut, orthogonal"),
    "1-shortcut": ("tab:red", "--", "1-shortcut"),
    "3-shortcut": ("tab:purple", "-", "3-shortcut"),
    "2-shortcut": ("tab:blue", "-", "2-shortcut"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="folder of the run")
    parser.add_argument("conditions", type=pathlib.Path, help="folder of trainers.shortcuts --experiment conditions")
    arguments = parser.parse_args()
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_error(left, arguments.run)
    draw_conditions(right, arguments.conditions)
    figure.savefig(FIGURE, dpi=150)


def draw_error(axes, run):
    """Draw the test error against epochs."""
    batch_size = json.loads((run / "config.json").read_text())["settings"]["batch_size"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tests = [record for record in records if record["kind"] == "test"]
    epochs = [record["step"] * batch_size / TRAINING_IMAGES for record in tests]
    errors = [100 * record["error"] for record in tests]
    axes.semilogy(epochs, errors, color="black", marker="o", label=f"ours, {errors[-1]:.2f} % at the end")
    label = f"Hardt & Ma, {PAPER_ERROR} %, peak around {PAPER_EPOCHS} epochs"
    axes.axhline(PAPER_ERROR, color="grey", linestyle="--", label=label)
    axes.set_title("Hardt & Ma: network of Table 1 on CIFAR-10, no normalization", fontsize=10)
    axes.set_xlabel("epochs")
    axes.set_ylabel("test error, %")
    axes.set_yticks([5, 10, 20, 50, 90], ["5", "10", "20", "50", "90"])
    axes.minorticks_off()
    axes.set_ylim(4.5, 110)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


def draw_conditions(axes, folder):
    """Draw the condition number of the Hessian at the start against depth."""
    with open(folder / "conditions.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for kind, (color, style, label) in KINDS.items():
        points = sorted((int(row["depth"]), float(row["lg_condition"])) for row in rows if row["kind"] == kind)
        depths, logarithms = zip(*points, strict=True)
        conditions = [10**value for value in logarithms]
        size = 3 if style == "--" else 5
        axes.semilogy(depths, conditions, style, color=color, marker="o", markersize=size, label=label)
    axes.set_title("Li et al.: Hessian at the start of training, whitened MNIST", fontsize=10)
    axes.set_xscale("log")
    measured = sorted({int(row["depth"]) for row in rows})
    axes.set_xticks(measured, list(map(str, measured)))
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_xlabel("depth, layers")
    axes.set_ylabel("condition number")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


if __name__ == "__main__":
    main()
