"""Claim: the formula for the dense Hessian of 32 layers of 10 x 10 is 10 times faster than automatic differentiation.

    python benchmarks/linear_hessian.py [--samples M] [--rounds N] [--peer-python FILE]

16 two-layer shortcut units, 3,200 parameters, float64. The alternatives are TensorFlow's `tape.jacobian` of the
gradient inside a `tf.function`, traced beforehand, and, if PyTorch is installed, `torch.func.hessian` in a separate
process. Their time and memory grow with the number of samples; the formula depends only on second moments. A second
claim is that a Hessian-vector product takes less than a millisecond.
"""

import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from harness import peer, results
from harness.timing import in_turn, ratio, timed
from idmatters_tf import linear

UNITS, DEPTH, DIM = 16, 2, 10


def by_tensorflow(W, X, Y):
    """Return a function that computes the Hessian."""
    weights, X, Y = tf.Variable(W.reshape(UNITS * DEPTH, DIM, DIM)), tf.constant(X), tf.constant(Y)

    @tf.function
    def hessian():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                layers = tf.unstack(weights)
                outputs = X
                for first, second in zip(layers[::2], layers[1::2], strict=True):
                    outputs = outputs + second @ (first @ outputs)
                loss = tf.reduce_sum((Y - outputs) ** 2) / (2 * X.shape[1])
            gradient = inner.gradient(loss, weights)
        return tf.reshape(outer.jacobian(gradient, weights), (W.size, W.size))

    return lambda: hessian().numpy()


def main():
    parser = results.parser(__doc__, rounds=5)
    parser.add_argument("--samples", type=int, default=100, help="number of samples (default: %(default)s)")
    peer.add_option(parser)
    options = parser.parse_args()
    report = results.Report(__file__, options, ["numpy", "scipy", "tensorflow"])

    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, DIM, options.samples))
    W = linear.initial_weights("xavier", UNITS, DEPTH, DIM, seed=1) / 2
    sxx, syx, _ = linear.sufficient_statistics(X, Y)
    expected = linear.shortcut_hessian(W, sxx, syx)
    differentiated = by_tensorflow(W, X, Y)
    largest = np.abs(expected).max()
    errors = [np.abs(differentiated() - expected).max() / largest]
    ways = {
        "Kronecker formula": timed(lambda: linear.shortcut_hessian(W, sxx, syx)),
        "tape.jacobian": timed(differentiated),
    }
    with tempfile.TemporaryDirectory() as folder:
        if peer.installed("torch", options.peer_python):
            report.versions["torch"] = peer.version("torch", options.peer_python)
            np.savez(pathlib.Path(folder) / "inputs.npz", W=W, X=X, Y=Y)
            with peer.Peer("torch_hessian", folder, options.peer_python) as torch:
                torch.ask("seconds")
                torch.ask("save")
                errors.append(np.abs(np.load(pathlib.Path(folder) / "hessian.npy") - expected).max() / largest)
                ways["torch.func.hessian"] = lambda: torch.ask("seconds")
                times = in_turn(ways, options.rounds)
        else:
            times = in_turn(ways, options.rounds)
    formula = times["Kronecker formula"]
    for name, values in times.items():
        report.add(name, values, "s", ratio=ratio(values, formula) if values is not formula else None)

    operator, vector = linear.ShortcutHessian(W, sxx, syx), rng.normal(size=W.size)
    products = in_turn({"product": timed(lambda: operator @ vector)}, 200)["product"]
    report.add("Hessian-vector product", products, "ms", scale=1e3)
    report.finish(f"Largest difference: {max(errors):.1e} of the largest entry.")


if __name__ == "__main__":
    main()
