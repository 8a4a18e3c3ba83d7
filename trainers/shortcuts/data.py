"""Data of Li et al.'s experiments: whitened inputs of low dimension and one-hot outputs.

Source: Li et al., *Demystifying ResNet*, appendix B: MNIST, whitened, the 10 greatest principal components, one-hot.
"""

import dataclasses
import hashlib

import numpy as np
from numpy.typing import NDArray

from idmatters_tf import linear

CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Problem:
    """Regression problem for networks that keep the dimension."""

    X: NDArray[np.float64]  # (d, m), one column per example
    Y: NDArray[np.float64]  # (d, m)
    origin: str

    @property
    def statistics(self) -> linear.Statistics:
        """Second moments of all examples."""
        return linear.sufficient_statistics(self.X, self.Y)

    def first(self, samples: int) -> "Problem":
        """Return the problem with the first `samples` examples."""
        return dataclasses.replace(self, X=self.X[:, :samples], Y=self.Y[:, :samples])

    @property
    def digest(self) -> str:
        """Checksum of the data."""
        return hashlib.sha256(self.X.tobytes() + self.Y.tobytes()).hexdigest()


def load(dataset: str, components: int, data_dir: str | None = None, download: bool = False) -> Problem:
    """Load and whiten a data set.

    Args:
        dataset: "mnist", or the built-in "digits-like".
        components: d, at least the number of classes, 10; outputs beyond the classes are zero.
        data_dir: see `idmatters_tf.data.mnist.load`.
        download: see `idmatters_tf.data.mnist.load`.

    Raises:
        idmatters_tf.data.images.DataError: MNIST is missing.
    """
    if dataset == "digits-like":
        inputs, labels = _digits_like()
        origin = "generated, 10,000 examples of ten Gaussian classes, seed 0"
    else:
        from idmatters_tf.data import mnist

        data = mnist.load(data_dir, download)
        inputs, labels = data.train_images.reshape(len(data.train_images), -1).T / 255.0, data.train_labels
        origin = data.origin
    # The components kept are far above rounding errors, and the SVD of MNIST takes ten times as long.
    X = linear.whiten(inputs, components, method="covariance").coordinates
    return Problem(X, np.eye(components)[:, labels], origin)


def _digits_like(samples: int = 10_000, dim: int = 40, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw ten Gaussian classes with a decreasing spectrum, like MNIST, which a linear map separates only partly."""
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1, dim + 1) ** -0.6
    labels = rng.integers(0, CLASSES, samples)
    means = rng.normal(size=(dim, CLASSES)) * spectrum[:, None]
    return means[:, labels] + rng.normal(size=(dim, samples)) * spectrum[:, None], labels
