"""Claim: starting from the last eigenvectors, a search for eigenvalues takes fewer products if they changed little.

    python benchmarks/warm_starts.py [--dataset cifar10 --data-dir DIR] [--every N] [--measurements N] [--tolerance T]

The benchmark trains a small identity network of 19,194 parameters on the built-in images or CIFAR-10 with momentum and
batches of 128. At regular intervals it counts the Hessian-vector products on 128 training images that `top_eigenpairs`
takes for one and for three eigenvalues at each end: from random vectors, and from the eigenvectors of the previous
measurement.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from harness import results
from harness.sittings import load
from idmatters_tf.curvature import HessianOperator, top_eigenpairs
from idmatters_tf.models.cifar import identity_resnet

COUNTS, BATCH, SAMPLE = (1, 3), 128, 128


def main():
    parser = results.parser(__doc__, rounds=1)
    parser.add_argument("--dataset", choices=("shapes", "cifar10"), default="shapes", help="(default: %(default)s)")
    parser.add_argument("--data-dir", help="folder of CIFAR-10's files")
    parser.add_argument("--every", type=int, default=20, help="steps between measurements (default: %(default)s)")
    parser.add_argument(
        "--measurements", type=int, default=6, help="measurements after the first one (default: %(default)s)"
    )
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative tolerance (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])

    data = load(options)
    images = data.train_images.astype(np.float32)
    images, labels = (images - images.mean()) / images.std(), np.asarray(data.train_labels)
    model = identity_resnet(blocks=1, widths=(16, 32), stem=16, head="trained", weight_decay=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    operator = HessianOperator(model, loss, (images[:SAMPLE], labels[:SAMPLE]), check=False)

    rng = np.random.default_rng(0)
    products = {(count, way): [] for count in COUNTS for way in ("random", "last")}
    vectors = {}
    for measurement in range(options.measurements + 1):
        for count in COUNTS:
            for way in ("random", "last"):
                if way == "last" and not measurement:
                    continue
                start = vectors[count] if way == "last" else None
                found = top_eigenpairs(operator, count, "both", options.tolerance, start=start)
                products[count, way].append(found.products)
            last = [products[count, way][-1:] for way in ("random", "last")]
            where = f"step {measurement * options.every}, {count} at each end"
            print(f"{where}: loss {operator.loss():.3f}, largest {found.values[0]:.3f}, products {last}", flush=True)
            vectors[count] = found.vectors
        for _ in range(options.every if measurement < options.measurements else 0):
            rows = rng.choice(len(images), BATCH, replace=False)
            model.train_on_batch(images[rows], labels[rows])

    for count in COUNTS:
        # The first measurement has no previous eigenvectors.
        cold, warm = products[count, "random"][1:], products[count, "last"]
        report.add(f"{count} at each end, random start", cold, "products")
        saved = float(np.median(np.divide(warm, cold)))
        report.add(f"{count} at each end, last eigenvectors", warm, "products", ratio=saved)
    report.finish(f"{options.every} steps between measurements, tolerance {options.tolerance:g}.")


if __name__ == "__main__":
    main()
