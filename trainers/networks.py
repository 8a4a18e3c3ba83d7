"""Networks of the training programs: options and construction, by the names of `--model`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from idmatters_tf.models.layout import Head, Layout, Shortcut, densenet_layers, resnet_blocks
from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting

if TYPE_CHECKING:
    import keras

# Bounds far above the sizes of networks that fit into memory.
MOST_BLOCKS, MOST_CHANNELS = 10_000, 65_536


@dataclasses.dataclass(frozen=True)
class Identity:
    """Options of `--model identity`: fields of `Layout`, which describes them for use in Python."""

    blocks: tuple[int, ...] = setting(
        (9,),
        help="number of residual blocks of each stage, or one number for all stages",
        at_least=1,
        at_most=MOST_BLOCKS,
        common=True,
    )
    widths: tuple[int, ...] = setting(
        (64, 128, 256), help="number of channels of each stage", at_least=1, at_most=MOST_CHANNELS, common=True
    )
    strides: tuple[int, ...] = setting(
        (),
        help="stride of the first convolution and of the first block of each stage, or one number for all of them",
        at_least=1,
        at_most=MOST_CHANNELS,
        may_be_empty=True,
    )
    stem: int = setting(
        16,
        help="number of channels of the first convolution, which has no activation",
        at_least=1,
        at_most=MOST_CHANNELS,
    )
    stem_size: int = setting(3, help="number of rows and columns of the first kernel", at_least=1, at_most=99)
    shortcut: Shortcut = setting(
        "pad",
        help="shortcut of the first block of a stage: further channels of zeros or a 1x1 convolution; none: no "
        "shortcuts, in any block",
    )
    head: Head = setting(
        "random",
        help="last layer: the paper's frozen random matrix, a trained random matrix with a bias, or a trained matrix "
        "of zeros (Wu, Wang & Ma, 2019)",
    )
    norm: Literal["batch"] | None = setting(
        None,
        help="batch normalization after every 3x3 convolution, over all replicas",
        unset="no normalization",
        common=True,
    )
    initializer: Literal["identity", "standard", "fixup", "skipinit"] = setting(
        "identity",
        help="initial standard deviation of the residual convolutions, with k x k kernels and c channels: 1/(k^2 c) "
        "(identity) or 1/(k sqrt(c)) (standard); Fixup (Zhang, Dauphin & Ma, 2019), with zeros in the second "
        "convolution of each block; or SkipInit (De & Smith, 2020): standard, with a trained factor on each branch, "
        "initially zero",
        common=True,
    )

    def __post_init__(self) -> None:
        if len(self.strides) not in (0, 1, len(self.widths) + 1):
            raise UsageError(
                f"--strides must be one number, or one for the first convolution and one for each of the "
                f"{len(self.widths)} stages. Received: {' '.join(map(str, self.strides))}"
            )
        layout = self.layout()
        # One number stands for all stages.
        object.__setattr__(self, "blocks", layout.blocks)
        object.__setattr__(self, "strides", (layout.stem_strides, *layout.strides))

    def layout(self, replicas: int = 1) -> Layout:
        """Return the layout, with statistics of batch normalization over several replicas."""
        norm = "synchronized" if self.norm and replicas > 1 else self.norm
        first, *strides = self.strides or (1,)
        changed = {"norm": norm, "stem_strides": first, "strides": tuple(strides) or self.strides}
        if self.initializer == "skipinit":
            changed |= {"initializer": "standard", "branch_scale": 0.0}
        return Layout(**{**vars(self), **changed})


@dataclasses.dataclass(frozen=True)
class NormalizerFree:
    """Options of `--model normalizer-free`, with trained gains in place of normalization (docs/explanation/fast.md)."""

    blocks: tuple[int, ...] = setting((3,), help="number of residual blocks", at_least=1, at_most=MOST_BLOCKS)
    widths: tuple[int, ...] = setting(
        (96, 192, 384), help="number of channels", at_least=1, at_most=MOST_CHANNELS, common=True
    )
    stem: int = setting(48, help="channels of the first convolution", at_least=1, at_most=MOST_CHANNELS)
    stem_size: int = setting(3, help="rows and columns of the first kernel", at_least=1, at_most=99)

    def __post_init__(self) -> None:
        # Its stages have stride 2.
        layout = Layout(self.blocks, self.widths, (2,) * len(self.widths), self.stem, self.stem_size)
        object.__setattr__(self, "blocks", layout.blocks)


@dataclasses.dataclass(frozen=True)
class ResNet:
    """Options of `--model resnet` and `--model preresnet`."""

    depth: int = setting(
        110,
        help="number of layers: 6 n + 2 (resnet, preresnet) or 3 n + 4 (densenet); for ImageNet 18 or 34 (resnet, "
        "preresnet)",
        at_least=1,
        at_most=MOST_BLOCKS,
        common=True,
    )
    shortcut: Shortcut = setting("pad", help="shortcut of the first block of a stage")

    def __post_init__(self) -> None:
        resnet_blocks(self.depth)


@dataclasses.dataclass(frozen=True)
class DenseNet:
    """Options of `--model densenet`."""

    depth: int = setting(100, help="number of layers", at_least=1, at_most=MOST_BLOCKS)

    def __post_init__(self) -> None:
        densenet_layers(self.depth, bottleneck=False)


@dataclasses.dataclass(frozen=True)
class AllCNN:
    """`--model all-cnn`, which has no options."""


Network: TypeAlias = Identity | NormalizerFree | ResNet | DenseNet | AllCNN
NETWORKS: Mapping[str, type[Network]] = {
    "identity": Identity,
    "normalizer-free": NormalizerFree,
    "resnet": ResNet,
    "preresnet": ResNet,
    "densenet": DenseNet,
    "all-cnn": AllCNN,
}


def build(
    model: str,
    options: Network,
    shape: Sequence[int | None],
    classes: int,
    precision: str = "float32",
    replicas: int = 1,
    *,
    weight_decay: float,
    seed: int,
) -> "keras.Model":
    """Build a network for images `(rows, cols, channels)` with convolutions in "float32" or "bfloat16".

    `weight_decay` is the coefficient of a penalty in the loss. With several replicas, batch normalization uses the
    statistics of all of them.

    Raises:
        UsageError: the images are too small for the network.
    """
    import keras

    arguments = {"input_shape": tuple(shape), "classes": classes, "weight_decay": weight_decay, "seed": seed}
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bfloat16" else "float32")
    try:
        return _build(model, options, replicas, arguments)
    except ValueError as error:
        raise UsageError(
            f"--model {model} cannot be built for images of shape {tuple(shape)}. Use larger images or different sizes "
            f"of the network ({str(error).splitlines()[0]})."
        ) from error
    finally:
        keras.config.set_dtype_policy(previous)


def _build(model: str, options: Network, replicas: int, arguments: dict[str, Any]) -> "keras.Model":
    if isinstance(options, Identity):
        from idmatters_tf.models.identity import identity_network

        return identity_network(layout=options.layout(replicas), **arguments)
    norm = "batch" if replicas == 1 else "synchronized"
    if isinstance(options, DenseNet):
        from idmatters_tf.models.densenet import densenet

        return densenet(depth=options.depth, growth=24, norm=norm, **arguments)
    if isinstance(options, AllCNN):
        from idmatters_tf.models.all_cnn import all_cnn_c

        return all_cnn_c(**arguments)
    arguments |= vars(options)
    if model == "normalizer-free":
        from idmatters_tf.models.normalizer_free import normalizer_free_resnet

        return normalizer_free_resnet(**arguments)
    from idmatters_tf.models.resnet import preresnet, resnet

    return (preresnet if model == "preresnet" else resnet)(norm=norm, **arguments)


def with_image_size(model: "keras.Model", rows: int | None = None, cols: int | None = None) -> "keras.Model":
    """Return a functional model with the same layers and weights for images of another size, by default of any size.

    Raises:
        UsageError: the layers require a fixed image size.
    """
    import keras

    try:
        images = keras.Input((rows, cols, model.input_shape[-1]), dtype=model.inputs[0].dtype, name="images")
        # A clone of a compiled model would be compiled as well.
        plain = keras.Model(model.input, model.output, name=model.name)
        return keras.models.clone_model(plain, input_tensors=images, clone_function=lambda layer: layer)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--train-sizes needs a network for images of any size, not {model.name}.") from error


def describe(model: str, options: Network) -> str:
    """Return a short description of a network."""
    if isinstance(options, (Identity, NormalizerFree)):
        return f"blocks {'/'.join(map(str, options.blocks))} of widths {'/'.join(map(str, options.widths))}"
    depth = getattr(options, "depth", None)
    return model if depth is None else f"{model} {depth}"
