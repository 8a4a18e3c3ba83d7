"""Settings as frozen dataclasses, and what follows from them: the command line with its help, JSON, and every check.

A program's settings are one dataclass, usually of groups:

    @dataclasses.dataclass(frozen=True)
    class Recipe:
        steps: int = setting(60_000, help="number of updates", metavar="N", at_least=1)
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

`parse` returns only what was typed, so that presets can stand between it and the defaults:
`with_defaults(Settings, PRESETS[...], typed)`. A bool is a pair of options, `--nesterov` and `--no-nesterov`.
Names are unique across the groups, so that the JSON form (`as_dict`, `make`) is one flat object. Whatever checks
several settings together belongs in `__post_init__`, which raises `UsageError`: then no instance is ever invalid,
wherever its values came from.

Settings of several kinds, of which one is chosen, are a dataclass for each kind, with a common base that has the
option by which it is chosen:

    @dataclasses.dataclass(frozen=True)
    class Settings:
        network: Network = one_of({"resnet": ResNet, "densenet": DenseNet}, by="model", title="network")

`--model densenet` then makes `settings.network` a `DenseNet`. The command line has the options of all kinds, those of
the same name once; an option that the chosen kind lacks is an error.
"""

import argparse
import dataclasses
import difflib
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from idmatters_tf._arguments import abbreviate
from trainers.cli.arguments import Parser, UsageError
from trainers.cli.options import Option, group, one_of, options, options_of, setting

__all__ = [
    "Option",
    "add_options",
    "as_dict",
    "defaults",
    "group",
    "make",
    "one_of",
    "options",
    "options_of",
    "parse",
    "setting",
    "with_defaults",
]

S = typing.TypeVar("S")


def add_options(
    parser: Parser, settings: type, usual: Callable[[Mapping[str, str]], Mapping[str, Any]] | None = None
) -> None:
    """Add the options of a settings dataclass to a parser, under the titles of its groups.

    Several dataclasses may share a title, and a parser.

    Args:
        parser: the parser.
        settings: the dataclass.
        usual: returns the defaults to show, by name, for values of the options that choose (see `one_of`); without it
            they are those of the dataclass.
    """
    usual = functools.partial(defaults, settings) if usual is None else usual
    shown: dict[tuple[str, str] | None, Mapping[str, Any]] = {}
    groups = {each.title: each for each in parser._action_groups}  # noqa: SLF001 - argparse has no public list
    for option in options(settings).values():
        if option.title is None:
            target = parser
        else:
            target = groups.get(option.title) or parser.add_argument_group(option.title)
            groups[option.title] = target
        # The options that choose have one default, whatever is chosen.
        choosing = [(option.by, kind) for kind in option.kinds] if option.by not in (None, option.name) else [None]
        for each in choosing:
            if each not in shown:
                shown[each] = usual({} if each is None else dict([each]))
        action = _add_option(target, option, {each and each[1]: shown[each].get(option.name) for each in choosing})
        if not option.common:
            parser.hide(action)


def _in_words(option: Option, usual: Mapping[str | None, Any]) -> str:
    """The defaults for --help: one, or one for each kind."""
    words: dict[str, list[str]] = {}
    for kind, value in usual.items():
        text = option.unset
        if value not in (None, (), []) and value is not False:
            text = "yes" if value is True else " ".join(map(str, value)) if option.many else str(value)
        if text:
            words.setdefault(text, []).append(str(kind))
    if len(words) == 1 and len(next(iter(words.values()))) == len(usual):
        return next(iter(words))
    return "; ".join(f"{text} in {', '.join(kinds)}" for text, kinds in words.items())


def _add_option(target: Any, option: Option, usual: Mapping[str | None, Any]) -> argparse.Action:
    help, default = option.help, _in_words(option, usual)
    if default:
        help = f"{help} (default: {default})"
    common: dict[str, Any] = {"help": help.replace("%", "%%"), "default": argparse.SUPPRESS}
    if option.kind is bool:
        return target.add_argument(option.flag, action=argparse.BooleanOptionalAction, dest=option.name, **common)
    common["metavar"] = option.metavar or (f"{{{','.join(option.choices)}}}" if option.choices else None)
    required = option.default is dataclasses.MISSING
    if option.many:
        common["nargs"] = "*" if option.may_be_empty else "+"
    if option.positional:
        return target.add_argument(option.name, action=_Store, option=option, **common)
    common |= {"dest": option.name, "required": required}
    return target.add_argument(option.flag, action=_Store, option=option, **common)


class _Store(argparse.Action):
    """Checks and stores the words of one option; several values may be separated by spaces or by commas."""

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
    """What was typed, by the settings' names, without any defaults; ends the process where it is wrong."""
    return vars(parser.parse_args(argv))


def defaults(settings: type, chosen: Mapping[str, Any] = types.MappingProxyType({})) -> dict[str, Any]:
    """Return the default of every setting that has one.

    Args:
        settings: the dataclass.
        chosen: values of the options that choose, see `one_of`.
    """
    listed = options_of(settings, chosen).values()
    known = {option.name: option.default for option in listed if option.default is not dataclasses.MISSING}
    return known | {name: chosen[name] for name in known if name in chosen}


def with_defaults(settings: type[S], *layers: Mapping[str, Any]) -> S:
    """Return settings from their defaults and from layers above them, such as a preset and what was typed, in turn.

    Of the layers below the last, what does not apply to the chosen kinds (see `one_of`) is left out.
    """
    *below, typed = layers or ({},)
    chosen = {name: option.default for name, option in options(settings).items() if option.by == name}
    for layer in layers:
        chosen |= {name: layer[name] for name in chosen if name in layer}
    known, mine = options(settings), options_of(settings, chosen)
    values = defaults(settings, chosen)
    for layer in below:
        values |= {name: value for name, value in layer.items() if _applies(known.get(name), mine.get(name), value)}
    return make(settings, {**values, **typed})


def _applies(known: Option | None, mine: Option | None, value: Any) -> bool:
    """Return False for a value that some kind takes, but not the chosen one."""
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
    """Return settings from a value for each of them, as `as_dict` returns them and JSON holds them.

    Args:
        settings: the dataclass.
        values: by the settings' names.
        source: where the values come from, such as a file, to begin the sentence of an error with.

    Raises:
        UsageError: a name is unknown or does not belong to the chosen kind, a value is missing or wrong, or values are
            wrong together; one sentence.
    """
    known, where = options(settings), "" if source is None else f"{source}: "
    unknown = [name for name in values if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{where}there is no setting {abbreviate(unknown[0])}.{hint}")
    choosing = {name: known[name] for name in values if known[name].by == name}
    checked = _checked_values(choosing, values, where)
    mine = options_of(settings, checked)
    for name in values:
        if name not in mine:
            option, flag = known[name], f"--{str(known[name].by).replace('_', '-')}"
            raise UsageError(
                f"{where}{option.flag} is not an option of {flag} {checked.get(str(option.by))}, but of {flag} "
                f"{', '.join(option.kinds)}."
            )
    missing = [name for name in mine if name not in values]
    if missing:
        option = mine[missing[0]]
        default = option.default
        usual = "" if default is dataclasses.MISSING else f", by default {json.dumps(default)}"
        raise UsageError(f"{where}the setting {option.name!r} is missing. Add it: {option.expected()}{usual}.")
    checked |= _checked_values({name: option for name, option in mine.items() if name not in choosing}, values, where)
    try:
        return _construct(settings, checked)
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None if source else error


def _checked_values(listed: Mapping[str, Option], values: Mapping[str, Any], where: str) -> dict[str, Any]:
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
