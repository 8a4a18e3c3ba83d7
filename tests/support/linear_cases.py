"""Random problems and oracles for the tests of `idmatters_tf.linear`."""

import numpy as np


def random_covariance(rng, d, rank=None):
    """Return a covariance of random rank and scale."""
    factor = rng.normal(size=(d, rank or rng.integers(1, d + 1))) * rng.choice([0.3, 1.0, 3.0])
    return factor @ factor.T


def random_matrix(rng, d, condition=1e3):
    """Return R with a random condition number up to `condition` and det R > 0."""
    U, V = (np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(2))
    if np.linalg.det(U) * np.linalg.det(V) < 0:
        U[:, 0] *= -1
    return U * np.exp(rng.uniform(-0.5, 0.5, d) * rng.uniform(0, np.log(condition))) @ V.T


def random_data(rng, d, samples=None):
    """Return X and Y of shape (d, samples)."""
    samples = samples or rng.integers(1, 3 * d + 2)
    return rng.normal(size=(d, samples)), rng.normal(size=(d, samples))


def central_differences(function, x, step=1e-4):
    """Return the derivatives of a function by each entry of an array, exact for polynomials of degree 2."""
    derivatives = []
    for entry in np.ndindex(x.shape):
        there, back = x.copy(), x.copy()
        there[entry] += step
        back[entry] -= step
        derivatives.append((function(there) - function(back)) / (2 * step))
    return np.reshape(derivatives, x.shape + np.shape(derivatives[0]))
