"""Layouts of the networks, without Keras.

`Layout` describes the all-convolutional networks near the identity. The builders in `identity`, `cifar` and `imagenet`
use it. Ablations are fields of it.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from idmatters_tf._arguments import check_choice, positive_integer

Shortcut = Literal["pad", "projection", "none"]
Head = Literal["random", "trained", "zero"]
Norm = Literal["batch", "synchronized"]
Initializer = Literal["identity", "standard", "fixup"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of a network: a stem, stages of residual blocks, an average over space and a head.

    The defaults are Table 1 of Hardt & Ma.

    Attributes:
        blocks: number of residual blocks of each stage, or one number for all stages.
        widths: number of channels of each stage.
        strides: stride of the first block of each stage, or one number for all stages; by default 1 and then 2. The
            other blocks have stride 1.
        stem: number of channels of the first convolution, which has no activation.
        stem_size: number of rows and columns of the first kernel.
        stem_strides: stride of the first convolution.
        bias: True for biases in the stem and the 3x3 convolutions.
        shortcut: "pad", "projection", or "none" for the standard parameterization without skips.
        head: "random" for the paper's frozen N(0, 1/fan_in) matrix; "trained" for a trained matrix with a bias,
            initially uniform with the same variance as in the paper's base code; "zero" for a trained matrix of zeros,
            with blocks near the identity the zero-asymmetric initialization of Wu, Wang & Ma (arXiv 1911.00645).
        norm: None, "batch" for batch normalization after every 3x3 convolution, or "synchronized" for the same with
            statistics over all replicas of a `tf.distribute` strategy.
        norm_first: True for batch normalization before each convolution of a branch and before the average over space,
            as in the paper's base code, instead of after each convolution.
        norm_momentum: momentum of the moving averages of batch normalization; 0.9 in the paper's base code.
        initializer: initializer of the residual convolutions: "identity" for N(0, (1/(k^2 c))^2), "standard" for
            N(0, (1/(k sqrt c))^2), or "fixup" (Zhang, Dauphin & Ma, 2019) for He's divided by sqrt(branches) in the
            first convolution of a branch and zeros in the second and in a trained head. The multipliers of Fixup are
            `branch_scale=1.0`. Its biases, one per layer, are `bias=True` here, one per channel.
        branch_scale: None, or the initial value of a trained factor on each branch. 0.0 with `initializer="standard"`
            is SkipInit (De & Smith, 2020) and ReZero (Bachlechner et al., 2020).
        negative_slope: negative slope of the activations: 0 for ReLU, as in the paper; 0.1 in its base code.

    Raises:
        ValueError: there are no stages, `blocks`, `widths` and `strides` differ in length, or a value is not allowed.
    """

    blocks: tuple[int, ...] = (9,)
    widths: tuple[int, ...] = (64, 128, 256)
    strides: tuple[int, ...] = ()
    stem: int = 16
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
            raise ValueError("Argument `widths` must have at least one stage. Received: widths=()")
        stages = len(self.widths)
        if not self.strides:
            object.__setattr__(self, "strides", (1, *(2,) * (stages - 1)))
        for argument in ("blocks", "strides"):
            if len(getattr(self, argument)) == 1:
                object.__setattr__(self, argument, getattr(self, argument) * stages)
        for argument in ("blocks", "strides"):
            if len(getattr(self, argument)) != len(self.widths):
                raise ValueError(
                    f"Arguments `{argument}` and `widths` must have the same length. Received: "
                    f"{argument}={getattr(self, argument)}, widths={self.widths}"
                )
        for argument in ("stem", "stem_size", "stem_strides"):
            object.__setattr__(self, argument, positive_integer(argument, getattr(self, argument)))
        for argument in ("blocks", "widths", "strides"):
            values = enumerate(getattr(self, argument))
            checked = tuple(positive_integer(f"{argument}[{stage}]", value) for stage, value in values)
            object.__setattr__(self, argument, checked)
        check_choice("shortcut", self.shortcut, get_args(Shortcut))
        check_choice("initializer", self.initializer, get_args(Initializer))
        check_choice("head", self.head, get_args(Head))
        channels = [self.stem, *self.widths]
        if self.shortcut == "pad" and channels != sorted(channels):
            raise ValueError(
                f"Arguments `stem` and `widths` must not decrease with shortcut 'pad', which cannot drop channels. "
                f"Received: stem={self.stem}, widths={self.widths}. Use shortcut 'projection'."
            )


def _check_names(others: Mapping[str, object]) -> None:
    """Raise TypeError for arguments of a network that are unknown."""
    names = ["input_shape", "classes", "weight_decay", "seed", "name", *Layout.__dataclass_fields__]
    for name in others:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise TypeError(f"The network has no argument `{name}`.{hint} Its arguments: {', '.join(names)}")


def cifar_layout(blocks: int, widths: Sequence[int], stem: int, **others: Any) -> Layout:
    """Return a layout with equal stages, all but the first with stride 2. `others` are fields of `Layout`."""
    _check_names(others)
    widths = tuple(widths)
    return Layout((positive_integer("blocks", blocks),) * len(widths), widths, stem=stem, **others)


def imagenet_layout(
    blocks: Sequence[int], widths: Sequence[int], stem: int, stem_size: int = 7, stem_strides: int = 2, **others: Any
) -> Layout:
    """Return a layout with a 7x7 stem, and stride 2 in the stem and all stages. `others` are fields of `Layout`."""
    _check_names(others)
    widths = tuple(widths)
    return Layout(tuple(blocks), widths, (2,) * len(widths), stem, stem_size, stem_strides, **others)


CIFAR = cifar_layout(9, (64, 128, 256), 16)
"""Table 1 of Hardt & Ma."""
IMAGENET = imagenet_layout((3, 4, 6, 3), (80, 168, 328, 672), 64)
"""Section 4.2 of Hardt & Ma. The widths are chosen to give the 35.7M parameters of the paper."""


RESNET_IMAGENET = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
"""Number of blocks of each stage of the networks for ImageNet by depth: He et al. (2015), Table 1."""
DENSENET_IMAGENET = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}
"""Number of layers of each dense block of the networks for ImageNet by depth: Huang et al. (2016), Table 1."""


def resnet_blocks(depth: int) -> tuple[int, ...]:
    """Return the number of blocks of each stage of `resnet.resnet` and `resnet.preresnet`.

    Raises:
        ValueError: no such network has this depth.
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
        ValueError: no such network has this depth.
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
