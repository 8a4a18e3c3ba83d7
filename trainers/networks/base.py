"""What every network of the training programs has: options, a title, a recipe for each program, and `build`."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting

if TYPE_CHECKING:
    import keras

# The program whose defaults a recipe changes: trainers.cifar or trainers.imagenet.
Scale = Literal["cifar", "imagenet"]


@dataclasses.dataclass(frozen=True)
class Network(abc.ABC):
    """The options of one network. Subclasses add fields and are listed in `trainers.networks.NETWORKS`.

    Attributes:
        model: the key in `NETWORKS`.
        recipes: for each program, the values in which the recipe of the network's own paper differs from the program's
            defaults, by option.
        has_zero_kernels: True where kernels of blocks start at zero; optimizers that keep norms cannot train them.
    """

    recipes: ClassVar[Mapping[Scale, Mapping[str, Any]]]
    model: str = setting(
        "identity",
        help="the paper's network; a normalizer-free network for fast training (docs/explanation/fast.md); or a "
        "baseline of the paper's Table 2 with the recipe of its own paper",
        common=True,
    )

    @classmethod
    def recipe(cls, scale: Scale, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults that the network brings, by option.

        Args:
            scale: the program.
            given: the values of the preset and of the command line, on which defaults may depend.
        """
        return dict(cls.recipes[scale])

    @property
    def has_zero_kernels(self) -> bool:
        return False

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """The network in a few words."""

    @abc.abstractmethod
    def build(
        self, input_shape: Sequence[int | None], classes: int, weight_decay: float, seed: int, replicas: int = 1
    ) -> "keras.Model":
        """Build the network under the dtype policy in force.

        Args:
            input_shape: `(rows, cols, channels)`.
            classes: the number of classes.
            weight_decay: the rate of the penalty that is part of the loss.
            seed: every kernel's values follow from it.
            replicas: number of replicas; with several, batch normalisation takes its statistics over all of them.
        """


@dataclasses.dataclass(frozen=True)
class Stages(Network):
    """The sizes of a network of a stem and stages of residual blocks."""

    blocks: tuple[int, ...] = setting(
        (9,),
        help="residual blocks per stage, or one number for all stages",
        metavar="N",
        at_least=1,
        at_most=10_000,
        common=True,
    )
    widths: tuple[int, ...] = setting(
        (64, 128, 256),
        help="channels per stage",
        metavar="C",
        at_least=1,
        at_most=100_000,
        common=True,
    )
    stem: int = setting(16, help="channels of the first convolution", metavar="C", at_least=1, at_most=100_000)
    stem_size: int = setting(3, help="rows and columns of the first kernel", metavar="N", at_least=1, at_most=99)
    stem_strides: int = setting(1, help="stride of the first convolution", metavar="N", at_least=1, at_most=99)

    def __post_init__(self) -> None:
        if len(self.blocks) not in (1, len(self.widths)):
            raise UsageError(
                f"--blocks and --widths must name as many stages, or --blocks one number for all. Received: --blocks "
                f"{' '.join(map(str, self.blocks))} --widths {' '.join(map(str, self.widths))}"
            )

    @property
    def blocks_of_stages(self) -> tuple[int, ...]:
        """The number of residual blocks of each stage."""
        return self.blocks * len(self.widths) if len(self.blocks) == 1 else self.blocks

    @property
    def title(self) -> str:
        blocks = "/".join(map(str, self.blocks_of_stages))
        return f"blocks {blocks} of widths {'/'.join(map(str, self.widths))}"

    def check_not_decreasing(self, reason: str, remedy: str = "") -> None:
        """Raise UsageError for a stage with fewer channels than what comes before it."""
        channels = [self.stem, *self.widths]
        if channels != sorted(channels):
            raise UsageError(
                f"--stem and --widths must not decrease with {reason}. Received: --stem {self.stem} --widths "
                f"{' '.join(map(str, self.widths))}{remedy}"
            )


def batch_norm(replicas: int) -> Literal["batch", "synchronized"]:
    """Return the models' `norm`: with several replicas, the statistics are those of the global batch."""
    return "batch" if replicas == 1 else "synchronized"
