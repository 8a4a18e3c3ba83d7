"""Networks of the training programs: options and construction, by the names of `--model`.

Options are fields of `Layout`, and arguments of the other functions that build networks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from idmatters_tf.models.layout import DENSENET_IMAGENET, Layout, Shortcut, densenet_layers, resnet_blocks
from trainers.cli.settings import setting

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class NormalizerFree:
    """Options of `--model normalizer-free`, with trained gains in place of normalization (docs/explanation/fast.md)."""

    blocks: tuple[int, ...] = (3,)
    widths: tuple[int, ...] = (96, 192, 384)
    stem: int = 48
    stem_size: int = 3
    stem_strides: int = 1
    last_kernel_size: int = setting(1, help="rows and columns of each block's second kernel", at_least=1, at_most=99)

    def __post_init__(self) -> None:
        # Its stages have stride 2.
        strides = (2,) * len(self.widths)
        layout = Layout(self.blocks, self.widths, strides, self.stem, self.stem_size, self.stem_strides)
        object.__setattr__(self, "blocks", layout.blocks)


@dataclasses.dataclass(frozen=True)
class ResNet:
    """Options of `--model resnet` and `--model preresnet`."""

    depth: int = setting(
        110,
        help="number of layers: 6 n + 2 (resnet, preresnet) or 3 n + 4 (densenet); for ImageNet 18 or 34 (resnet, "
        "preresnet), or 121, 169 or 201 with bottlenecks and a growth of 32 (densenet)",
        at_least=1,
        at_most=100_000,
        common=True,
    )
    shortcut: Shortcut = "pad"

    def __post_init__(self) -> None:
        resnet_blocks(self.depth)


@dataclasses.dataclass(frozen=True)
class DenseNet:
    """Options of `--model densenet`."""

    depth: int = setting(100, help="number of layers", at_least=1, at_most=100_000)

    @property
    def bottleneck(self) -> bool:
        """True for the networks for ImageNet."""
        return self.depth in DENSENET_IMAGENET

    def __post_init__(self) -> None:
        densenet_layers(self.depth, self.bottleneck)


@dataclasses.dataclass(frozen=True)
class AllCNN:
    """Options of `--model all-cnn`."""

    stem_strides: int = 1


NETWORKS: Mapping[str, type] = {
    "identity": Layout,
    "normalizer-free": NormalizerFree,
    "resnet": ResNet,
    "preresnet": ResNet,
    "densenet": DenseNet,
    "all-cnn": AllCNN,
}


def build(
    model: str, options: Any, shape: Sequence[int | None], classes: int, replicas: int = 1, **arguments: Any
) -> "keras.Model":
    """Build a network for images `(rows, cols, channels)` under the dtype policy in force.

    Other arguments are `weight_decay`, the coefficient of a penalty in the loss, and `seed`. With several replicas,
    batch normalization uses the statistics of all of them.
    """
    arguments |= {"input_shape": tuple(shape), "classes": classes}
    norm = "batch" if replicas == 1 else "synchronized"
    if isinstance(options, Layout):
        from idmatters_tf.models.identity import identity_network

        layout = options if options.norm is None else dataclasses.replace(options, norm=norm)
        return identity_network(layout=layout, **arguments)
    if model == "densenet":
        from idmatters_tf.models.densenet import densenet

        growth = 32 if options.bottleneck else 24
        return densenet(depth=options.depth, growth=growth, bottleneck=options.bottleneck, norm=norm, **arguments)
    arguments |= vars(options)
    if model == "normalizer-free":
        from idmatters_tf.models.normalizer_free import normalizer_free_resnet

        return normalizer_free_resnet(**arguments)
    if model == "all-cnn":
        from idmatters_tf.models.all_cnn import all_cnn_c

        return all_cnn_c(**arguments)
    from idmatters_tf.models.resnet import preresnet, resnet

    return (preresnet if model == "preresnet" else resnet)(norm=norm, **arguments)


def describe(model: str, options: Any) -> str:
    """Return a short description of a network."""
    if hasattr(options, "widths"):
        return f"blocks {'/'.join(map(str, options.blocks))} of widths {'/'.join(map(str, options.widths))}"
    depth = getattr(options, "depth", None)
    return model if depth is None else f"{model} {depth}"
