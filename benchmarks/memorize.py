"""Claim: building and checking a memorizer is as fast as the plain algorithm at half of the machine's matrix rate.

    python benchmarks/memorize.py [--rows N] [--dim D] [--classes R] [--width K] [--dtype DTYPE] [--rounds N]
        [--out DIR]

The points and labels are random. In the plain algorithm, which applies every block to every row, building and checking
take about 4 n^2 k floating-point operations each. "Counted as plain algorithm" divides this number by the time. The
actual computation is smaller: n^2 k for building (each point with those after it, in float32), and 2 n^2 k for checking
(every row with every unit; the second half only where a unit fires) plus 2 n r (k + r) for the last block. "Counted as
computed" divides this number by the time. Rates are relative to NumPy's product of two square matrices in the same run;
for building, counted as computed, in float32.
"""

import json
import os
import pathlib
import resource
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from harness import results
from idmatters_tf.expressivity import memorize


def machine_rate(dtype, size=3000):
    """Return the floating-point operations per second of a product of two square matrices."""
    a = np.random.default_rng(0).standard_normal((size, size)).astype(dtype)
    a @ a
    start = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 2 * size**3 / (time.perf_counter() - start)


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, default=50_000, help="number of points n (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=64, help="dimension d (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=10, help="number of classes r (default: %(default)s)")
    parser.add_argument("--width", type=int, default=32, help="units per block k (default: %(default)s)")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="(default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder for result.json, the check's numbers")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["numpy", "tensorflow", "keras"])
    n, k, r = options.rows, options.width, options.classes

    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, options.dim), np.float32)
    labels = rng.integers(0, r, n)
    build_work, check_work = n**2 * k, 2 * n**2 * k + 2 * n * r * (k + r)
    building, checking = [], []
    shares = {name: [] for name in ("plain algorithm", "computed", "computed, building", "computed, checking")}
    for _ in range(options.rounds):
        single = machine_rate("float32")
        rate = machine_rate(options.dtype)
        made = memorize(x, labels, r, width=k, dtype=options.dtype, check=(options.dtype,)).report
        ideal_build, ideal_check = build_work / single, check_work / rate
        seconds = made.build_seconds + made.verify_seconds
        building.append(made.build_seconds)
        checking.append(made.verify_seconds)
        shares["plain algorithm"].append(8 * n**2 * k / rate / seconds)
        shares["computed"].append((ideal_build + ideal_check) / seconds)
        shares["computed, building"].append(ideal_build / made.build_seconds)
        shares["computed, checking"].append(ideal_check / made.verify_seconds)
        verified = made.verified[options.dtype]
        print(
            f"n = {n:,}, d = {options.dim}, r = {r:,}, k = {k}, {made.dtype}: {made.parameters:,} parameters, "
            f"{verified.correct:,} rows right, largest error {verified.largest_error:.1e}, smallest margin "
            f"{made.smallest_margin:.1e}; machine {single / 1e9:.0f} (float32) and {rate / 1e9:.0f} GFLOP/s "
            f"({options.dtype})",
            flush=True,
        )
    if options.out is not None:
        numbers = {"rows_right": verified.correct, "largest_error": verified.largest_error}
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "result.json").write_text(json.dumps(numbers | {"smallest_margin": made.smallest_margin}))
    report.add("built", building, "s")
    report.add("all rows checked", checking, "s")
    for name, values in shares.items():
        report.add(f"counted as {name}", values, "of the machine's rate")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report.finish(f"n = {n:,}, k = {k}, {options.dtype}; peak memory {memory:.1f} GiB.")


if __name__ == "__main__":
    main()
