"""Claim: the linear sweep of Li et al.'s Figure 9 is over 5 times faster with all networks at once than one at a time.

    python benchmarks/linear_sweep.py [--epochs N] [--depths L ...]

1,000 epochs of gradient descent for 10 seeds x 12 learning rates x depths up to 96 of 10 x 10 networks, for each
parameterization of the figure: Xavier, orthogonal, 1-, 2- and 3-shortcut. The data are white inputs and one-hot outputs
of 60,000 random samples; the time of a step does not depend on them. The alternative trains one network at a time on
the same second moments; its time is extrapolated from a few networks.
"""

import os
import time

# Products of 10 x 10 matrices gain nothing from threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from harness import results
from idmatters_tf import linear

SEEDS, RATES, DIM, SAMPLES = 10, 12, 10, 60_000


def starts(depths):
    """Return the networks of the figure by (kind, depth), without depths that are not multiples of a shortcut's n."""
    kinds = {
        "xavier": ("xavier", 1, False),
        "orthogonal": ("orthogonal", 1, False),
        "1-shortcut": ("small", 1, True),
        "2-shortcut": ("small", 2, True),
        "3-shortcut": ("small", 3, True),
    }
    return {
        (kind, depth): (linear.initial_weights(start, depth // n, n, DIM, networks=SEEDS), shortcut)
        for kind, (start, n, shortcut) in kinds.items()
        for depth in depths
        if depth % n == 0
    }


def one_at_a_time(networks, sxx, syx, rates, epochs):
    """Return the estimated seconds for all networks, from the first of each shape and a tenth of the epochs."""
    total = 0.0
    for W, shortcut in networks.values():
        one, start = W[0], time.perf_counter()
        for _ in range(epochs // 10):
            one = one - rates[0] * linear.shortcut_gradient(one, sxx, syx, shortcut=shortcut)
        total += (time.perf_counter() - start) * 10 * SEEDS * len(rates)
    return total


def main():
    parser = results.parser(__doc__, rounds=1)
    parser.add_argument("--epochs", type=int, default=1000, help="training epochs (default: %(default)s)")
    parser.add_argument(
        "--depths", type=int, nargs="+", default=[3, 6, 12, 24, 48, 96], help="layers (default: 3 6 12 24 48 96)"
    )
    options = parser.parse_args()
    report = results.Report(__file__, options, ["numpy", "scipy"])

    rng = np.random.default_rng(0)
    X = linear.whiten(rng.normal(size=(DIM, SAMPLES)))[0]
    labels = np.argmax(X + rng.normal(size=X.shape), axis=0)
    sxx, syx, _ = linear.sufficient_statistics(X, np.eye(DIM)[:, labels])
    rates = np.geomspace(1e-3, 3.0, RATES)
    networks = starts(options.depths)

    ours, theirs, trained = [], [], {}
    for _ in range(options.rounds):
        start = time.perf_counter()
        trained = linear.sweep(networks, sxx, syx, rates, options.epochs, record_every=options.epochs)
        ours.append(time.perf_counter() - start)
        theirs.append(one_at_a_time(networks, sxx, syx, rates, options.epochs))
    report.add("all at once", ours, "s")
    report.add("one at a time, extrapolated", theirs, "s", ratio=theirs[0] / ours[0])
    print("log10 of the mean excess risk at the best rate, by depth:")
    for kind in dict.fromkeys(kind for kind, _ in networks):
        best = {
            depth: np.log10(np.nanmin(np.mean(trained[kind, depth].excess_risk[..., -1], axis=0)))
            for depth in options.depths
            if (kind, depth) in trained
        }
        print(f"  {kind:12}" + "  ".join(f"{depth}: {value:6.2f}" for depth, value in best.items()))
    report.finish(f"{len(networks) * SEEDS * RATES:,} networks, {options.epochs:,} epochs.")


if __name__ == "__main__":
    main()
