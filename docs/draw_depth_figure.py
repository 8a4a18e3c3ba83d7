"""Draw the largest stable rates of six types of blocks, measured and predicted from depths 2 and 4.

python -m trainers.depth --block BLOCK --depths 2 4 --rates 8 16 32 64 --out RUNS/BLOCK    for each type
python docs/draw_depth_figure.py RUNS
"""

import argparse
import csv
import pathlib

from matplotlib.figure import Figure

FIGURE = pathlib.Path(__file__).resolve().parent / "figures/depth-rates.png"
BLOCKS = {
    "near-identity": "near the identity (Hardt & Ma)",
    "zero-branch": "second convolution zero",
    "standard": "standard initialization",
    "batch-norm": "batch normalization",
    "pre-norm": "pre-norm transformer",
    "post-norm": "post-norm transformer",
}
PREDICTIONS = {
    "by_rates": ("C1", "-", "from the rates at 2 and 4"),
    "by_curvature": ("C2", "--", "from 2 / \u03bb at 2 and 4"),
}


def draw(axes, run):
    """Draw the rates of a run of trainers.depth."""
    rows = [
        {name: float(cell) for name, cell in row.items()}
        for row in csv.DictReader((run / "rates.csv").read_text().splitlines())
    ]
    axes.loglog([row["depth"] for row in rows], [row["measured"] for row in rows], "o", markersize=4, label="measured")
    for name, (color, style, label) in PREDICTIONS.items():
        axes.plot([row["depth"] for row in rows], [row[name] for row in rows], style, color=color, label=label)
    depths = sorted({int(row["depth"]) for row in rows})
    axes.set_xticks(depths, list(map(str, depths)))
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.grid(alpha=0.3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path, help="folder of the runs, each with the name of its type of blocks")
    runs = parser.parse_args().runs
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    panels = figure.subplots(2, 3)
    for axes, (name, title) in zip(panels.flat, BLOCKS.items(), strict=True):
        draw(axes, runs / name)
        axes.set_title(title, fontsize=10)
    for axes in panels[:, 0]:
        axes.set_ylabel("largest stable rate of SGD")
    for axes in panels[1]:
        axes.set_xlabel("number of blocks")
    panels[0, 0].legend(fontsize=8)
    panels[0, 0].set_ylim(0.2, 2)
    figure.savefig(FIGURE, dpi=150)


if __name__ == "__main__":
    main()
