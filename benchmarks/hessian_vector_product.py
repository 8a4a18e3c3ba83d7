"""Claim: a Hessian-vector product of the 55-convolution network takes less time than 8/3 gradients.

    python benchmarks/hessian_vector_product.py [--batch N] [--vectors K] [--rounds N]

The network of Hardt & Ma's Table 1, 13,538,736 parameters, float32, cross-entropy without weight decay, random images.
`HessianOperator`, with one vector and with K vectors at once, and `GaussNewtonOperator` are compared with the gradient
by a plain `tf.function` with a GradientTape. All functions are traced beforehand.

For each convolution of the network, a gradient computes three convolutions: forward, backward to the input, and
backward to the kernel. A product with one vector computes eight, a product with K vectors 2 + 6 K: forward and backward
to the input once, and for each vector two of each of the three. This is 2.67 gradients for one vector, 2.17 per vector
for four, and 2 in the limit.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from harness import results
from harness.gradient import plain_gradient
from harness.timing import in_turn, ratio, seconds
from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator
from idmatters_tf.models.cifar import identity_resnet


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--batch", type=int, default=32, help="number of images (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=9, help="residual blocks per stage (default: %(default)s)")
    parser.add_argument("--vectors", type=int, default=4, help="vectors per product (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])

    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.batch, 32, 32, 3)).astype(np.float32)
    y = rng.integers(0, 10, options.batch)
    model = identity_resnet(blocks=options.blocks)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    settings = {"regularization": False, "check": False, "batch_size": options.batch}
    hessian = HessianOperator(model, loss, (x, y), **settings)
    gauss_newton = GaussNewtonOperator(model, loss, (x, y), **settings)
    vectors = rng.normal(size=(options.vectors, hessian.shape[0])).astype(np.float32)
    vector = vectors[0]
    several = f"Hessian times {options.vectors} vectors at once, each"

    gradient = plain_gradient(model, loss, x, y)
    ways = {
        "gradient": lambda: seconds(gradient),
        "Hessian-vector product": lambda: seconds(lambda: hessian @ vector),
        several: lambda: seconds(lambda: hessian @ vectors.T) / options.vectors,
        "Gauss-Newton-vector product": lambda: seconds(lambda: gauss_newton @ vector),
    }
    times = in_turn(ways, options.rounds, warm_up=1)
    for name, values in times.items():
        report.add(name, values, "s", ratio=ratio(values, times["gradient"]) if name != "gradient" else None)
    report.finish()


if __name__ == "__main__":
    main()
