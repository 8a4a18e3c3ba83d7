"""Claim: the factors of `factorize` are hardly larger than the smallest that a numerical search finds.

    python benchmarks/factorize_optimum.py [--targets N]

For random targets R with d = 2, 3 and depths 2 to 5, |||A||| of `factorize` over the smallest one found by minimising
it: A_1 .. A_(l-1) are free and the last factor follows from R. The maximum of the norms is smoothed to a p-norm, from
p = 8 to p = 512, each time by BFGS from the best point before, from `factorize`'s own factors and from two others near
them. A local search: the true minimum may be smaller.
"""

import numpy as np
import scipy.optimize

from harness import results
from idmatters_tf import linear


def completed(free, R, depth):
    """All factors, the last one from R; None where the others are singular."""
    A = free.reshape(depth - 1, *R.shape)
    others = linear.compose(A)
    if abs(np.linalg.det(others)) < 1e-9:
        return None
    return np.concatenate([A, np.linalg.solve(others.T, (R - others).T).T[None]])


def smooth_norm(free, R, depth, p):
    """The p-norm of all singular values of all factors: above |||A|||, and near it for large p."""
    A = completed(free, R, depth)
    if A is None:
        return 1e3
    values = np.linalg.svd(A, compute_uv=False)
    return values.max() * np.sum((values / values.max()) ** p) ** (1 / p)


def smallest(R, depth, rng):
    """The smallest |||A||| that is found."""
    start = linear.factorize(R, depth)[:-1].ravel()
    best = np.inf
    for attempt in range(3):
        point = start + (0.1 * rng.normal(size=start.shape) if attempt else 0.0)
        for p in (8, 32, 128, 512):
            point = scipy.optimize.minimize(smooth_norm, point, (R, depth, p), method="BFGS").x
            A = completed(point, R, depth)
            best = best if A is None else min(best, linear.tensor_norm(A))
    return best


def main():
    parser = results.parser(__doc__, rounds=1)
    parser.add_argument("--targets", type=int, default=60, help="(default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["numpy", "scipy"])
    rng, ratios = np.random.default_rng(0), []
    for number in range(options.targets):
        d, depth = 2 + number % 2, 2 + number % 4
        R = rng.normal(size=(d, d))
        R[:, 0] *= np.sign(np.linalg.det(R))
        ratios.append(linear.tensor_norm(linear.factorize(R, depth)) / smallest(R, depth, rng))
    report.add("largest norm of a factor over the smallest found, median", [float(np.median(ratios))], "")
    report.add("the same, largest", [float(np.max(ratios))], "")
    report.finish(f"{options.targets} random targets, d = 2 and 3, depths 2 to 5.")


if __name__ == "__main__":
    main()
