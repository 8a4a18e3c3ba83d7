"""Page with the results of `benchmarks/curvature_sweep.py` for each loss, activation and layer."""

import csv

from generator import DOCS
from trainers.cli.markdown import table

RESULTS = DOCS.parent / "benchmarks/results/curvature_sweep.csv"
_INTRODUCTION = """# Accuracy of curvature products

Relative errors of products with the Hessian (H v), the Gauss-Newton matrix (G v) and the Fisher matrix (F v), compared
with central differences, for each loss, activation and layer of Keras.
[Results: curvature](../reference/results/curvature.md#keras-losses-activations-and-layers) describes the
measurement.

"""


def pages() -> dict[str, str]:
    """Return the page by its path below docs/generated/."""
    with RESULTS.open(encoding="utf-8", newline="") as stream:
        _, *lines = csv.reader(stream)
    header = ("loss, activation or layer", "mode", "H v", "G v", "F v")
    return {"curvature-cases.md": _INTRODUCTION + table(header, lines)}
