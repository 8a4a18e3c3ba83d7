"""Baselines of Table 2 of Hardt & Ma."""

import dataclasses
import functools

from idmatters_tf.models.layout import Shortcut, densenet_layers, resnet_blocks
from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting
from trainers.networks.base import Network, Norm


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
        """Short description of the network."""
        return f"{self.model} {self.depth}"

    def _builder(self, norm: Norm) -> functools.partial:
        from idmatters_tf.models.resnet import preresnet, resnet

        network = preresnet if self.model == "preresnet" else resnet
        return functools.partial(network, depth=self.depth, shortcut=self.shortcut, norm=norm)


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
        """Short description of the network."""
        return f"densenet {self.depth}, growth {self.growth}"

    def _builder(self, norm: Norm) -> functools.partial:
        from idmatters_tf.models.densenet import densenet

        return functools.partial(densenet, depth=self.depth, growth=self.growth, bottleneck=self.bottleneck, norm=norm)


@dataclasses.dataclass(frozen=True)
class AllCNN(Network):
    """Options of `--model all-cnn`."""

    stem_strides: int = setting(1, help="stride of the first convolution", at_least=1, at_most=99)

    @property
    def title(self) -> str:
        """Short description of the network."""
        return "all-cnn"

    def _builder(self, norm: Norm) -> functools.partial:
        from idmatters_tf.models.all_cnn import all_cnn_c

        return functools.partial(all_cnn_c, stem_strides=self.stem_strides)
