"""Baselines of Table 2 of Hardt & Ma, each with the recipe of its own paper."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from idmatters_tf.models.layout import Shortcut, densenet_layers, resnet_blocks
from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting
from trainers.networks.base import Network, Norm, Scale

if TYPE_CHECKING:
    import keras

# He et al., section 4.2: warm-up for depth 110, none for shallower networks.
_WARM_UP_DEPTH = 110


@dataclasses.dataclass(frozen=True)
class ResNet(Network):
    """Options of `--model resnet` and `--model preresnet`."""

    recipes: ClassVar[Mapping[Scale, Mapping[str, Any]]] = {
        # He et al. (2015, 2016), section 4.2: 64,000 steps, at depth 110 the first 400 of them at a tenth of the rate.
        "cifar": {
            "depth": 110,
            "steps": 64_000,
            "learning_rate": 0.1,
            "drop_steps": (32_000, 48_000),
            "warm_up_steps": 400,
            "augment": "standard",
            "preprocess": "pixels",
        },
        # As the published Torch code (fb.resnet.torch): 90 epochs with batches of 256, the rate divided at 30 and 60.
        "imagenet": {
            "depth": 34,
            "shortcut": "projection",
            "steps": 450_000,
            "schedule": "drops",
            "drop_steps": (150_000, 300_000),
            "augment": "standard",
        },
    }
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
        except ValueError:
            raise UsageError(
                f"--depth must be 6 n + 2 with --model {self.model}, or 18 or 34. Received: {self.depth}"
            ) from None

    @classmethod
    def recipe(cls, scale: Scale, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the network's defaults by option; shallow networks have no warm-up."""
        recipe = super().recipe(scale, given)
        if given.get("depth", recipe["depth"]) < _WARM_UP_DEPTH:
            recipe["warm_up_steps"] = 0
        return recipe

    @property
    def title(self) -> str:
        """Short description of the network."""
        return f"{self.model} {self.depth}"

    def builder(self, norm: Norm) -> "Callable[..., keras.Model]":
        """Return the function that builds the network, see `Network.builder`."""
        from idmatters_tf.models.resnet import preresnet, resnet

        network = preresnet if self.model == "preresnet" else resnet
        return functools.partial(network, depth=self.depth, shortcut=self.shortcut, norm=norm)


@dataclasses.dataclass(frozen=True)
class DenseNet(Network):
    """Options of `--model densenet`."""

    recipes: ClassVar[Mapping[Scale, Mapping[str, Any]]] = {
        # Huang et al. (2016), section 4.2: 300 epochs with batches of 64.
        "cifar": {
            "depth": 100,
            "growth": 24,
            "steps": 234_375,
            "batch_size": 64,
            "learning_rate": 0.1,
            "drop_steps": (117_188, 175_782),
            "nesterov": True,
            "augment": "standard",
            "preprocess": "channels",
        },
        # The same section: 90 epochs with batches of 256, the rate divided at 30 and 60.
        "imagenet": {
            "depth": 121,
            "growth": 32,
            "bottleneck": True,
            "steps": 450_000,
            "schedule": "drops",
            "drop_steps": (150_000, 300_000),
            "nesterov": True,
            "augment": "standard",
        },
    }
    depth: int = setting(100, help="number of layers", at_least=1, at_most=100_000)
    growth: int = setting(24, help="channels added by each layer", metavar="K", at_least=1, at_most=100_000)
    bottleneck: bool = setting(False, help="use bottlenecks and compression (DenseNet-BC)")

    def __post_init__(self) -> None:
        try:
            densenet_layers(self.depth, self.bottleneck)
        except ValueError:
            rule, flag = ("6 n + 4, or 121, 169 or 201", "") if self.bottleneck else ("3 n + 4", "no-")
            raise UsageError(
                f"--depth must be {rule} with --model densenet --{flag}bottleneck. Received: {self.depth}"
            ) from None

    @property
    def title(self) -> str:
        """Short description of the network."""
        return f"densenet {self.depth}, growth {self.growth}"

    def builder(self, norm: Norm) -> "Callable[..., keras.Model]":
        """Return the function that builds the network, see `Network.builder`."""
        from idmatters_tf.models.densenet import densenet

        return functools.partial(
            densenet,
            depth=self.depth,
            growth=self.growth,
            bottleneck=self.bottleneck,
            norm=norm,
        )


@dataclasses.dataclass(frozen=True)
class AllCNN(Network):
    """Options of `--model all-cnn`."""

    recipes: ClassVar[Mapping[Scale, Mapping[str, Any]]] = {
        # Springenberg et al. (2014), section 3.2: 350 epochs with batches of 128, the rate divided at 200, 250 and 300.
        "cifar": {
            "steps": 136_719,
            "learning_rate": 0.05,
            "drop_steps": (78_125, 97_657, 117_188),
            "weight_decay": 1e-3,
            "augment": "all-cnn",
            "preprocess": "zca",
        },
        # Section 3.4: 450,000 steps with batches of 64, the rate divided every 200,000.
        "imagenet": {
            "stem_strides": 4,
            "steps": 450_000,
            "batch_size": 64,
            "learning_rate": 0.01,
            "schedule": "drops",
            "drop_steps": (200_000, 400_000),
            "weight_decay": 5e-4,
            "augment": "standard",
        },
    }
    stem_strides: int = setting(1, help="stride of the first convolution", at_least=1, at_most=99)

    @property
    def title(self) -> str:
        """Short description of the network."""
        return "all-cnn"

    def builder(self, norm: Norm) -> "Callable[..., keras.Model]":
        """Return the function that builds the network, see `Network.builder`."""
        from idmatters_tf.models.all_cnn import all_cnn_c

        return functools.partial(all_cnn_c, stem_strides=self.stem_strides)
