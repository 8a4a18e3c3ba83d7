"""Claim: the same Hessian and Gauss-Newton products as PyTorch's curvlinops on the same weights and data, to rounding.

    pip install '.[bench]'
    python benchmarks/curvature_against_torch.py [--rounds N] [--peer-python FILE]

A small convolutional network (a 3 x 3 convolution with stride 2, tanh, dense layer) and a wide dense one, float64 for
the agreement and float32 for the times; cross-entropy, 256 examples. PyTorch runs in a process of its own.
"""

import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from harness import peer, results
from harness.timing import in_turn, ratio, timed
from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator

EXAMPLES = 256
OPERATORS = {"Hessian": HessianOperator, "Gauss-Newton": GaussNewtonOperator}


def convolutional(dtype):
    """(Keras model, images)."""
    layers = [keras.layers.Conv2D(16, 3, strides=2, activation="tanh"), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((16, 16, 3), dtype=dtype), *layers, keras.layers.Dense(10)])
    return model, np.random.default_rng(0).normal(size=(EXAMPLES, 16, 16, 3)).astype(dtype)


def dense(dtype):
    """(Keras model, vectors)."""
    layers = [keras.layers.Dense(width, activation="tanh") for width in (256, 256)]
    model = keras.Sequential([keras.Input((784,), dtype=dtype), *layers, keras.layers.Dense(10)])
    return model, np.random.default_rng(0).normal(size=(EXAMPLES, 784)).astype(dtype)


NETWORKS = {"convolutional": convolutional, "dense": dense}


def prepared(network, name, dtype, folder, torch):
    """Our operator and a vector; the peer gets the same ones."""
    keras.config.set_dtype_policy(dtype)
    model, x = NETWORKS[network](dtype)
    y = np.random.default_rng(1).integers(0, 10, EXAMPLES)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    operator = OPERATORS[name](model, loss, (x, y), batch_size=EXAMPLES)
    vector = np.random.default_rng(2).normal(size=operator.shape[0]).astype(dtype)
    weights = {f"weight{number}": weight for number, weight in enumerate(model.get_weights())}
    np.savez(folder / "inputs.npz", x=x, y=y, vector=vector, **weights)
    torch.ask("build", network=network, operator=name, dtype=dtype)
    return operator, vector


def main():
    parser = results.parser(__doc__, rounds=20)
    peer.add_option(parser)
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])
    if not peer.installed("curvlinops", options.peer_python):
        raise SystemExit(
            "error: PyTorch and curvlinops are not installed: pip install '.[bench]', or name the Python of an "
            "environment that has them with --peer-python"
        )
    for package in ("torch", "curvlinops-for-pytorch"):
        report.versions[package] = peer.version(package, options.peer_python)

    errors = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with peer.Peer("curvlinops_products", folder, options.peer_python) as torch:
            for network in NETWORKS:
                for name in OPERATORS:
                    operator, vector = prepared(network, name, "float64", folder, torch)
                    torch.ask("seconds")
                    torch.ask("save")
                    expected = np.load(folder / "product.npy")
                    errors.append(np.abs(operator @ vector - expected).max() / np.abs(expected).max())
                    operator, vector = prepared(network, name, "float32", folder, torch)
                    ways = {
                        "idmatters_tf": timed(lambda o=operator, v=vector: o @ v),
                        "curvlinops": lambda: torch.ask("seconds"),
                    }
                    times = in_turn(ways, options.rounds, warm_up=1)
                    what = f"{name}, {network}, {len(vector):,} parameters"
                    report.add(f"{what}: ours", times["idmatters_tf"], "ms", 1e3)
                    faster = ratio(times["curvlinops"], times["idmatters_tf"])
                    report.add(f"{what}: curvlinops", times["curvlinops"], "ms", 1e3, ratio=faster)
    report.finish(f"Products in float64 differ by at most {max(errors):.1e} of the largest entry.")


if __name__ == "__main__":
    main()
