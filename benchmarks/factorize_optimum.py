"""Claim: the norm of `factorize`'s factors is close to the smallest norm found by numerical search.

    python benchmarks/factorize_optimum.py [--targets N]

For random targets R with d = 2, 3 and depths 2 to 5: |||A||| of `factorize` divided by the smallest |||A||| found by
minimization, where A_1 .. A_(l-1) are free and R determines the last factor. The maximum of the norms is smoothed to a
p-norm, with p from 8 to 512. For each p, BFGS starts from the previous best point; the first points are the factors of
`factorize` and two random points near them. The search is local, so the true minimum may be smaller.
"""

import numpy as np
import scipy.optimize

from harness import results
from idmatters_tf import linear


def complete(free, R, depth):
    """Return all factors, with the last one computed from R, or None if the product of the others is singular."""
    A = free.reshape(depth - 1, *R.shape)
    others = linear.compose(A)
    if abs(np.linalg.det(others)) < 1e-9:
        return None
    return np.concatenate([A, np.linalg.solve(others.T, (R - others).T).T[None]])


def smooth_norm(free, R, depth, p):
    """Return the p-norm of all singular values of all factors: an upper bound of |||A||| that is tight for large p."""
    A = complete(free, R, depth)
    if A is None:
        return 1e3
    values = np.linalg.svd(A, compute_uv=False)
    return values.max() * np.sum((values / values.max()) ** p) ** (1 / p)


def search_smallest(R, depth, rng):
    """Return the smallest |||A||| found."""
    start = linear.factorize(R, depth)[:-1].ravel()
    best = np.inf
    for attempt in range(3):
        point = start + (0.1 * rng.normal(size=start.shape) if attempt else 0.0)
        for p in (8, 32, 128, 512):
            point = scipy.optimize.minimize(smooth_norm, point, (R, depth, p), method="BFGS").x
            A = complete(point, R, depth)
            best = best if A is None else min(best, linear.tensor_norm(A))
    return best


def main():
    parser = results.parser(__doc__, rounds=1)
    parser.add_argument("--targets", type=int, default=60, help="number of random targets (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["numpy", "scipy"])
    rng = np.random.default_rng(0)
    ratios = []
    for number in range(options.targets):
        d = 2 + number % 2
        depth = 2 + number % 4
        R = rng.normal(size=(d, d))
        R[:, 0] *= np.sign(np.linalg.det(R))
        ratios.append(linear.tensor_norm(linear.factorize(R, depth)) / search_smallest(R, depth, rng))
    report.add("largest norm of a factor over the smallest found, median", [float(np.median(ratios))], "")
    report.add("the same, largest", [float(np.max(ratios))], "")
    report.finish(f"{options.targets} random targets, d = 2 and 3, depths 2 to 5.")


if __name__ == "__main__":
    main()
