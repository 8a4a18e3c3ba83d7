"""Write a matrix as a product of matrices near the identity; the more factors, the nearer they are.

    python examples/factorize_a_matrix.py [MATRIX.npy or MATRIX.txt] [--depths L ...]

Without a file the matrix is a random one, 6 x 6. The construction proves Hardt & Ma's Theorem 2.1:
(I + A_l) ... (I + A_1) = R with norms that fall as 1 / l. Takes a second.
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
    parser.add_argument("matrix", nargs="?", help="square matrix, .npy or text (default: a random one)")
    parser.add_argument("--depths", type=int, nargs="+", default=[5, 10, 20, 50, 100, 1000], help="numbers of factors")
    options = parser.parse_args()

    R = load(options.matrix)
    try:
        bounds = linear.factorization_bounds(R, options.depths[0])
    except ValueError as error:
        # One more dimension makes a negative determinant positive. For a singular matrix there is no remedy.
        if "augment" not in str(error):
            sys.exit(f"error: {error}")
        print("the determinant is negative: augmented by one dimension with -1 on the diagonal")
        R = linear.augment(R)
        bounds = linear.factorization_bounds(R, options.depths[0])
    print(f"gamma = {bounds.gamma:.3f}; a multiple of R has {np.log(np.linalg.cond(R)) / 2:.3f}")
    print(f"{'depth':>6}{'largest norm':>14}{'lower bound':>13}{'theorem':>10}{'error of the product':>22}")
    for depth in options.depths:
        A = linear.factorize(R, depth)
        bounds = linear.factorization_bounds(R, depth)
        error = np.linalg.norm(linear.compose(A) - R) / np.linalg.norm(R)
        print(f"{depth:6}{linear.tensor_norm(A):14.5f}{bounds.lower:13.5f}{bounds.theorem:10.4f}{error:22.1e}")


if __name__ == "__main__":
    main()
