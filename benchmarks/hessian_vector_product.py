"""Claim: a Hessian-vector product of the 55-convolution network costs at most 2.8 gradients.

    python benchmarks/hessian_vector_product.py [--batch N] [--rounds N]

The network of Hardt & Ma's Table 1, 13,538,736 parameters, float32, cross-entropy without weight decay, random
images. `HessianOperator` and `GaussNewtonOperator` against the gradient by a plain `tf.function` with a GradientTape.
All are traced beforehand.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from harness import results
from harness.gradient import plain_gradient
from harness.timing import in_turn, ratio, timed
from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator
from models.cifar import identity_resnet


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--batch", type=int, default=32, help="images (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=9, help="per stage (default: %(default)s)")
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
    vector = rng.normal(size=hessian.shape[0]).astype(np.float32)

    ways = {
        "gradient": timed(plain_gradient(model, loss, x, y)),
        "Hessian-vector product": timed(lambda: hessian @ vector),
        "Gauss-Newton-vector product": timed(lambda: gauss_newton @ vector),
    }
    times = in_turn(ways, options.rounds, warm_up=1)
    for name, values in times.items():
        report.add(name, values, "s", ratio=ratio(values, times["gradient"]) if name != "gradient" else None)
    report.finish()


if __name__ == "__main__":
    main()
