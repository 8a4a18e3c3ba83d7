"""Evaluate the certificate of gradient dominance along your own gradient descent.

    python examples/certificate_along_descent.py [--dim D] [--depth L] [--rate X] [--steps N]

While all residual layers have spectral norm below 1, inequality (2.3) of Hardt & Ma bounds the squared gradient from
below by a multiple of the excess risk, so there is no bad critical point. The descent is a plain NumPy loop. Takes a
second.
"""

import argparse

import numpy as np

from idmatters_tf import linear


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=5, help="dimension (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=20, help="number of layers (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.003, help="learning rate (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="steps of gradient descent (default: %(default)s)")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    R = linear.compose(0.3 * rng.normal(size=(4, options.dim, options.dim)) / options.dim**0.5)
    covariance = np.diag(np.linspace(0.5, 2.0, options.dim))
    A = np.zeros((options.depth, options.dim, options.dim))

    print(f"{'step':>6}{'excess risk':>14}{'tau':>8}{'squared gradient':>19}{'certified at least':>20}")
    for step in range(options.steps + 1):
        if step % max(1, options.steps // 10) == 0:
            certificate = linear.gradient_dominance(A, R, covariance)
            excess = linear.population_risk(A, R, covariance, noise_variance=0.0)
            verdict = "" if certificate.tau < 1 else "   outside the ball: not certified"
            print(
                f"{step:6}{excess:14.3e}{certificate.tau:8.3f}{certificate.gradient_norm_squared:19.3e}"
                f"{certificate.lower_bound:20.3e}{verdict}"
            )
            if certificate.tau < 1 and not certificate.holds:
                raise SystemExit("error: the inequality does not hold. Please report this.")
        A -= options.rate * linear.risk_gradient(A, R, covariance)


if __name__ == "__main__":
    main()
