"""The networks that the programs train, each with the recipe of its paper and the options that are its own."""

import dataclasses
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeVar

from idmatters_tf.models.layout import CIFAR, Layout, cifar_layout
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, group, options, setting, with_defaults
from trainers.training.settings import Ablations, batch_norm, check_not_decreasing, check_widths, layout_options

if typing.TYPE_CHECKING:
    import keras

Model = Literal["identity", "normalizer-free", "resnet", "preresnet", "densenet", "all-cnn"]
S = TypeVar("S")


@dataclasses.dataclass(frozen=True)
class NormalizerFree:
    """What `--model normalizer-free` has of its own."""

    branch_gain: float | None = setting(
        None,
        help="what the gains of each block's second kernel start at, in normalizer-free (default: 0.2)",
        metavar="X",
        at_least=0,
        added_later=True,
    )
    last_kernel_size: int | None = setting(
        None,
        help="rows and columns of each block's second kernel, in normalizer-free (default: 1)",
        metavar="N",
        at_least=1,
        at_most=99,
        added_later=True,
    )
    standardize_kernels: bool | None = setting(
        None,
        help="standardise the kernels of the blocks, in normalizer-free (scaled weight standardisation, Brock et al., "
        "2021)",
        added_later=True,
    )
    whiten_stem: bool | None = setting(
        None,
        help="freeze the first kernel at filters that whiten the patches of 2,000 training images, in normalizer-free "
        "(Jordan, 2024)",
        added_later=True,
    )


@dataclasses.dataclass(frozen=True)
class Network:
    """Which network of `trainers.cifar`, and its size. Options that the model does not have are None."""

    model: Model = setting(
        "identity",
        help="the paper's network, or one that its Table 2 compares it with, which brings the recipe of its own paper",
    )
    depth: int | None = setting(
        None,
        help="depth of resnet, preresnet (default: 110) and densenet (default: 100)",
        metavar="N",
        at_least=1,
        at_most=100_000,
    )
    growth: int | None = setting(
        None, help="growth rate of densenet (default: 24)", metavar="K", at_least=1, at_most=100_000
    )
    bottleneck: bool | None = setting(None, help="the BC variant of densenet, with bottlenecks and compression")
    dropout: float | None = setting(
        None,
        help="dropout rate of densenet (default: 0; its paper takes 0.2 without augmentation)",
        metavar="X",
        at_least=0,
        below=1,
    )
    blocks: int | None = setting(
        CIFAR.blocks[0], help="residual blocks per stage", metavar="N", at_least=1, at_most=10_000
    )
    widths: tuple[int, ...] | None = setting(
        CIFAR.widths, help="channels of each stage", metavar="C", at_least=1, at_most=100_000
    )
    stem: int | None = setting(
        CIFAR.stem, help="channels of the first convolution", metavar="C", at_least=1, at_most=100_000
    )
    normalizer_free: NormalizerFree = group(NormalizerFree, "network")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One value of `--model`.

    Attributes:
        options: names of its options; others are refused.
        recipe: where its paper's recipe differs from the defaults of the command line, by option.
        build: called with the network's settings, the ablations, the keyword arguments that all builders share
            (`input_shape`, `classes`, `weight_decay`, `seed`) and the number of replicas, returns the `keras.Model`.
    """

    options: tuple[str, ...]
    recipe: Mapping[str, Any]
    build: Callable[[Network, Ablations, dict, int], "keras.Model"]


def layout(network: Network, ablations: Ablations, replicas: int = 1) -> Layout:
    """The layout of `--model identity`."""
    blocks, widths, stem = network.blocks, network.widths, network.stem
    if blocks is None or widths is None or stem is None:
        raise UsageError("--blocks, --widths and --stem must be given with --model identity.")
    return cifar_layout(blocks, widths, stem, **layout_options(ablations, replicas))


def normalizer_free_options(given: NormalizerFree) -> dict[str, Any]:
    """Arguments of `idmatters_tf.models.normalizer_free.normalizer_free_resnet`."""
    # Runs from before the option have second kernels of 3x3.
    sizes = {"last_kernel_size": given.last_kernel_size or 3, "branch_gain": given.branch_gain}
    return {**sizes, "standardize": bool(given.standardize_kernels), "whiten_stem": bool(given.whiten_stem)}


def check_stem(stem: int, size: int, given: NormalizerFree) -> None:
    """Raises UsageError for a first layer that cannot whiten the patches of images of three channels."""
    most = 2 * 3 * size**2
    if given.whiten_stem and (stem % 2 or stem > most):
        raise UsageError(f"--stem must be even and at most {most} with --whiten-stem. Received: {stem}")


def _identity(network, ablations, common, replicas):
    from idmatters_tf.models.identity import identity_network

    return identity_network(layout(network, ablations, replicas), **common)


def _normalizer_free(network, ablations, common, replicas):
    from idmatters_tf.models.normalizer_free import normalizer_free_resnet

    own = {"blocks": network.blocks, "widths": network.widths, "stem": network.stem}
    return normalizer_free_resnet(**own, **normalizer_free_options(network.normalizer_free), **common)


def _resnet(network, ablations, common, replicas):
    from idmatters_tf.models.resnet import preresnet, resnet

    build = {"resnet": resnet, "preresnet": preresnet}[network.model]
    return build(network.depth, shortcut=ablations.shortcut, norm=batch_norm(replicas), **common)


def _densenet(network, ablations, common, replicas):
    from idmatters_tf.models.densenet import densenet

    own = {"bottleneck": network.bottleneck, "dropout": network.dropout, "norm": batch_norm(replicas)}
    return densenet(network.depth, network.growth, **own, **common)


def _all_cnn(network, ablations, common, replicas):
    from idmatters_tf.models.all_cnn import all_cnn_c

    return all_cnn_c(**common)


# He et al. (2015, 2016): 64,000 steps, at depth 110 the first 400 of them at a tenth of the rate.
_WARM_UP_DEPTH = 110
_RESNET_RECIPE = {
    "depth": _WARM_UP_DEPTH,
    "steps": 64_000,
    "learning_rate": 0.1,
    "drop_steps": (32_000, 48_000),
    "warm_up_steps": 400,
    "warm_up_rate": 0.01,
    "augment": "standard",
    "preprocess": "pixels",
}

# This package's own, see docs/fast.md: what does not depend on the data, and what was chosen for CIFAR.
NORMALIZER_FREE_RECIPE = {
    "branch_gain": 0.2,
    "last_kernel_size": 1,
    "weight_decay": 0.0,
    "optimizer": "muon",
    "learning_rate": 0.03,
    "other_rate": 1.5,
    "nesterov": True,
    "schedule": "linear",
    "label_smoothing": 0.1,
    "augment": "standard",
}
NORMALIZER_FREE = {
    **NORMALIZER_FREE_RECIPE,
    "blocks": 3,
    "widths": (96, 192, 384),
    "stem": 48,
    "steps": 4300,
    "batch_size": 256,
    "warm_up_steps": 430,
    "padding_mode": "reflect",
    "flips": "alternate",
    "cutout": 12,
}

ARCHITECTURES: Mapping[str, Architecture] = {
    "identity": Architecture(
        (
            *("blocks", "widths", "stem", "bias", "shortcut", "head", "norm", "norm_momentum"),
            *("initializer", "branch_scale", "negative_slope"),
        ),
        {},
        _identity,
    ),
    "normalizer-free": Architecture(
        ("blocks", "widths", "stem", "branch_gain", "last_kernel_size", "standardize_kernels", "whiten_stem"),
        NORMALIZER_FREE,
        _normalizer_free,
    ),
    "resnet": Architecture(("depth", "shortcut"), _RESNET_RECIPE, _resnet),
    "preresnet": Architecture(("depth", "shortcut"), _RESNET_RECIPE, _resnet),
    # Huang et al. (2016), section 4.2: 300 epochs with batches of 64.
    "densenet": Architecture(
        ("depth", "growth", "bottleneck", "dropout"),
        {
            "depth": 100,
            "growth": 24,
            "bottleneck": False,
            "dropout": 0.0,
            "steps": 234_375,
            "batch_size": 64,
            "learning_rate": 0.1,
            "drop_steps": (117_188, 175_782),
            "nesterov": True,
            "augment": "standard",
            "preprocess": "channels",
        },
        _densenet,
    ),
    # Springenberg et al. (2014), section 3.2: 350 epochs with batches of 128, the rate divided at 200, 250 and 300.
    "all-cnn": Architecture(
        (),
        {
            "steps": 136_719,
            "learning_rate": 0.05,
            "drop_steps": (78_125, 97_657, 117_188),
            "weight_decay": 1e-3,
            "augment": "all-cnn",
            "preprocess": "zca",
        },
        _all_cnn,
    ),
}

_OWN_OPTIONS = tuple(dict.fromkeys(option for each in ARCHITECTURES.values() for option in each.options))
_MAY_BE_NONE = (
    "branch_scale",
    "norm_momentum",
    "negative_slope",
    "last_kernel_size",
    "standardize_kernels",
    "whiten_stem",
)


def recipe_of(model: str, depth: int | None = None) -> dict[str, Any]:
    """What a model of `trainers.cifar` changes of the defaults: the recipe of its paper.

    Args:
        model: one of `ARCHITECTURES`.
        depth: where it is not the paper's; only residual networks as deep as theirs or deeper are warmed up.
    """
    recipe = dict(ARCHITECTURES[model].recipe)
    if model in ("resnet", "preresnet") and depth is not None and depth < _WARM_UP_DEPTH:
        recipe["warm_up_steps"] = 0
    return recipe


def foreign_options(model: str) -> list[str]:
    """The options that other models have, but not this one."""
    return [option for option in _OWN_OPTIONS if option not in ARCHITECTURES[model].options]


def resolve(
    settings: type[S], model: str, recipe: Mapping[str, Any], preset: Mapping[str, Any], typed: Mapping[str, Any]
) -> S:
    """The settings of a new run: the model's recipe, above it a preset, above it what was typed.

    Options of other models are None; what the preset says of them is left out.

    Args:
        settings: the program's.
        model: a key of `ARCHITECTURES`.
        recipe: what the model changes of the defaults.
        preset, typed: values by name.
    """
    foreign = [option for option in foreign_options(model) if option in options(settings)]
    applicable = {name: value for name, value in preset.items() if name not in foreign}
    return with_defaults(settings, dict.fromkeys(foreign), recipe, applicable, typed)


def check_options(model: str, given: Mapping[str, Any], models: Collection[str] = tuple(ARCHITECTURES)) -> None:
    """Raises UsageError for options that the model does not have, and for those of its own that are None.

    Args:
        model: one of `models`.
        given: the values of all settings by name.
        models: those that the program has.
    """
    for option in foreign_options(model):
        if given.get(option) is not None:
            having = [other for other in models if option in ARCHITECTURES[other].options]
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(f"{flag} is not an option of --model {model}, but of --model {', '.join(having)}.")
    for option in ARCHITECTURES[model].options:
        if given[option] is None and option not in _MAY_BE_NONE:
            raise UsageError(f"--{option.replace('_', '-')} must be given with --model {model}.")


def check(network: Network, ablations: Ablations) -> None:
    """Raises UsageError for options that do not fit the model, or one another."""
    model = network.model
    check_options(model, {**as_dict(network), **as_dict(ablations)})
    if model == "identity":
        check_widths(layout(network, ablations))
    elif model == "normalizer-free":
        check_not_decreasing(network.stem or 0, network.widths or (), "--model normalizer-free")
        check_stem(network.stem or 0, 3, network.normalizer_free)
    elif ablations.shortcut == "projection":
        raise UsageError(f"--shortcut must be pad or none with --model {model}. Received: projection")
    if network.depth is not None:
        constant, unit = (4, 6 if network.bottleneck else 3) if model == "densenet" else (2, 6)
        if network.depth < constant + unit or (network.depth - constant) % unit:
            raise UsageError(f"--depth must be {unit} n + {constant} with --model {model}. Received: {network.depth}")


def title(network: Network) -> str:
    """The network in a few words."""
    if network.widths is not None:
        return f"{len(network.widths)} x {network.blocks} blocks of widths {'/'.join(map(str, network.widths))}"
    depth = f" {network.depth}" if network.depth else ""
    growth = f", growth {network.growth}" if network.growth else ""
    return f"{network.model}{depth}{growth}"


def build(network: Network, ablations: Ablations, *, replicas: int, **common: Any) -> "keras.Model":
    """The network of the settings; `common`: `input_shape`, `classes`, `weight_decay`, `seed`."""
    return ARCHITECTURES[network.model].build(network, ablations, common, replicas)
