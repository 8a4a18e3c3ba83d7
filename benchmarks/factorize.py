"""Claim: a 256 x 256 matrix is factorised at depth 100 in under a second, faster than by fractional matrix powers.

    python benchmarks/factorize.py [--dim D] [--depth L] [--rounds N]

Compared, in turn, with the same factors I + A_i = Q^(i/l) P^(1/l) Q^(-(i-1)/l) computed as the formula reads, with
`scipy.linalg.fractional_matrix_power` for each layer (of which only a few layers are timed, and their time multiplied).
"""

import argparse
import statistics
import time

import numpy as np
import scipy.linalg

from idmatters_tf import linear


def seconds(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def by_matrix_powers(Q, P, depth, layers):
    """The first few layers."""
    root = scipy.linalg.fractional_matrix_power(P, 1 / depth)
    return [
        scipy.linalg.fractional_matrix_power(Q, i / depth)
        @ root
        @ scipy.linalg.fractional_matrix_power(Q, -(i - 1) / depth)
        for i in range(1, layers + 1)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--depth", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    options = parser.parse_args()

    R = np.random.default_rng(0).normal(size=(options.dim, options.dim))
    R[:, 0] *= np.linalg.slogdet(R)[0]
    Q, P = scipy.linalg.polar(R)
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(seconds(linear.factorize, R, options.depth))
        theirs.append(seconds(by_matrix_powers, Q, P, options.depth, 2) * options.depth / 2)
    A = linear.factorize(R, options.depth)
    error = np.linalg.norm(linear.compose(A) - R) / np.linalg.norm(R)
    for name, times in (("factorize", ours), ("matrix powers", theirs)):
        print(f"{name:14}{statistics.median(times):9.3f} s   ({min(times):.3f} .. {max(times):.3f})")
    print(f"ratio         {statistics.median(theirs) / statistics.median(ours):9.1f}     relative error {error:.1e}")


if __name__ == "__main__":
    main()
