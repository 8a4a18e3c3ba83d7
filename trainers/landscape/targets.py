"""Linear maps to be learned by the networks of `trainers.landscape`."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from idmatters_tf import linear

TargetsByName = Mapping[str, NDArray[np.float64]]

# In units of the inverse of the largest curvature at the optimum of smallest norm: stable, and close to the fastest
# rate.
RATE = 0.3


@dataclasses.dataclass(frozen=True)
class Targets:
    """Maps R by name, (d, d) each."""

    maps: TargetsByName
    origin: str = "random"

    def with_sign(self, sign: int) -> TargetsByName:
        """Return the maps whose determinant has this sign, 1 or -1."""
        return {name: R for name, R in self.maps.items() if np.linalg.slogdet(R)[0] == sign}

    @property
    def digest(self) -> str:
        """Checksum of all maps."""
        return hashlib.sha256(b"".join(R.tobytes() for R in self.maps.values())).hexdigest()


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


def random_targets(dim: int, conditions: Sequence[float], seeds: int) -> Targets:
    """Return `seeds` random targets of each condition number and sign; for d = 1 the only condition number is 1."""
    return Targets(
        {
            f"κ = {condition:g}, det {symbol} 0, seed {seed}": random_target(dim, condition, sign, seed)
            for seed in range(seeds)
            for condition in ([1.0] if dim == 1 else conditions)
            for symbol, sign in ((">", 1), ("<", -1))
        }
    )


def learning_rate(R: NDArray[np.float64], depth: int) -> float:
    """Return a rate for L = f / 2, whose curvature at a balanced optimum is at most about depth * sigma_max(R)^2."""
    return RATE / (depth * max(float(np.linalg.norm(R, 2)), 1.0) ** 2)
