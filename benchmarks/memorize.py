"""Claim: a memoriser is built and checked at half the rate at which this machine multiplies large matrices, or more.

    python benchmarks/memorize.py [--rows N] [--dim D] [--classes R] [--width K] [--dtype float64] [--rounds N]

Random points and labels. Building takes n^2 k floating-point operations (each point against those after it), running all
rows through the network at least 2 n^2 k (every row against every unit) and 2 n r (k + r) for the last block. The rate
of the machine is that of NumPy's product of two square matrices of the same dtype, taken in turn with the rest. Building
searches in float32 whatever the dtype of the network.
"""

import argparse
import os
import resource
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from idmatters_tf.expressivity import memorize
from trainers.progress import Progress


def machine_rate(dtype, size=3000):
    """Floating-point operations per second of a product of two square matrices."""
    a = np.random.default_rng(0).standard_normal((size, size)).astype(dtype)
    a @ a
    start = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 2 * size**3 / (time.perf_counter() - start)


class Bars:
    """A bar or log lines for each stage."""

    def __init__(self):
        self.bar = None

    def __call__(self, stage, done, total):
        if self.bar is None or self.bar.title != stage:
            self.bar = Progress(total, title=stage, unit="rows", line_seconds=60)
        self.bar.done = done - 1
        self.bar.advance()
        self.bar.show("")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000, help="n (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=64, help="d (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=10, help="r (default: %(default)s)")
    parser.add_argument("--width", type=int, default=32, help="k (default: %(default)s)")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    options = parser.parse_args()
    n, k, r = options.rows, options.width, options.classes

    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, options.dim), np.float32)
    labels = rng.integers(0, r, n)
    build_work, check_work = n**2 * k, 2 * n**2 * k + 2 * n * r * (k + r)
    shares = {"build": [], "check": [], "both": []}
    for _ in range(options.rounds):
        single, rate = machine_rate("float32"), machine_rate(options.dtype)
        report = memorize(x, labels, r, k, dtype=options.dtype, check=(options.dtype,), progress=Bars()).report
        ideal_build, ideal_check = build_work / single, check_work / rate
        shares["build"].append(ideal_build / report.build_seconds)
        shares["check"].append(ideal_check / report.verify_seconds)
        shares["both"].append((ideal_build + ideal_check) / (report.build_seconds + report.verify_seconds))
        result = report.verified[options.dtype]
        print(
            f"n = {n:,}, d = {options.dim}, r = {r:,}, k = {k}, {report.dtype}: {report.parameters:,} parameters, "
            f"built in {report.build_seconds:.1f} s, checked in {report.verify_seconds:.1f} s, {result.correct:,} rows "
            f"right, largest error {result.largest_error:.1e}, smallest margin {report.smallest_margin:.1e}; "
            f"machine {single / 1e9:.0f} (float32) and {rate / 1e9:.0f} GFLOP/s ({options.dtype})",
            flush=True,
        )
    for stage, values in shares.items():
        print(
            f"{stage:6} ratio to the machine's rate {statistics.median(values):.2f}   "
            f"({min(values):.2f} .. {max(values):.2f})"
        )
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
