"""Largest difference between the losses of stacked blocks and those of `train_on_batch` with `scale_depth`, on JAX."""

import sys

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import depth_transfer
import keras
import numpy as np

from harness.blocks import OPTIMIZERS, load
from idmatters_tf import scale_depth
from idmatters_tf.optimizers.building import build_optimizer

CASES = (
    ("pre-norm", "muon", 0.02, 1.0, 2),
    ("pre-activation", "adamw", 0.01, 0.5, 1),
    ("near-identity", "momentum", 0.05, 1.0, 1),
)


def main() -> None:
    """Print the largest difference in 10 steps of 3 blocks."""
    differences = []
    for block, name, rate, alpha, sums in CASES:
        problem = load(block, 8, 4, 16)
        networks = depth_transfer.Networks(problem, name, 1, 3, 10, 4, 1)
        stacked = networks.trainings(3, alpha)(rate)[0]
        keras.utils.set_random_seed(0)
        model = problem.build(3)
        optimizer = scale_depth(model, sums, OPTIMIZERS[name](rate), alpha)
        build_optimizer(optimizer, model)
        model.compile(optimizer, problem.loss)
        x, y = networks.batches[0]
        losses = [float(np.asarray(model.train_on_batch(x[step], y[step]))) for step in range(10)]
        differences.append(float(np.abs(stacked - losses).max()))
    print(max(differences))


if __name__ == "__main__":
    main()
