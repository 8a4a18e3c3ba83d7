"""The layout of the all-convolutional residual networks near the identity, apart from Keras.

One dataclass for whatever needs it: the builders in `identity`, `cifar` and `imagenet`, the count
of operations in `idmatters_tf.models.cost`, and the command lines of the programs.
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
        stem, stem_size, stem_strides: channels, kernel size and stride of the first convolution.
        bias, shortcut, head, norm, norm_first, norm_momentum, initializer, branch_scale, negative_slope: see
            `idmatters_tf.models.cifar.identity_resnet`.

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
