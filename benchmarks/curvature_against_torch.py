"""Claim: products are as accurate as in curvlinops and hessian-eigenthings, and faster except for tiny models.

    pip install '.[bench]'
    python benchmarks/curvature_against_torch.py [--rounds N] [--networks NAME ...] [--peer-python FILE]

Networks of three sizes with the same weights and data: a 3 x 3 convolution with stride 2, tanh and a dense layer (618
parameters, 256 images of 16 x 16); three dense layers with tanh (269,322 parameters, 256 vectors); six 3 x 3
convolutions with ReLU in three stages (1.1 million parameters, 32 images of 32 x 32). The loss is cross-entropy.
Products are compared in float64 and timed in float32. PyTorch runs in a separate process.
"""

import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from harness import peer, results
from harness.timing import in_turn, ratio, seconds
from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator

OPERATORS = {"Hessian": HessianOperator, "Gauss-Newton": GaussNewtonOperator}
LIBRARIES = {"curvlinops": "curvlinops-for-pytorch", "hessian-eigenthings": "hessian-eigenthings"}


def convolutional(dtype):
    """Return (Keras model, number of examples)."""
    layers = [keras.layers.Conv2D(16, 3, strides=2, activation="tanh"), keras.layers.GlobalAveragePooling2D()]
    return keras.Sequential([keras.Input((16, 16, 3), dtype=dtype), *layers, keras.layers.Dense(10)]), 256


def dense(dtype):
    """Return (Keras model, number of examples)."""
    layers = [keras.layers.Dense(width, activation="tanh") for width in (256, 256)]
    return keras.Sequential([keras.Input((784,), dtype=dtype), *layers, keras.layers.Dense(10)]), 256


def deep(dtype):
    """Return (Keras model, number of examples)."""
    layers = []
    for stage, width in enumerate((64, 128, 256)):
        layers += [keras.layers.Conv2D(width, 3, padding="same", activation="relu") for _ in range(2)]
        layers.append(keras.layers.AveragePooling2D(2) if stage < 2 else keras.layers.GlobalAveragePooling2D())
    return keras.Sequential([keras.Input((32, 32, 3), dtype=dtype), *layers, keras.layers.Dense(10)]), 32


NETWORKS = {"convolutional": convolutional, "dense": dense, "deep": deep}


def prepare(network, name, dtype, folder, torch):
    """Return an operator and a vector, and send the same model and vector to the peer."""
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    model, examples = NETWORKS[network](dtype)
    x = np.random.default_rng(0).normal(size=(examples, *model.input_shape[1:])).astype(dtype)
    y = np.random.default_rng(1).integers(0, 10, examples)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    operator = OPERATORS[name](model, loss, (x, y), batch_size=examples, check=False)
    vector = np.random.default_rng(2).normal(size=operator.shape[0]).astype(dtype)
    weights = {f"weight{number}": weight for number, weight in enumerate(model.get_weights())}
    np.savez(folder / "inputs.npz", x=x, y=y, vector=vector, **weights)
    torch.ask("build", network=network, operator=name, dtype=dtype)
    return operator, vector


def main():
    parser = results.parser(__doc__, rounds=20)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="(default: all)")
    peer.add_option(parser)
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])
    for package in ("torch", *LIBRARIES.values()):
        report.versions[package] = peer.version(package, options.peer_python)
        if report.versions[package] is None:
            raise SystemExit(
                f"error: {package} is not installed. Run pip install '.[bench]', or set --peer-python to an "
                f"interpreter with PyTorch, curvlinops and hessian-eigenthings."
            )

    errors = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with peer.Peer("torch_products", folder, options.peer_python) as torch:
            for network in options.networks:
                for name in OPERATORS:
                    operator, vector = prepare(network, name, "float64", folder, torch)
                    ours = operator @ vector
                    for library in LIBRARIES:
                        torch.ask("save", library=library)
                        expected = np.load(folder / "product.npy")
                        errors.append(np.abs(ours - expected).max() / np.abs(expected).max())
                    operator, vector = prepare(network, name, "float32", folder, torch)
                    ways = {"ours": lambda o=operator, v=vector: seconds(lambda: o @ v)}
                    for library in LIBRARIES:
                        ways[library] = lambda library=library: torch.ask("seconds", library=library)
                    times = in_turn(ways, options.rounds, warm_up=1)
                    what = f"{name}, {network}, {len(vector):,} parameters"
                    for way, values in times.items():
                        slower = None if way == "ours" else ratio(values, times["ours"])
                        report.add(f"{what}: {way}", values, "ms", 1e3, ratio=slower)
    report.finish(f"Products in float64 differ by at most {max(errors):.1e} of the largest entry.")


if __name__ == "__main__":
    main()
