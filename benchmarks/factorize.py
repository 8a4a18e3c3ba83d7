"""Claim: `factorize` takes under a second for a 256 x 256 matrix at depth 100, less than fractional matrix powers.

    python benchmarks/factorize.py [--dim D] [--depth L] [--rounds N]

The alternative computes the same factors I + A_i = Q^(i/l) P^(1/l) Q^(-(i-1)/l) directly, with
`scipy.linalg.fractional_matrix_power` for each layer. Its time is extrapolated from two layers.
"""

import numpy as np
import scipy.linalg

from harness import results
from harness.timing import in_turn, ratio, seconds, timed
from idmatters_tf import linear


def by_matrix_powers(Q, P, depth, layers):
    """Return the first `layers` factors."""
    root = scipy.linalg.fractional_matrix_power(P, 1 / depth)
    return [
        scipy.linalg.fractional_matrix_power(Q, i / depth)
        @ root
        @ scipy.linalg.fractional_matrix_power(Q, -(i - 1) / depth)
        for i in range(1, layers + 1)
    ]


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--dim", type=int, default=256, help="rows of the matrix (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=100, help="number of factors (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["numpy", "scipy"])

    R = np.random.default_rng(0).normal(size=(options.dim, options.dim))
    R[:, 0] *= np.linalg.slogdet(R)[0]
    Q, P = scipy.linalg.polar(R)
    times = in_turn(
        {
            "ours": timed(lambda: linear.factorize(R, options.depth)),
            "matrix powers": lambda: seconds(lambda: by_matrix_powers(Q, P, options.depth, 2)) * options.depth / 2,
        },
        options.rounds,
    )
    A = linear.factorize(R, options.depth)
    error = np.linalg.norm(linear.compose(A) - R) / np.linalg.norm(R)
    report.add("factorize", times["ours"], "s")
    report.add(
        "fractional matrix powers, extrapolated from two layers",
        times["matrix powers"],
        "s",
        ratio=ratio(times["matrix powers"], times["ours"]),
    )
    report.finish(f"Relative error of the product: {error:.1e}.")


if __name__ == "__main__":
    main()
