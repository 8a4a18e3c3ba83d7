"""Claim: thin matrix products keep the memorizer below the rate of large matrix products.

    python benchmarks/memorize_products.py [--width K] [--rounds N]

Each point and each unit form an inner product of k numbers: 2 k operations for a number that is written once and read
once, by `max` when building and by a comparison when checking. The measurements, as shares of the rate of square
matrices of the same dtype in the same run, are: the thin products alone, an upper bound for any arrangement of the
search; the products with the operation on their results; and the products of the check in NumPy. Sizes of tiles
(building, NumPy, float32; `TILE` of construction.py) and of groups of blocks (checking, TensorFlow, float64;
`LOOKAHEAD_UNITS` of memorizer.py) vary.
"""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from harness import results

POINTS, PANEL, BATCH = 16384, 256, 4096
TILES = (512, 1024, 2048, 4096, 8192)
GROUPS = (128, 256, 512, 1024, 2048)


def seconds(run, repeats=5):
    run()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def square_rate(dtype, size=3000):
    a = np.random.default_rng(0).standard_normal((size, size)).astype(dtype)
    return 2 * size**3 / seconds(lambda: a @ a, 2)


def building(width, tile, rng):
    """Return the seconds of all products of a panel's units with the points, without and with the maxima."""
    units = rng.standard_normal((PANEL, width)).astype(np.float32)
    points = rng.standard_normal((POINTS, width)).astype(np.float32)
    buffer, highest = np.empty((PANEL, tile), np.float32), np.empty(PANEL, np.float32)

    def products():
        for start in range(0, POINTS, tile):
            np.matmul(units, points[start : start + tile].T, out=buffer)

    def with_maxima():
        highest.fill(-np.inf)
        for start in range(0, POINTS, tile):
            np.maximum(highest, np.matmul(units, points[start : start + tile].T, out=buffer).max(axis=1), out=highest)

    return seconds(products), seconds(with_maxima)


def checking(width, group, rng):
    """Return the seconds of a batch of rows times a group of units: alone, with the comparison, and in NumPy."""
    rows = tf.constant(rng.standard_normal((BATCH, width)))
    units, thresholds = tf.constant(rng.standard_normal((width, group))), tf.constant(np.full(group, 1e9))

    @tf.function
    def products():
        return tf.matmul(rows, units)[0, 0]

    @tf.function
    def with_comparison():
        return tf.reduce_any(tf.matmul(rows, units) > thresholds)

    left, right, out = rows.numpy(), units.numpy(), np.empty((BATCH, group))
    in_numpy = seconds(lambda: np.matmul(left, right, out=out))
    return seconds(lambda: products().numpy()), seconds(lambda: with_comparison().numpy()), in_numpy


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--width", type=int, default=32, help="units per block k (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["numpy", "tensorflow"])
    shares = {}
    for _ in range(options.rounds):
        rng = np.random.default_rng(0)
        single, double = square_rate(np.float32), square_rate(np.float64)
        for tile in TILES:
            work = 2 * PANEL * POINTS * options.width / single
            for name, taken in zip(("", ", maxima"), building(options.width, tile, rng), strict=True):
                shares.setdefault(f"building, tiles of {tile}{name}", []).append(work / taken)
        for group in GROUPS:
            work = 2 * BATCH * group * options.width / double
            for name, taken in zip(("", ", comparison", ", NumPy"), checking(options.width, group, rng), strict=True):
                shares.setdefault(f"checking, {group} units{name}", []).append(work / taken)
    for name, values in shares.items():
        report.add(name, values, "of the machine's rate")
    report.finish(f"k = {options.width}.")


if __name__ == "__main__":
    main()
