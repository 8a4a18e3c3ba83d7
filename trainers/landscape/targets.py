"""Linear maps to be learned by the networks of `trainers.landscape`."""

import dataclasses
import hashlib
import itertools
import pathlib
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from idmatters_tf import linear
from idmatters_tf.linear._arguments import real_array

TargetsByName = Mapping[str, NDArray[np.float64]]

# In units of the inverse of the largest curvature at the optimum of smallest norm: stable, and close to the fastest
# rate.
RATE = 0.3

# In this range, the fourth powers of singular values, which occur in squared gradients, are far from overflow.
SMALLEST, LARGEST = 1e-60, 1e60


@dataclasses.dataclass(frozen=True)
class Targets:
    """Maps R by name, (d, d) each."""

    positive: TargetsByName  # det R > 0
    negative: TargetsByName  # det R < 0
    origin: str

    @property
    def both(self) -> TargetsByName:
        """All maps, with alternating signs, so that the first few have both."""
        pairs = itertools.zip_longest(self.positive.items(), self.negative.items())
        return dict(item for pair in pairs for item in pair if item)

    @property
    def digest(self) -> str:
        """Return a checksum of all maps."""
        maps = [*self.positive.values(), *self.negative.values()]
        return hashlib.sha256(b"".join(R.tobytes() for R in maps)).hexdigest()


def random_target(dim: int, condition: float, determinant: int, seed: int) -> NDArray[np.float64]:
    """Return R = U K V^T with Haar-distributed U and V and logarithmically spaced singular values of smallest gamma.

    `condition` is sigma_max / sigma_min, and `determinant` is the sign of det R.
    """
    U, V = linear.initial_weights("orthogonal", 2, 1, dim, seed=seed)[:, 0]
    spread = np.linspace(0.5, -0.5, dim) if dim > 1 else np.zeros(1)
    R = U * condition**spread @ V.T
    if np.sign(np.linalg.slogdet(R)[0]) != determinant:
        R[:, 0] = -R[:, 0]
    return R


def random_targets(dim: int, conditions: list[float], determinant: str, seeds: int) -> Targets:
    """Return `seeds` random targets of each condition number and sign; for d = 1 the only condition number is 1."""
    conditions = [1.0] if dim == 1 else conditions
    positive, negative = (
        {
            f"κ = {condition:g}, det {symbol} 0, seed {seed}": random_target(dim, condition, sign, seed)
            for seed in range(seeds)
            for condition in conditions
            if determinant in (word, "both")
        }
        for sign, symbol, word in ((1, ">", "positive"), (-1, "<", "negative"))
    )
    return Targets(positive, negative, "random")


def read_target(path: str) -> Targets:
    """Read one matrix from a file, .npy or text.

    Raises:
        OSError: the file does not exist or cannot be read.
        ValueError: the file does not contain a square, non-singular matrix of real numbers, or its squares over- or
            underflow.
    """
    with warnings.catch_warnings():
        # The error below reports an empty text file.
        warnings.simplefilter("ignore", UserWarning)
        R = _read_npy(path) if path.endswith(".npy") else np.loadtxt(path, ndmin=2)
    R = real_array("R", R, ("d", "d"))
    # Raises an error for singular matrices, in units of the largest entry. The scale is checked below.
    linear.scale_to_smallest_gamma(np.ldexp(R, -np.frexp(np.abs(R).max())[1]))
    largest, smallest = np.linalg.svd(R, compute_uv=False)[[0, -1]]
    if not (smallest >= SMALLEST and largest <= LARGEST):
        raise ValueError(
            f"its singular values must be between {SMALLEST:g} and {LARGEST:g}. Received: from {smallest:.3g} to "
            f"{largest:.3g}. Multiply the matrix by a constant."
        )
    name = pathlib.Path(path).name
    if np.linalg.slogdet(R)[0] > 0:
        return Targets({name: R}, {}, path)
    return Targets({}, {name: R}, path)


def _read_npy(path: str) -> NDArray:
    try:
        # Mapped, not read: the size in the header may exceed that of the file, or the memory.
        return np.load(path, allow_pickle=False, mmap_mode="r")
    except EOFError as error:
        raise ValueError("the file is empty.") from error


def learning_rate(R: NDArray[np.float64], depth: int) -> float:
    """Return a rate for L = f / 2, whose curvature at a balanced optimum is at most about depth * sigma_max(R)^2."""
    return RATE / (depth * max(float(np.linalg.norm(R, 2)), 1.0) ** 2)
