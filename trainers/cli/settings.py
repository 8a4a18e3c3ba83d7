"""Settings as frozen dataclasses, which define the command line, its help, the JSON form and all checks.

A program's settings are one dataclass, usually of groups:

    @dataclasses.dataclass(frozen=True)
    class Recipe:
        steps: int = setting(60_000, help="number of updates", at_least=1)
        drop_steps: tuple[int, ...] = setting((30_000,), help="steps at which the learning rate drops", at_least=0)
        clip_norm: float | None = setting(None, help="bound on the global norm of the gradient", above=0)
        momentum_form: Literal["tensorflow1", "keras"] = setting("tensorflow1", help="...")

    @dataclasses.dataclass(frozen=True)
    class Settings:
        data: Data = group(Data, "data")
        recipe: Recipe = group(Recipe, "recipe", steps=1000)        # with another default

    parser = Parser(prog=..., description=...)
    add_options(parser, Settings)
    settings = with_defaults(Settings, parse(parser, argv))         # settings.recipe.steps

`parse` returns only the options given on the command line. Presets are applied between them and the defaults:
`with_defaults(Settings, PRESETS[...], typed)`. A bool is a pair of options, `--nesterov` and `--no-nesterov`.
Names are unique across the groups, since the JSON form (`as_dict`, `make`) is one flat object. Checks of several
settings together belong in `__post_init__`, which raises `UsageError`. Instances are therefore always valid.

Settings of several kinds are one dataclass per kind, with a common base that has the option that selects the kind:

    @dataclasses.dataclass(frozen=True)
    class Settings:
        network: Network = choose({"resnet": ResNet, "densenet": DenseNet}, by="model", title="network")

With `--model densenet`, `settings.network` is a `DenseNet`. The command line has the options of all kinds, each name
once. An option that the selected kind lacks is an error.
"""

import argparse
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from idmatters_tf._arguments import abbreviate
from trainers.cli.arguments import Parser, UsageError, suggest
from trainers.cli.options import Option, choose, group, list_options, options, setting

__all__ = [
    "Option",
    "add_options",
    "as_dict",
    "choose",
    "group",
    "list_options",
    "make",
    "options",
    "parse",
    "setting",
    "with_defaults",
]

S = typing.TypeVar("S")


def add_options(parser: Parser, settings: type, usual: Mapping[str, Any] = types.MappingProxyType({})) -> None:
    """Add the options of a settings dataclass to a parser, in its argument groups.

    Several dataclasses may share a parser and its groups.

    Args:
        parser: the parser.
        settings: the dataclass.
        usual: defaults shown in `--help` by name, where they are not those of the dataclass.
    """
    groups: dict[str | None, Any] = {group.title: group for group in parser._action_groups}  # noqa: SLF001
    for option in options(settings).values():
        if option.title is not None and option.title not in groups:
            groups[option.title] = parser.add_argument_group(option.title)
        target = parser if option.title is None else groups[option.title]
        action = _add_option(target, option, usual.get(option.name, option.default))
        if not option.common:
            parser.hidden.append(action)


def _add_option(target: Any, option: Option, default: Any) -> argparse.Action:
    shown = option.unset
    if default not in (None, (), [], False, dataclasses.MISSING):
        shown = "yes" if default is True else " ".join(map(str, default)) if option.many else str(default)
    text = f"{option.help} (default: {shown})" if shown else option.help
    common: dict[str, Any] = {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
    if option.kind is bool:
        return target.add_argument(option.flag, action=argparse.BooleanOptionalAction, dest=option.name, **common)
    common["metavar"] = option.metavar or (f"{{{','.join(option.choices)}}}" if option.choices else None)
    if option.many:
        common["nargs"] = "*" if option.may_be_empty else "+"
    if option.positional:
        return target.add_argument(option.name, action=_Store, option=option, **common)
    common |= {"dest": option.name, "required": option.default is dataclasses.MISSING}
    return target.add_argument(option.flag, action=_Store, option=option, **common)


class _Store(argparse.Action):
    """Action that checks and stores the values of an option, separated by spaces or commas."""

    def __init__(self, *args: Any, option: Option, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.option = option

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        option = self.option
        try:
            if option.many:
                words = values if option.kind is str else [part for word in values for part in word.split(",")]
                stored = tuple(map(option.parse, words))
            else:
                stored = option.parse(values)
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, stored)


def parse(parser: Parser, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the options on the command line by name, without defaults. Exits with code 2 for invalid ones."""
    return vars(parser.parse_args(argv))


def with_defaults(settings: type[S], *layers: Mapping[str, Any]) -> S:
    """Return settings from the defaults, overridden by each layer in turn, such as a preset and the command line.

    In all layers but the last, options that do not apply to the selected kinds (see `choose`) are ignored.
    """
    *below, typed = layers or ({},)
    chosen = {name: option.default for name, option in options(settings).items() if option.by == name}
    for layer in layers:
        chosen |= {name: layer[name] for name in chosen if name in layer}
    known, mine = options(settings), list_options(settings, chosen)
    values = {name: option.default for name, option in mine.items() if option.default is not dataclasses.MISSING}
    values |= chosen
    for layer in below:
        values |= {name: value for name, value in layer.items() if _applies(known.get(name), mine.get(name), value)}
    return make(settings, {**values, **typed})


def _applies(known: Option | None, mine: Option | None, value: Any) -> bool:
    """Return False for a value that is valid for another kind, but not for the selected one."""
    if known is None or known.by in (None, known.name):
        return True
    if mine is None:
        return False
    try:
        mine.check(value)
    except ValueError:
        return False
    return True


def make(settings: type[S], values: Mapping[str, Any], source: object = None) -> S:
    """Return settings from a value for each of them, in the form of `as_dict`.

    Args:
        settings: the dataclass.
        values: values by the settings' names.
        source: origin of the values, such as a file, as the start of error messages.

    Raises:
        UsageError: a name is unknown or does not belong to the selected kind, or a value is missing, invalid, or
            inconsistent with others.
    """
    known, where = options(settings), "" if source is None else f"{source}: "
    unknown = [name for name in values if name not in known]
    if unknown:
        raise UsageError(f"{where}there is no setting {abbreviate(unknown[0])}.{suggest(unknown[0], known)}")
    choosing = {name: known[name] for name in values if known[name].by == name}
    checked = _check_values(choosing, values, where)
    mine = list_options(settings, checked)
    for name in values:
        if name not in mine:
            option, flag = known[name], f"--{str(known[name].by).replace('_', '-')}"
            raise UsageError(
                f"{where}{option.flag} is not an option of {flag} {checked.get(str(option.by))}, but of {flag} "
                f"{', '.join(option.kinds)}."
            )
    missing = [name for name in mine if name not in values]
    if missing:
        expected = mine[missing[0]].expected()
        raise UsageError(f"{where}the setting {missing[0]!r} is missing. Add it: {expected}.")
    checked |= _check_values({name: option for name, option in mine.items() if name not in choosing}, values, where)
    try:
        return _construct(settings, checked)
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None if source else error


def _check_values(listed: Mapping[str, Option], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    checked = {}
    for name, option in listed.items():
        try:
            checked[name] = option.check(values[name])
        except ValueError as error:
            raise UsageError(f"{where}{name}: {error}") from None
    return checked


def _construct(settings: Any, values: Mapping[str, Any]) -> Any:
    arguments = {}
    for field in dataclasses.fields(settings):
        if "group" in field.metadata:
            factory = typing.cast(Any, field.default_factory)
            arguments[field.name] = _construct(factory.func, values)
        elif "kinds" in field.metadata:
            arguments[field.name] = _construct(field.metadata["kinds"][values[field.metadata["by"]]], values)
        else:
            arguments[field.name] = values[field.name]
    return settings(**arguments)


def as_dict(settings: Any) -> dict[str, Any]:
    """Return every setting by name, as JSON values: tuples become lists."""
    values = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if "setting" in field.metadata:
            values[field.name] = list(value) if isinstance(value, tuple) else value
        else:
            values |= as_dict(value)
    return values
