"""All-convolutional residual networks near the identity (Hardt & Ma), with ablations from the literature."""

import dataclasses
import functools
from typing import Literal

from idmatters_tf.models.layout import Head, Initializer, Layout, Shortcut
from trainers.cli.settings import setting
from trainers.networks.base import Norm, Stages


@dataclasses.dataclass(frozen=True)
class Identity(Stages):
    """Options of `--model identity`: sizes, and the fields of `Layout` that the paper and later work vary."""

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
        "(Zhang et al., 2019)",
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
            self.check_not_decreasing("--shortcut pad, which cannot drop channels", ". Use --shortcut projection.")

    @property
    def has_zero_kernels(self) -> bool:
        """True if kernels of blocks start at zero."""
        return self.initializer == "fixup"

    def layout(self, norm: Norm = "batch") -> Layout:
        """Return the layout of the network, with this kind of batch normalization if it has any."""
        same = [field.name for field in dataclasses.fields(Layout) if hasattr(self, field.name)]
        given = {name: getattr(self, name) for name in same}
        given |= {"blocks": self.blocks_of_stages, "norm": None if self.norm == "none" else norm}
        strides = (self.first_stride, *(2,) * (len(self.widths) - 1))
        return Layout(**given, strides=strides, norm_first=self.norm == "batch-first")

    def _builder(self, norm: Norm) -> functools.partial:
        from idmatters_tf.models.identity import identity_network

        return functools.partial(identity_network, layout=self.layout(norm))
