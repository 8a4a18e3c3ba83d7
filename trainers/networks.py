"""Networks of the training programs: options and construction, by the names of `--model`."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from idmatters_tf.models.layout import Head, Initializer, Layout, Shortcut, densenet_layers, resnet_blocks
from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting

if TYPE_CHECKING:
    import keras

# Batch normalization with the statistics of a replica or of the global batch.
Norm = Literal["batch", "synchronized"]


@dataclasses.dataclass(frozen=True)
class Network(abc.ABC):
    """Options of a network, which are arguments of the function that builds it. Subclasses are listed in `NETWORKS`."""

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
        """Build the network for images `(rows, cols, channels)` under the dtype policy in force.

        The coefficient `weight_decay` is that of a penalty in the loss. With several replicas, batch normalization uses
        the statistics of all of them.
        """
        norm = "batch" if replicas == 1 else "synchronized"
        return self._build(norm, tuple(input_shape), classes, weight_decay=weight_decay, seed=seed)

    @abc.abstractmethod
    def _build(self, norm: Norm, *shapes: Any, **penalty_and_seed: Any) -> "keras.Model":
        """Call the function of `idmatters_tf.models` that builds the network, with the options as its arguments."""

    def _options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "model"}


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
    def title(self) -> str:
        blocks = "/".join(map(str, self._options()["blocks"]))
        return f"blocks {blocks} of widths {'/'.join(map(str, self.widths))}"

    def _options(self) -> dict[str, Any]:
        blocks = self.blocks * len(self.widths) if len(self.blocks) == 1 else self.blocks
        return {**super()._options(), "blocks": blocks}

    def _check_not_decreasing(self, reason: str, remedy: str = "") -> None:
        """Raise UsageError if a stage has fewer channels than the stage or stem before it."""
        channels = [self.stem, *self.widths]
        if channels != sorted(channels):
            raise UsageError(
                f"--stem and --widths must not decrease with {reason}. Received: --stem {self.stem} --widths "
                f"{' '.join(map(str, self.widths))}{remedy}"
            )


@dataclasses.dataclass(frozen=True)
class Identity(Stages):
    """All-convolutional residual network near the identity (Hardt & Ma), with ablations from the literature."""

    first_stride: int = setting(
        1, help="stride of the first stage; each other stage starts with stride 2", at_least=1, at_most=99
    )
    shortcut: Shortcut = setting(
        "pad",
        help="shortcut of blocks that change the shape: pooling or subsampling with zero padding, or 1x1 convolutions; "
        "none removes the shortcuts of all blocks",
    )
    head: Head = setting("random", help="last layer: a frozen random projection, or a trained layer")
    norm: Literal["none", "batch", "batch-first"] = setting(
        "none",
        help="batch normalization after each 3x3 convolution, or before each one of a branch (the paper's base code)",
        common=True,
    )
    initializer: Initializer = setting(
        "identity",
        help="initializer of the residual convolutions: N(0, 1/(k^2 c)^2), N(0, 1/(k sqrt c)^2), or Fixup "
        "(Zhang, Dauphin & Ma, 2019)",
        common=True,
    )
    branch_scale: float | None = setting(
        None,
        help="multiply each branch by a trained factor with initial value X; 0 with --initializer standard is SkipInit "
        "and ReZero",
        unset="no factor",
        at_least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortcut == "pad":
            self._check_not_decreasing("--shortcut pad, which cannot drop channels", ". Use --shortcut projection.")

    @property
    def has_zero_kernels(self) -> bool:
        return self.initializer == "fixup"

    def layout(self, norm: Norm = "batch") -> Layout:
        """Return the layout of the network, with this kind of batch normalization if it has any."""
        options = self._options()
        strides = (options.pop("first_stride"), *(2,) * (len(self.widths) - 1))
        options |= {"strides": strides, "norm": None if self.norm == "none" else norm}
        return Layout(**options, norm_first=self.norm == "batch-first")

    def _build(self, norm: Norm, *shapes: Any, **penalty_and_seed: Any) -> "keras.Model":
        from idmatters_tf.models.identity import identity_network

        return identity_network(*shapes, layout=self.layout(norm), **penalty_and_seed)


@dataclasses.dataclass(frozen=True)
class NormalizerFree(Stages):
    """Blocks with trained gains, for fast training without normalization (docs/explanation/fast.md)."""

    last_kernel_size: int = setting(1, help="rows and columns of each block's second kernel", at_least=1, at_most=99)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_not_decreasing("--model normalizer-free")

    def _build(self, norm: Norm, *shapes: Any, **penalty_and_seed: Any) -> "keras.Model":
        from idmatters_tf.models.normalizer_free import normalizer_free_resnet

        return normalizer_free_resnet(*shapes, **self._options(), **penalty_and_seed)


@dataclasses.dataclass(frozen=True)
class ResNet(Network):
    """Options of `--model resnet` and `--model preresnet`."""

    depth: int = setting(
        110,
        help="number of layers: 6 n + 2 (resnet, preresnet), 3 n + 4, or 6 n + 4 with bottlenecks (densenet); for "
        "ImageNet 18 or 34, or 121, 169 or 201 with bottlenecks",
        at_least=1,
        at_most=100_000,
        common=True,
    )
    shortcut: Shortcut = setting("pad", help="shortcut of blocks that change the shape")

    def __post_init__(self) -> None:
        try:
            resnet_blocks(self.depth)
        except ValueError as error:
            raise UsageError(f"--model {self.model}: {error}") from None

    @property
    def title(self) -> str:
        return f"{self.model} {self.depth}"

    def _build(self, norm: Norm, *shapes: Any, **penalty_and_seed: Any) -> "keras.Model":
        from idmatters_tf.models.resnet import preresnet, resnet

        network = preresnet if self.model == "preresnet" else resnet
        return network(*shapes, **self._options(), norm=norm, **penalty_and_seed)


@dataclasses.dataclass(frozen=True)
class DenseNet(Network):
    """Options of `--model densenet`."""

    depth: int = setting(100, help="number of layers", at_least=1, at_most=100_000)
    growth: int = setting(24, help="channels added by each layer", metavar="K", at_least=1, at_most=100_000)
    bottleneck: bool = setting(False, help="use bottlenecks and compression (DenseNet-BC)")

    def __post_init__(self) -> None:
        try:
            densenet_layers(self.depth, self.bottleneck)
        except ValueError as error:
            raise UsageError(f"--model {self.model}: {error}") from None

    @property
    def title(self) -> str:
        return f"densenet {self.depth}, growth {self.growth}"

    def _build(self, norm: Norm, *shapes: Any, **penalty_and_seed: Any) -> "keras.Model":
        from idmatters_tf.models.densenet import densenet

        return densenet(*shapes, **self._options(), norm=norm, **penalty_and_seed)


@dataclasses.dataclass(frozen=True)
class AllCNN(Network):
    """Options of `--model all-cnn`."""

    stem_strides: int = setting(1, help="stride of the first convolution", at_least=1, at_most=99)

    @property
    def title(self) -> str:
        return "all-cnn"

    def _build(self, norm: Norm, *shapes: Any, **penalty_and_seed: Any) -> "keras.Model":
        from idmatters_tf.models.all_cnn import all_cnn_c

        return all_cnn_c(*shapes, **self._options(), **penalty_and_seed)


NETWORKS: Mapping[str, type[Network]] = {
    "identity": Identity,
    "normalizer-free": NormalizerFree,
    "resnet": ResNet,
    "preresnet": ResNet,
    "densenet": DenseNet,
    "all-cnn": AllCNN,
}
