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
`with_defaults(Settings, PRESETS[...], typed)`. A flag is a bool: `--nesterov` where its default is False,
`--no-download` where `download` is True, both where it is None. Names are unique across the groups, so that
the JSON form (`as_dict`, `make`) is one flat object. Whatever checks several settings together belongs in
`__post_init__`, which raises `UsageError`: then no instance is ever invalid, wherever its values came from.
"""

import argparse
import dataclasses
import difflib
import functools
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.text import abbreviate

S = typing.TypeVar("S")
_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text in UTF-8 that is not empty"}
# Of whole numbers without a bound of their own: sizes and steps are 32-bit integers in TensorFlow's kernels.
MOST = 2**31 - 1
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


def setting(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    may_be_empty: bool = False,
    positional: bool = False,
    free_on_resume: bool = False,
    free_per_task: bool = False,
    added_later: bool = False,
) -> Any:
    """A field that is an option of the command line, a key of the JSON form, and an attribute for the program.

    Args:
        default: its default; without one, the setting is required.
        help: a phrase for `--help`; the default is added to it.
        metavar: stands for the value in `--help`.
        choices: for a str; a `Literal` annotation says the same in the type.
        at_least, above, at_most, below: bounds of a number, or of each number of a tuple; a whole number is at most
            `MOST` where neither of the last two is given.
        may_be_empty: whether a tuple may have no values.
        positional: an argument without a name; for settings without a default.
        free_on_resume: changes no result, so that it may differ when a run is resumed.
        free_per_task: may differ between the tasks of a cluster.
        added_later: the config.json of an earlier version lacks it, and has its default.
    """
    bounds = Bounds(at_least, above, at_most, below)
    described = {"help": help, "metavar": metavar, "choices": tuple(choices), "bounds": bounds}
    described |= {"may_be_empty": may_be_empty, "positional": positional}
    described |= {"free_on_resume": free_on_resume, "free_per_task": free_per_task, "added_later": added_later}
    return dataclasses.field(default=default, metadata={"setting": described})


def group(settings: type[S], title: str, **defaults: Any) -> S:
    """A field that holds settings of its own: an argument group of `--help`, with some defaults replaced."""
    factory = functools.partial(settings, **defaults)
    return typing.cast(S, dataclasses.field(default_factory=factory, metadata={"group": title}))


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a number may be; None: no bound."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def contain(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"of at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        named = [f"{word} {bound:,}".replace(",", "") for word, bound in words.items() if bound is not None]
        return " and ".join(named)


@dataclasses.dataclass(frozen=True)
class Option:
    """One setting.

    Attributes:
        name: of the attribute; `flag` is that of the command line.
        title: of its group, or None.
        kind: bool, int, float or str.
        many: whether it is a tuple of these.
        optional: whether it may be None.
        default: `dataclasses.MISSING` where it has to be given.
        help, metavar, choices, bounds, may_be_empty, positional, free_on_resume, free_per_task, added_later: see
            `setting`.
    """

    name: str
    title: str | None
    kind: type
    many: bool
    optional: bool
    default: Any
    help: str
    metavar: str | None
    choices: tuple[str, ...]
    bounds: Bounds
    may_be_empty: bool
    positional: bool
    free_on_resume: bool
    free_per_task: bool
    added_later: bool

    @property
    def flag(self) -> str:
        """As it is typed: --drop-steps."""
        return "--" + self.name.replace("_", "-")

    def expected(self) -> str:
        """What a value (each value of several) has to be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return f"{_NOUNS[self.kind]} {self.bounds}".strip()

    def parse(self, text: str) -> Any:
        """One value as it was typed. Raises ValueError."""
        if self.kind is str:
            return self._checked(text, text)
        plain = text.replace("_", "")
        if _THOUSANDS.fullmatch(text):
            plain = text.replace(",", "")
        try:
            value = self.kind(plain)
        except ValueError:
            value = None
        return self._checked(value, text)

    def check(self, value: Any) -> Any:
        """The whole value from JSON or from Python, a list as a tuple. Raises ValueError."""
        if value is None and self.optional:
            return None
        if not self.many:
            return self._checked(value, value)
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"expected a list, each {self.expected()}, received {abbreviate(value)}")
        if not value and not self.may_be_empty:
            raise ValueError(f"expected one or more values, each {self.expected()}, received none")
        return tuple(self._checked(each, each) for each in value)

    def _checked(self, value: Any, received: Any) -> Any:
        if self.kind is float and type(value) is int:
            value = float(value)
        good = type(value) is self.kind
        if good and self.choices:
            good = value in self.choices
        elif good and self.kind is not bool:
            good = _is_text(value) if self.kind is str else self.bounds.contain(value)
        if not good:
            raise ValueError(f"expected {self.expected()}, received {abbreviate(received)}")
        return value


def _is_text(value: str) -> bool:
    """Whether it can name a file and be printed: a shell passes on any bytes, not only UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return value != "" and "\0" not in value


@functools.cache
def options(settings: type) -> Mapping[str, Option]:
    """Every option of a settings dataclass by name, those of its groups included, in order."""
    return types.MappingProxyType({option.name: option for option in _options(settings, None, {})})


def _options(settings: type, title: str | None, defaults: Mapping[str, Any]) -> list[Option]:
    hints = typing.get_type_hints(settings)
    found = []
    for field in dataclasses.fields(settings):
        if "group" in field.metadata:
            factory = typing.cast(Any, field.default_factory)
            found += _options(factory.func, field.metadata["group"], factory.keywords)
        else:
            described = dict(field.metadata["setting"])
            kind, many, optional, literals = _read_annotation(hints[field.name])
            described["choices"] = described["choices"] or literals
            bounds = described["bounds"]
            if kind is int and bounds.at_most is None and bounds.below is None:
                described["bounds"] = dataclasses.replace(bounds, at_most=MOST)
            default = defaults.get(field.name, field.default)
            found.append(Option(field.name, title, kind, many, optional, default, **described))
    names = [option.name for option in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TypeError(f"settings of the same name in {settings.__name__}: {', '.join(sorted(twice))}")
    return found


def _read_annotation(annotation: Any) -> tuple[type, bool, bool, tuple[str, ...]]:
    """(kind, many, optional, choices) of an annotation such as `tuple[int, ...] | None`."""
    optional = many = False
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        alternatives = [each for each in typing.get_args(annotation) if each is not type(None)]
        optional = len(alternatives) < len(typing.get_args(annotation))
        (annotation,) = alternatives
    if typing.get_origin(annotation) is tuple:
        many = True
        annotation, _ = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return str, many, optional, typing.get_args(annotation)
    return annotation, many, optional, ()


def add_options(parser: Parser, settings: type) -> None:
    """Adds the options of a settings dataclass to a parser, under the titles of its groups.

    Several dataclasses may share a title, and a parser.
    """
    groups = {each.title: each for each in parser._action_groups}  # noqa: SLF001 - argparse has no public list
    for option in options(settings).values():
        if option.title is None:
            target = parser
        else:
            target = groups.get(option.title) or parser.add_argument_group(option.title)
            groups[option.title] = target
        _add_option(target, option)


def _add_option(target: Any, option: Option) -> None:
    help = option.help
    shown = None if option.default is dataclasses.MISSING or option.kind is bool else option.default
    if shown is not None and shown != ():
        words = " ".join(map(str, shown)) if option.many else str(shown)
        help = f"{help} (default: {words})"
    common: dict[str, Any] = {"help": help.replace("%", "%%"), "default": argparse.SUPPRESS}
    if option.kind is bool:
        if option.default is None:
            target.add_argument(option.flag, action=argparse.BooleanOptionalAction, dest=option.name, **common)
        elif option.default:
            no = "--no-" + option.name.replace("_", "-")
            target.add_argument(no, action="store_false", dest=option.name, **common)
        else:
            target.add_argument(option.flag, action="store_true", dest=option.name, **common)
        return
    common["metavar"] = option.metavar or (f"{{{','.join(option.choices)}}}" if option.choices else None)
    required = option.default is dataclasses.MISSING
    if option.many:
        common["nargs"] = "*" if option.may_be_empty else "+"
    if option.positional:
        target.add_argument(option.name, action=_Store, option=option, **common)
    else:
        common |= {"dest": option.name, "required": required}
        target.add_argument(option.flag, action=_Store, option=option, **common)


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


def defaults(settings: type) -> dict[str, Any]:
    """The default of every setting that has one."""
    listed = options(settings).values()
    return {option.name: option.default for option in listed if option.default is not dataclasses.MISSING}


def with_defaults(settings: type[S], *layers: Mapping[str, Any]) -> S:
    """Settings from their defaults and whatever stands above them, such as a preset and what was typed, in turn."""
    values = defaults(settings)
    for layer in layers:
        values |= layer
    return make(settings, values)


def make(settings: type[S], values: Mapping[str, Any], source: object = None) -> S:
    """Settings from a value for each of them, as `as_dict` returns them and JSON holds them.

    Args:
        settings: the dataclass.
        values: by the settings' names.
        source: where the values come from, such as a file, to begin the sentence of an error with.

    Raises:
        UsageError: a name is unknown, a value is missing or wrong, or values are wrong together; one sentence.
    """
    known, where = options(settings), "" if source is None else f"{source}: "
    unknown = [name for name in values if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{where}there is no setting {abbreviate(unknown[0])}.{hint}")
    values = {name: option.default for name, option in known.items() if option.added_later} | dict(values)
    missing = [name for name in known if name not in values]
    if missing:
        option = known[missing[0]]
        default = option.default
        usual = "" if default is dataclasses.MISSING else f", by default {json.dumps(default)}"
        raise UsageError(f"{where}the setting {option.name!r} is missing. Add it: {option.expected()}{usual}.")
    checked = {}
    for name, option in known.items():
        try:
            checked[name] = option.check(values[name])
        except ValueError as error:
            raise UsageError(f"{where}{name}: {error}") from None
    try:
        return _construct(settings, checked)
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None if source else error


def _construct(settings: Any, values: Mapping[str, Any]) -> Any:
    arguments = {}
    for field in dataclasses.fields(settings):
        if "group" in field.metadata:
            factory = typing.cast(Any, field.default_factory)
            arguments[field.name] = _construct(factory.func, values)
        else:
            arguments[field.name] = values[field.name]
    return settings(**arguments)


def as_dict(settings: Any) -> dict[str, Any]:
    """Every setting by name, as JSON values: tuples become lists."""
    values = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if "group" in field.metadata:
            values |= as_dict(value)
        else:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def replaced(settings: S, **changes: Any) -> S:
    """The settings with some of them changed, and checked again."""
    return make(type(settings), {**as_dict(settings), **changes})
