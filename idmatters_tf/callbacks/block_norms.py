"""The norms that the theorems are about, during `model.fit`."""

import dataclasses
from typing import Any

import numpy as np

from idmatters_tf.callbacks._monitor import Monitor
from idmatters_tf.isometry.norms import branch_bounds, kernel_norms, summarize_norms


@dataclasses.dataclass(frozen=True)
class NormsMeasurement:
    """The norms of a model's residual blocks at one moment.

    Attributes:
        blocks: by name, see `idmatters_tf.isometry.block_norms`.
        bounds: by name, see `idmatters_tf.isometry.branch_bounds`.
    """

    blocks: dict[str, dict[str, float]]
    bounds: dict[str, float]

    @property
    def tau(self) -> float:
        """The largest bound of a branch: |||A||| of linear residual layers; NaN where no block has one."""
        known = [bound for bound in self.bounds.values() if np.isfinite(bound)]
        return max(known, default=float("nan"))

    @property
    def inside(self) -> bool:
        """Whether tau is below 1 and known of every block."""
        return bool(np.isfinite(list(self.bounds.values())).all() and self.tau < 1)

    def summary(self) -> dict[str, float]:
        """Mean Frobenius norm, largest spectral norm and, where it is known, tau and whether it is below 1."""
        numbers = {
            "mean_frobenius": float(np.mean([norms["frobenius"] for norms in self.blocks.values()])),
            "largest_spectral": max(norms["spectral"] for norms in self.blocks.values()),
        }
        if np.isfinite(self.tau):
            numbers |= {"tau": self.tau, "inside_ball": float(self.inside)}
        return numbers


class BlockNorms(Monitor[NormsMeasurement]):
    """Measures the norms of the kernels of each residual block every so many epochs or steps, and before the first.

    tau = |||A||| is the largest spectral norm of linear residual layers h + A h. While it is below 1, Hardt & Ma's
    gradient dominance (2.3, version 3) certifies that a small gradient means a small excess risk, see
    `idmatters_tf.linear.gradient_dominance`; once it has reached 1 nothing is certified. For blocks with activations
    tau is a bound on the branches' Lipschitz constants instead: below 1 every block is invertible, which is not what
    the theorem is about.

    TensorBoard shows `norms/mean_frobenius`, `norms/largest_spectral`, `norms/tau`, `norms/inside_ball`, and for each
    block `norms_frobenius/BLOCK`, `norms_spectral/BLOCK` and `norms_bound/BLOCK`.

    Args:
        every: epochs between measurements, or steps, as in "100 steps".
        log_dir: of TensorBoard's files (written by TensorFlow); none are written if None.
        tolerance: of the spectral norms of convolutions.

    Attributes:
        measurements: by the number of epochs or steps done, `NormsMeasurement`.

    Raises:
        ValueError: when `fit` begins, for a model without residual blocks.
    """

    prefix = "norms"

    def __init__(self, every: int | str = 1, log_dir: Any = None, tolerance: float = 1e-3):
        super().__init__(every, log_dir)
        self._tolerance = tolerance

    @property
    def left_ball(self) -> int | None:
        """Number of epochs or steps after which tau was first seen at 1 or above; None if never."""
        return next((number for number, measured in sorted(self.measurements.items()) if measured.tau >= 1), None)

    def measure(self) -> NormsMeasurement:
        model: Any = self.model
        norms = kernel_norms(model, self._tolerance)
        if not norms:
            raise ValueError(
                f"BlockNorms needs residual layers of idmatters_tf.layers, or sums x + f(x) of Conv2D or Dense layers "
                f"in a functional model. Received: {model.name!r}, which has none."
            )
        blocks = {name: summarize_norms(kernels) for name, kernels in norms.items()}
        return NormsMeasurement(blocks, branch_bounds(model, norms))

    def logged(self, measured: NormsMeasurement) -> dict[str, float]:
        return measured.summary()

    def scalars(self, measured: NormsMeasurement) -> dict[str, float]:
        found = super().scalars(measured)
        for block, norms in measured.blocks.items():
            found |= {f"{self.prefix}_{kind}/{block}": value for kind, value in norms.items()}
        bounds = {name: bound for name, bound in measured.bounds.items() if np.isfinite(bound)}
        return found | {f"{self.prefix}_bound/{name}": bound for name, bound in bounds.items()}
