"""Writes a matrix as a product of matrices near the identity, and looks at how near depth brings them.

    python examples/factorize_a_matrix.py [MATRIX.npy or MATRIX.txt] [--depths L ...]

Without a file it takes a random 6 x 6 matrix. Hardt & Ma's Theorem 2.1 in its working form: (I + A_l) ... (I + A_1) = R
with norms that fall as 1 / l.
"""

import argparse
import sys

import numpy as np

from idmatters_tf import linear


def load(path):
    if path is None:
        return np.random.default_rng(0).normal(size=(6, 6))
    return np.load(path, allow_pickle=False) if path.endswith(".npy") else np.loadtxt(path, ndmin=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrix", nargs="?", help="a square matrix, .npy or text (default: a random one)")
    parser.add_argument("--depths", type=int, nargs="+", default=[5, 10, 20, 50, 100, 1000])
    options = parser.parse_args()

    R = load(options.matrix)
    try:
        bounds = linear.factorization_bounds(R, options.depths[0])
    except ValueError as error:
        # A negative determinant is cured by one more dimension; a singular matrix is not.
        if "augment" not in str(error):
            sys.exit(f"error: {error}")
        print("the determinant is negative: one more dimension with -1 on its diagonal")
        R = linear.augment(R)
        bounds = linear.factorization_bounds(R, options.depths[0])
    scaled, factor = linear.scale_to_smallest_gamma(R)
    print(
        f"gamma = {bounds.gamma:.3f}; times {factor:.3g} it would be {linear.factorization_bounds(scaled, 5).gamma:.3f}"
    )
    print(f"{'depth':>6}{'largest norm':>14}{'lower bound':>13}{'theorem':>10}{'error of the product':>22}")
    for depth in options.depths:
        A = linear.factorize(R, depth)
        bounds = linear.factorization_bounds(R, depth)
        error = np.linalg.norm(linear.compose(A) - R) / np.linalg.norm(R)
        print(f"{depth:6}{linear.tensor_norm(A):14.5f}{bounds.lower:13.5f}{bounds.theorem:10.4f}{error:22.1e}")


if __name__ == "__main__":
    main()
