"""Normalizer-free network for fast training (docs/explanation/fast.md)."""

import dataclasses
import functools

from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting
from trainers.networks.base import Norm, Stages


@dataclasses.dataclass(frozen=True)
class NormalizerFree(Stages):
    """Options of `--model normalizer-free`."""

    last_kernel_size: int = setting(1, help="rows and columns of each block's second kernel", at_least=1, at_most=99)
    whiten_stem: bool = setting(
        False, help="freeze the first kernel at filters that whiten patches of 2,000 training images (Jordan, 2024)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_not_decreasing("--model normalizer-free")
        # Patches have three channels, and each filter is paired with its negative.
        most = 2 * 3 * self.stem_size**2
        if self.whiten_stem and (self.stem % 2 or self.stem > most):
            raise UsageError(f"--stem must be even and at most {most} with --whiten-stem. Received: {self.stem}")

    def _builder(self, norm: Norm) -> functools.partial:
        from idmatters_tf.models.normalizer_free import normalizer_free_resnet

        return functools.partial(
            normalizer_free_resnet,
            blocks=self.blocks_of_stages,
            widths=self.widths,
            stem=self.stem,
            stem_size=self.stem_size,
            stem_strides=self.stem_strides,
            whiten_stem=self.whiten_stem,
            last_kernel_size=self.last_kernel_size,
        )
