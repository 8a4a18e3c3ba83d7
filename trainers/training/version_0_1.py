"""Conversion of settings in config.json and checkpoints of version 0.1.0."""

from collections.abc import Mapping
from typing import Any

from trainers.cli.settings import list_options, options
from trainers.training.settings import Settings

# Options that version 0.1.0 lacked, with the values that its networks and data sets used.
_CIFAR = {"stem_size": 3, "stem_strides": 1, "first_stride": 1}
_IMAGENET = {"dataset": "folder", "download": True, "train_images": None, "test_images": None, "held_out": None}
_IMAGENET |= {"first_stride": 2}


def upgrade(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in the current form; current settings are returned unchanged.

    Version 0.1.0 recorded None for options that a network does not have, omitted `dataset` in runs of
    trainers.imagenet, and recorded the blocks of trainers.cifar as one number.

    Args:
        values: JSON values by name. Names that are not settings are kept.
    """
    is_imagenet = "dataset" not in values and "val" in values
    added = _IMAGENET if is_imagenet else _CIFAR
    chosen = {"model": values.get("model"), "dataset": added.get("dataset", values.get("dataset"))}
    if not all(isinstance(value, str) for value in chosen.values()):
        return dict(values)
    known, mine = options(Settings), list_options(Settings, chosen)
    foreign = [name for name, value in values.items() if value is None and name in known and name not in mine]
    if not is_imagenet and not foreign:
        return dict(values)
    upgraded = {name: value for name, value in values.items() if name not in foreign}
    for name, value in added.items():
        if name in mine:
            upgraded.setdefault(name, value)
    for name, option in mine.items():
        if upgraded.get(name, option.default) is None and not option.optional:
            upgraded[name] = option.default
    if isinstance(upgraded.get("blocks"), int):
        upgraded["blocks"] = [upgraded["blocks"]]
    return upgraded
