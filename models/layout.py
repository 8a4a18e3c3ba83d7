"""The layouts of the networks, apart from Keras: above all that of the all-convolutional ones near the identity.

One dataclass for the builders in `identity`, `cifar` and `imagenet`, the count of operations in
`idmatters_tf.models.cost`, and the command lines of the programs. An ablation is a field of it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

from idmatters_tf._arguments import one_of, positive_integer

Shortcut = Literal["pad", "projection", "none"]
Head = Literal["random", "trained", "zero"]
Norm = Literal["batch", "synchronized"]
Initializer = Literal["identity", "standard", "fixup"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A stem, stages of residual blocks, an average over space and a head.

    Attributes:
        blocks: the number of residual blocks of each stage.
        widths: the channels of each stage.
        strides: of each stage's first block; the others have stride 1.
        stem, stem_size, stem_strides: channels, kernel size and stride of the first convolution, which has no
            activation.
        bias: whether the stem and the 3x3 convolutions have biases.
        shortcut: "pad", "projection", or "none" for the standard parameterisation without skips.
        head: "random" for the paper's frozen N(0, 1/fan_in) matrix, "trained" for a trained one (with a bias) that
            starts uniform with the same variance, as that of the paper's base code, "zero" for a trained one that
            starts at zero: with blocks near the identity the zero-asymmetric start of Wu, Wang & Ma (arXiv 1911.00645).
        norm: None, or "batch" for batch normalisation after every 3x3 convolution; "synchronized" takes its statistics
            over all replicas of a `tf.distribute` strategy.
        norm_first: batch normalisation before each convolution of a branch and before the average over space, as in
            the paper's base code, rather than behind each convolution.
        norm_momentum: of batch normalisation's moving averages; 0.9 in the paper's base code.
        initializer: of the residual convolutions: "identity" for N(0, (1/(k^2 c))^2), "standard" for
            N(0, (1/(k sqrt c))^2), or "fixup" (Zhang et al., 2019): He's divided by sqrt(branches) for the first
            convolution of a branch, zeros for the second and for a trained head. The method's multipliers are
            `branch_scale=1.0`, its biases (one each there, one a channel here) `bias=True`.
        branch_scale: None, or where a trained factor on each branch starts: 0.0 with `initializer="standard"` is
            SkipInit (De & Smith, 2020) and ReZero (Bachlechner et al., 2020).
        negative_slope: of the ReLUs, 0.1 in the paper's base code; the paper says ReLU, which is 0.

    Raises:
        ValueError: stages are missing, the stages of `blocks`, `widths` and `strides` differ in number, or a value is
            not one of those allowed.
    """

    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    strides: tuple[int, ...]
    stem: int
    stem_size: int = 3
    stem_strides: int = 1
    bias: bool = False
    shortcut: Shortcut = "pad"
    head: Head = "random"
    norm: Norm | None = None
    norm_first: bool = False
    norm_momentum: float = 0.99
    initializer: Initializer = "identity"
    branch_scale: float | None = None
    negative_slope: float = 0.0

    def __post_init__(self) -> None:
        if not self.widths:
            raise ValueError("Argument `widths` must name at least one stage. Received: widths=()")
        for argument in ("blocks", "strides"):
            if len(getattr(self, argument)) != len(self.widths):
                raise ValueError(
                    f"Arguments `{argument}` and `widths` must name as many stages. Received: "
                    f"{argument}={getattr(self, argument)}, widths={self.widths}"
                )
        positive_integer("stem", self.stem)
        for argument in ("blocks", "widths"):
            for stage, value in enumerate(getattr(self, argument)):
                positive_integer(f"{argument}[{stage}]", value)
        one_of("shortcut", self.shortcut, get_args(Shortcut))
        one_of("initializer", self.initializer, get_args(Initializer))
        one_of("head", self.head, get_args(Head))


def cifar_layout(blocks: int, widths: Sequence[int], stem: int, **others: Any) -> Layout:
    """As many blocks in every stage; each stage but the first starts with stride 2. `others`: see `Layout`."""
    positive_integer("blocks", blocks)
    widths = tuple(widths)
    return Layout((blocks,) * len(widths), widths, (1, *(2,) * (len(widths) - 1))[: len(widths)], stem, **others)


def imagenet_layout(
    blocks: Sequence[int], widths: Sequence[int], stem: int, stem_size: int = 7, stem_strides: int = 2, **others: Any
) -> Layout:
    """Stride 2 at the start of every stage, behind a stem that is 7x7 with stride 2. `others`: see `Layout`."""
    widths = tuple(widths)
    return Layout(tuple(blocks), widths, (2,) * len(widths), stem, stem_size, stem_strides, **others)


CIFAR = cifar_layout(9, (64, 128, 256), 16)
"""Table 1 of Hardt & Ma."""
IMAGENET = imagenet_layout((3, 4, 6, 3), (80, 168, 328, 672), 64)
"""Section 4.2 of Hardt & Ma; the widths are made to give the 35.7M parameters of the paper."""


RESNET_IMAGENET = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
"""He et al. (2015), Table 1: the blocks of each stage of the networks for ImageNet, by depth."""
DENSENET_IMAGENET = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}
"""Huang et al. (2016), Table 1: the layers of each dense block of the networks for ImageNet, by depth."""


def resnet_blocks(depth: int) -> tuple[int, ...]:
    """Return the number of blocks of each stage of `resnet.resnet` and `resnet.preresnet`.

    Raises:
        ValueError: there is no such network of this depth.
    """
    if depth in RESNET_IMAGENET:
        return RESNET_IMAGENET[depth]
    if positive_integer("depth", depth) < 8 or (depth - 2) % 6:
        raise ValueError(
            f"Argument `depth` must be 6 n + 2 for n blocks per stage, e.g. 20, 32, 56, 110, or 18 or 34 for ImageNet. "
            f"Received: depth={depth}"
        )
    return ((depth - 2) // 6,) * 3


def densenet_layers(depth: int, bottleneck: bool) -> tuple[int, ...]:
    """Return the number of layers of each dense block of `densenet.densenet`.

    Raises:
        ValueError: there is no such network of this depth.
    """
    if bottleneck and depth in DENSENET_IMAGENET:
        return DENSENET_IMAGENET[depth]
    unit = 6 if bottleneck else 3
    if positive_integer("depth", depth) < unit + 4 or (depth - 4) % unit:
        raise ValueError(
            f"Argument `depth` must be {unit} n + 4 for n layers per block"
            f"{' with bottlenecks, or 121, 169 or 201 for ImageNet' if bottleneck else ', e.g. 40, 100'}. "
            f"Received: depth={depth}"
        )
    return ((depth - 4) // unit,) * 3
