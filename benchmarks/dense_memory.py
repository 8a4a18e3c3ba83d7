"""Claim: the memory of `to_dense` beyond the matrix is proportional to the chunk, not to the number of parameters.

    python benchmarks/dense_memory.py [--units N ...] [--chunks C ...]

The Hessian of a network of three dense layers on 512 examples, in float32. Each case runs in a separate process. The
reported value is its peak resident memory, less the peak after a single product and less the P x P matrix.
"""

import argparse
import os
import resource
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from harness import results

EXAMPLES, INPUTS, CLASSES = 512, 32, 10


def peak():
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def case(units, chunk):
    """Print P and the bytes beyond those of the matrix and a product."""
    import keras
    import numpy as np

    from idmatters_tf.curvature import HessianOperator

    rng = np.random.default_rng(0)
    dense = keras.layers.Dense
    model = keras.Sequential(
        [keras.Input((INPUTS,)), dense(units, "tanh"), dense(units, "tanh"), dense(CLASSES, "softmax")]
    )
    data = rng.normal(size=(EXAMPLES, INPUTS)).astype("float32"), rng.integers(0, CLASSES, EXAMPLES)
    operator = HessianOperator(model, "sparse_categorical_crossentropy", data, chunk=chunk, check=False)
    operator @ np.ones(operator.shape[0], operator.dtype)
    before = peak()
    matrix = operator.to_dense()
    print(len(matrix), peak() - before - matrix.nbytes)


def main():
    parser = results.parser(__doc__, rounds=1)
    parser.add_argument("--units", type=int, nargs="+", default=[24, 48, 64], help="hidden units (default: 24 48 64)")
    parser.add_argument(
        "--chunks", type=int, nargs="+", default=[8, 32, 128], help="columns at once (default: 8 32 128)"
    )
    parser.add_argument("--case", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case(*options.case)
        return
    report = results.Report(__file__, options, ["numpy", "tensorflow", "keras"])
    for units in options.units:
        for chunk in options.chunks:
            found = []
            for _ in range(options.rounds):
                command = [sys.executable, __file__, "--case", str(units), str(chunk)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                parameters, beside = map(int, done.stdout.split()[-2:])
                found.append(max(0, beside) / 2**20)
            report.add(f"P = {parameters:,}, chunk = {chunk}", found, "MiB beside the matrix")
    report.finish("Less what a single product takes.")


if __name__ == "__main__":
    main()
