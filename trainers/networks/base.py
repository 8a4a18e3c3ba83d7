"""Base classes of networks: options, title and `builder`."""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting

if TYPE_CHECKING:
    import keras

# Batch normalization with the statistics of a replica or of the global batch.
Norm = Literal["batch", "synchronized"]


@dataclasses.dataclass(frozen=True)
class Network(abc.ABC):
    """Options of a network. Subclasses add fields and are listed in `trainers.networks.NETWORKS`.

    Attributes:
        model: key in `NETWORKS`.
    """

    model: str = setting(
        "identity",
        help="the paper's network; a normalizer-free network for fast training (docs/explanation/fast.md); or a "
        "baseline of the paper's Table 2 with the recipe of its own paper",
        common=True,
    )

    @property
    def has_zero_kernels(self) -> bool:
        """True if kernels of blocks start at zero; optimizers that keep norms cannot train them."""
        return False

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """Short description of the network."""

    def build(
        self, input_shape: Sequence[int | None], classes: int, weight_decay: float, seed: int, replicas: int = 1
    ) -> "keras.Model":
        """Build the network under the dtype policy in force.

        Args:
            input_shape: `(rows, cols, channels)`.
            classes: number of classes.
            weight_decay: coefficient of the penalty in the loss.
            seed: seed of all initial values.
            replicas: number of replicas; with several, batch normalization uses the statistics of all replicas.
        """
        norm = "batch" if replicas == 1 else "synchronized"
        return self._builder(norm)(tuple(input_shape), classes, weight_decay=weight_decay, seed=seed)

    @abc.abstractmethod
    def _builder(self, norm: Norm) -> functools.partial:
        """Return the function of `idmatters_tf.models` that builds the network, with the options as its arguments."""


@dataclasses.dataclass(frozen=True)
class Stages(Network):
    """Sizes of a network with a stem and stages of residual blocks."""

    blocks: tuple[int, ...] = setting(
        (9,), help="residual blocks per stage, or one number for all stages", at_least=1, at_most=10_000, common=True
    )
    widths: tuple[int, ...] = setting(
        (64, 128, 256), help="channels per stage", metavar="C", at_least=1, at_most=100_000, common=True
    )
    stem: int = setting(16, help="channels of the first convolution", metavar="C", at_least=1, at_most=100_000)
    stem_size: int = setting(3, help="rows and columns of the first kernel", at_least=1, at_most=99)
    stem_strides: int = setting(1, help="stride of the first convolution", at_least=1, at_most=99)

    def __post_init__(self) -> None:
        if len(self.blocks) not in (1, len(self.widths)):
            raise UsageError(
                f"--blocks must have one value, or as many as --widths. Received: --blocks "
                f"{' '.join(map(str, self.blocks))} --widths {' '.join(map(str, self.widths))}"
            )

    @property
    def blocks_of_stages(self) -> tuple[int, ...]:
        """Number of residual blocks of each stage."""
        return self.blocks * len(self.widths) if len(self.blocks) == 1 else self.blocks

    @property
    def title(self) -> str:
        """Short description of the network."""
        blocks = "/".join(map(str, self.blocks_of_stages))
        return f"blocks {blocks} of widths {'/'.join(map(str, self.widths))}"

    def check_not_decreasing(self, reason: str, remedy: str = "") -> None:
        """Raise UsageError if a stage has fewer channels than the stage or stem before it."""
        channels = [self.stem, *self.widths]
        if channels != sorted(channels):
            raise UsageError(
                f"--stem and --widths must not decrease with {reason}. Received: --stem {self.stem} --widths "
                f"{' '.join(map(str, self.widths))}{remedy}"
            )
