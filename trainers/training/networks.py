"""The networks that `trainers.cifar` trains, each with the recipe of its paper and the options that are its own."""

import argparse
import dataclasses

from trainers.cli.arguments import UsageError, number, whole_number

IDENTITY_OPTIONS = ("blocks", "widths", "stem", "bias", "shortcut", "head", "norm", "initializer", "branch_scale")

# He et al. (2015, 2016): 64,000 steps, the first 400 of them at a tenth of the rate.
_RESNET_RECIPE = {
    "steps": 64_000,
    "learning_rate": 0.1,
    "drop_steps": [32_000, 48_000],
    "warm_up_steps": 400,
    "warm_up_rate": 0.01,
    "augment": "standard",
    "preprocess": "channels",
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of network.

    Attributes:
        options: those that it has; others are refused.
        recipe: where its paper's differs from the defaults of the command line, by option.
        build: called with the settings, the pictures' shape, the number of classes and the normalisation ("batch" or
            "synchronized"), returns the `keras.Model`.
    """

    options: tuple
    recipe: dict
    build: callable


def _identity(settings, image_shape, classes, norm):
    from models.cifar import identity_resnet

    arguments = {name: settings[name] for name in IDENTITY_OPTIONS if name not in ("widths", "norm")}
    return identity_resnet(
        image_shape, classes, norm=norm, widths=tuple(settings["widths"]), **arguments, **_common(settings)
    )


def _resnet(settings, image_shape, classes, norm):
    from models.resnet import preresnet, resnet

    build = {"resnet": resnet, "preresnet": preresnet}[settings["model"]]
    return build(settings["depth"], image_shape, classes, settings["shortcut"], norm, **_common(settings))


def _densenet(settings, image_shape, classes, norm):
    from models.densenet import densenet

    own = {"bottleneck": settings["bottleneck"], "dropout": settings["dropout"], "norm": norm}
    return densenet(settings["depth"], settings["growth"], image_shape, classes, **own, **_common(settings))


def _all_cnn(settings, image_shape, classes, norm):
    from models.all_cnn import all_cnn_c

    return all_cnn_c(image_shape, classes, **_common(settings))


def _common(settings):
    return {"weight_decay": settings["weight_decay"], "seed": settings["seed"]}


KINDS = {
    "identity": Kind(IDENTITY_OPTIONS, {}, _identity),
    "resnet": Kind(("depth", "shortcut"), {"depth": 110, **_RESNET_RECIPE}, _resnet),
    "preresnet": Kind(("depth", "shortcut"), {"depth": 110, **_RESNET_RECIPE}, _resnet),
    # Huang et al. (2016), section 4.2: 300 epochs with batches of 64.
    "densenet": Kind(
        ("depth", "growth", "bottleneck", "dropout"),
        {
            "depth": 100,
            "growth": 24,
            "steps": 234_375,
            "batch_size": 64,
            "learning_rate": 0.1,
            "drop_steps": [117_188, 175_782],
            "nesterov": True,
            "augment": "standard",
            "preprocess": "channels",
        },
        _densenet,
    ),
    # Springenberg et al. (2014), section 3.2: 350 epochs with batches of 128, the rate divided at 200, 250 and 300.
    "all-cnn": Kind(
        (),
        {
            "steps": 136_719,
            "learning_rate": 0.05,
            "drop_steps": [78_125, 97_657, 117_188],
            "weight_decay": 1e-3,
            "augment": "all-cnn",
            "preprocess": "zca",
        },
        _all_cnn,
    ),
}

OWN_OPTIONS = tuple(dict.fromkeys(option for kind in KINDS.values() for option in kind.options))

# What runs were started with before there was a choice.
LATER_DEFAULTS = {
    "model": "identity",
    "depth": None,
    "growth": None,
    "bottleneck": None,
    "dropout": None,
    "preprocess": "standardize",
    "warm_up_steps": 0,
    "warm_up_rate": 0.01,
    "curvature_every": None,
    "curvature_examples": 256,
}


def add_options(group):
    """Adds the choice of the network, and the options of those that are not near the identity."""
    group.add_argument(
        "--model",
        choices=tuple(KINDS),
        default="identity",
        help="the paper's, or one that its Table 2 compares with; the defaults of the recipe are those of its paper",
    )
    group.add_argument("--depth", type=whole_number(1), metavar="N", help="of resnet, preresnet (110), densenet (100)")
    group.add_argument("--growth", type=whole_number(1), metavar="K", help="of densenet: channels of a layer (24)")
    group.add_argument("--bottleneck", action=argparse.BooleanOptionalAction, help="of densenet: its BC form")
    group.add_argument(
        "--dropout", type=number(0, high=1, high_included=False), metavar="X", help="of densenet; 0.2 without --augment"
    )


def resolve(settings, explicit):
    """The settings with the recipe of their model; options of other models become None.

    Args:
        settings: the command line's defaults, the preset's and what was typed.
        explicit: what was typed or belongs to the preset: it stays.

    Raises:
        UsageError: an option was typed that the model does not have.
    """
    name = settings["model"]
    kind = KINDS[name]
    wrong = [option for option in OWN_OPTIONS if explicit.get(option) is not None and option not in kind.options]
    if wrong:
        option = f"--{wrong[0].replace('_', '-')}"
        having = [other for other in KINDS if wrong[0] in KINDS[other].options]
        raise UsageError(f"{option} is no option of --model {name}: it is one of --model {', '.join(having)}.")
    if "shortcut" in kind.options and name != "identity" and settings["shortcut"] == "projection":
        raise UsageError(f"--shortcut must be pad or none with --model {name}. Received: projection")
    settings = {**settings, **kind.recipe, **explicit}
    depth, layers = settings["depth"], 2 if name == "densenet" and settings["bottleneck"] else 1
    extra, unit = (4, 3 * layers) if name == "densenet" else (2, 6)
    if "depth" in kind.options and (depth < extra + unit or (depth - extra) % unit):
        raise UsageError(f"--depth must be {unit} n + {extra} with --model {name}. Received: {depth}")
    for option in OWN_OPTIONS:
        if option not in kind.options:
            settings[option] = None
    if name == "densenet":
        settings["bottleneck"], settings["dropout"] = bool(settings["bottleneck"]), settings["dropout"] or 0.0
    return settings


def title(settings):
    """What the network is, in a few words."""
    if settings["model"] != "identity":
        size = f" {settings['depth']}" if settings["depth"] else ""
        growth = f", growth {settings['growth']}" if settings["growth"] else ""
        return f"{settings['model']}{size}{growth}"
    widths = "/".join(map(str, settings["widths"]))
    return f"{len(settings['widths'])} x {settings['blocks']} blocks of widths {widths}"
