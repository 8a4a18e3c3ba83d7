"""Claim: a memoriser is built and checked as fast as the plain algorithm would be at half this machine's matrix rate.

    python benchmarks/memorize.py [--rows N] [--dim D] [--classes R] [--width K] [--dtype DTYPE] [--rounds N]

Random points and labels. Done plainly, building and checking take about 4 n^2 k floating-point operations each: every
block is applied to every row. "plainly" below is the rate at which that much would have been done. Really done is less:
n^2 k for building (each point against those after it, in float32), and for checking 2 n^2 k (every row against every
unit; the second half only where a unit fires) and 2 n r (k + r) for the last block; "really" is the rate of that. The
machine's rate is that of NumPy's product of two square matrices in the same run, float32 for building in "really".
"""

import argparse
import os
import resource
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from idmatters_tf.expressivity import memorize
from trainers.run.progress import Progress


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
            self.bar = Progress(total, stage, unit="rows", line_seconds=60)
        self.bar.advance(done - self.bar.done)
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
    shares = {"plainly": [], "really": [], "really, building": [], "really, checking": []}
    for _ in range(options.rounds):
        single, rate = machine_rate("float32"), machine_rate(options.dtype)
        report = memorize(x, labels, r, k, dtype=options.dtype, check=(options.dtype,), progress=Bars()).report
        ideal_build, ideal_check = build_work / single, check_work / rate
        seconds = report.build_seconds + report.verify_seconds
        shares["plainly"].append(8 * n**2 * k / rate / seconds)
        shares["really"].append((ideal_build + ideal_check) / seconds)
        shares["really, building"].append(ideal_build / report.build_seconds)
        shares["really, checking"].append(ideal_check / report.verify_seconds)
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
            f"{stage:17} ratio to the machine's rate {statistics.median(values):.2f}   "
            f"({min(values):.2f} .. {max(values):.2f})"
        )
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
