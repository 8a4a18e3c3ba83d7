"""Claim: measuring the distance to the identity of all blocks of the 55-convolution network takes under a minute.

    python benchmarks/isometry_cost.py [--points N] [--rounds N]

The network of Hardt & Ma's Table 1, 13,538,736 parameters, float32, at initialization, on random images:
`block_distances` of its 27 blocks and `measure`, which adds singular values and the Jacobian from input to output. The
baseline is the gradient of the loss on the same number of images by a plain `tf.function`. Peak memory is the increase
of the process' peak over its value before the first measurement, when the network is already in memory.
"""

import functools
import os
import resource

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from harness import results
from harness.gradient import plain_gradient
from harness.timing import in_turn, ratio, seconds
from idmatters_tf.isometry import block_distances, measure
from idmatters_tf.models.cifar import identity_resnet


def peak():
    """Return the peak resident memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--points", type=int, default=1, help="number of images (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=9, help="residual blocks per stage (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])

    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.points, 32, 32, 3)).astype(np.float32)
    y = rng.integers(0, 10, options.points)
    model = identity_resnet(blocks=options.blocks)
    gradient = plain_gradient(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), x, y)
    gradient()

    before = peak()
    grown = {}
    ways = {
        "block_distances": lambda: block_distances(model, x),
        "measure": lambda: measure(model, x),
    }
    for name, way in ways.items():
        way()
        grown[name] = peak() - before
    measured = {name: functools.partial(seconds, way) for name, way in {"gradient": gradient, **ways}.items()}
    times = in_turn(measured, options.rounds)
    report.add("gradient", times["gradient"], "s")
    for name in ways:
        report.add(name, times[name], "s", ratio=ratio(times[name], times["gradient"]))
        report.add(f"{name}: memory above the start", [grown[name]], "MB")
    report.finish(f"{3 * options.blocks} blocks, {options.points} image{'s' if options.points > 1 else ''}.")


if __name__ == "__main__":
    main()
