"""Claim: float64 limits the constructions on a line to a number of rows that is proportional to 1 / sqrt(dimension).

    python benchmarks/memorize_limits.py [--dims D ...] [--rows N] [--classes R]

The points are normal and the labels random. On a line the smallest gap of n points is about their range divided by n^2,
and rounding moves a sum of d products by up to about d times the unit roundoff. A construction raises an error if the
rounding is too large for the gap. Each construction is built for n rows, where it uses a share s of the allowed
rounding. The reported number of rows is m with s (m / n)^2 = 1.
"""

import argparse

import numpy as np

from harness import results
from idmatters_tf.expressivity import construct_lookup, construct_three_layers


def main():
    parser = results.parser(__doc__, rounds=1)
    parser.add_argument("--dims", type=int, nargs="+", default=[2, 64, 3072], help="dimensions d (default: 2 64 3072)")
    parser.add_argument("--rows", type=int, default=4000, help="number of points n (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=10, help="number of classes r (default: %(default)s)")
    options: argparse.Namespace = parser.parse_args()
    report = results.Report(__file__, options, ["numpy"])
    n, classes = options.rows, options.classes
    for d in options.dims:
        found = {"lookup, bit-extraction": [], "yun": []}
        for seed in range(5):
            rng = np.random.default_rng(seed)
            x, labels = rng.standard_normal((n, d)), rng.integers(0, classes, n)
            found["lookup, bit-extraction"].append(construct_lookup(x, labels, classes, False, seed).rounding)
            found["yun"].append(construct_three_layers(x, labels, classes, seed).rounding)
        for name, shares in found.items():
            report.add(f"{name}, d = {d}", [n / share**0.5 for share in shares], "rows at most")
    report.finish(f"Extrapolated from n = {n:,}, five draws, r = {classes}.")


if __name__ == "__main__":
    main()
