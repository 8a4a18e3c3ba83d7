"""Draw the largest stable rates of six types of blocks, measured and predicted from depths 2 and 4.

Commands of the runs and the figure:

python -m trainers.depth --block BLOCK --depths 2 4 --rates 8 16 32 64 --out RUNS/BLOCK    for each type
python docs/draw_depth_figure.py RUNS
"""

import argparse
import csv
import pathlib

from matplotlib.figure import Figure

from trainers.depth.rates import Rate, draw_rates

FIGURE = pathlib.Path(__file__).resolve().parent / "figures/depth-rates.png"
BLOCKS = {
    "near-identity": "near the identity (Hardt & Ma)",
    "zero-branch": "second convolution zero",
    "standard": "standard initialization",
    "batch-norm": "batch normalization",
    "pre-norm": "pre-norm transformer",
    "post-norm": "post-norm transformer",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=pathlib.Path, help="folder of the runs, each with the name of its type of blocks")
    runs = parser.parse_args().runs
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    panels = figure.subplots(2, 3)
    for axes, (name, title) in zip(panels.flat, BLOCKS.items(), strict=True):
        rows = csv.DictReader((runs / name / "rates.csv").read_text().splitlines())
        draw_rates(axes, [Rate(*map(float, row.values())) for row in rows])
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
