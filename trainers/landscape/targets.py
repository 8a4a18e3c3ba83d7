"""The linear maps that the networks of `trainers.landscape` are to learn."""

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

# Of the largest curvature at the optimum of smallest norm: far from divergence, near enough to the fastest rate.
RATE = 0.3

# A target counts as reached at this risk.
REACHED = 1e-8

# Between these the fourth powers of singular values, of which squared gradients are made, are far from overflow.
SMALLEST, LARGEST = 1e-60, 1e60


@dataclasses.dataclass(frozen=True)
class Targets:
    """The maps R by name, (d, d) each.

    Attributes:
        positive, negative: those with det R > 0, and with det R < 0.
        origin: where they come from.
    """

    positive: TargetsByName
    negative: TargetsByName
    origin: str

    @property
    def both(self) -> TargetsByName:
        """All of them, the signs in alternation, so that the first few have both."""
        pairs = itertools.zip_longest(self.positive.items(), self.negative.items())
        return dict(item for pair in pairs for item in pair if item)

    def digest(self) -> str:
        """A checksum of all of them."""
        maps = [*self.positive.values(), *self.negative.values()]
        return hashlib.sha256(b"".join(R.tobytes() for R in maps)).hexdigest()


def random_target(dim: int, condition: float, determinant: int, seed: int) -> NDArray[np.float64]:
    """R = U K V^T with Haar-distributed U and V and singular values evenly spread in logarithm, gamma smallest.

    Args:
        dim: d.
        condition: sigma_max / sigma_min; 1 for d = 1.
        determinant: +1 or -1, the sign of det R.
        seed: of NumPy's generator.

    Returns:
        (d, d) float64.
    """
    U, V = linear.initial_weights("orthogonal", 2, 1, dim, seed=seed)[:, 0]
    spread = np.linspace(0.5, -0.5, dim) if dim > 1 else np.zeros(1)
    R = U * condition**spread @ V.T
    if np.sign(np.linalg.slogdet(R)[0]) != determinant:
        R[:, 0] = -R[:, 0]
    return R


def random_targets(dim: int, conditions: list[float], determinant: str, seeds: int) -> Targets:
    """Random targets of each condition number and sign.

    Args:
        dim: d; for d = 1 the only condition number is 1.
        conditions: sigma_max / sigma_min.
        determinant: "positive", "negative" or "both".
        seeds: how many targets of each kind.
    """
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
    """One matrix from a file, .npy or text.

    Raises:
        OSError: the file does not exist or cannot be read.
        ValueError: it holds no square, non-singular matrix of real numbers whose squares neither over- nor underflow.
    """
    with warnings.catch_warnings():
        # That a text file is empty is said by the error below.
        warnings.simplefilter("ignore", UserWarning)
        R = _read_npy(path) if path.endswith(".npy") else np.loadtxt(path, ndmin=2)
    R = real_array("R", R, ("d", "d"))
    # Refuses singular matrices, in units of the largest entry: the scale has an error of its own below.
    linear.scale_to_smallest_gamma(np.ldexp(R, -np.frexp(np.abs(R).max())[1]))
    largest, smallest = np.linalg.svd(R, compute_uv=False)[[0, -1]]
    if not (smallest >= SMALLEST and largest <= LARGEST):
        raise ValueError(
            f"its singular values must lie between {SMALLEST:g} and {LARGEST:g}, because the risk holds their squares. "
            f"Received: from {smallest:.3g} to {largest:.3g}. Multiply the matrix by a constant."
        )
    name = pathlib.Path(path).name
    if np.linalg.slogdet(R)[0] > 0:
        return Targets({name: R}, {}, path)
    return Targets({}, {name: R}, path)


def _read_npy(path: str) -> NDArray:
    try:
        # Mapped, not read: a header may promise more than the file holds, or than fits into memory.
        return np.load(path, allow_pickle=False, mmap_mode="r")
    except EOFError as error:
        raise ValueError("the file is empty.") from error


def learning_rate(R: NDArray[np.float64], depth: int) -> float:
    """Return a rate for L = f / 2: the curvature at a balanced optimum is at most about depth * sigma_max(R)^2."""
    return RATE / (depth * max(float(np.linalg.norm(R, 2)), 1.0) ** 2)


def first_reached(risks: NDArray[np.float64]) -> int | None:
    """Return the position of the first risk of at most `REACHED`, or None."""
    found = np.flatnonzero(risks <= REACHED)
    return int(found[0]) if found.size else None


def speed(risks: NDArray[np.float64]) -> tuple[int, float]:
    """Return a key that sorts runs: the first to reach the target, then the lowest risk at the end.

    Args:
        risks: (records,), not finite from a divergence on.
    """
    reached, last = first_reached(risks), float(risks[-1])
    return len(risks) if reached is None else reached, last if np.isfinite(last) else np.inf
