"""Settings of a program as a dataclass: the source of its options, its help, its JSON form and its checks.

    @dataclasses.dataclass(frozen=True)
    class Recipe:
        steps: int = setting(60_000, help="number of updates", at_least=1)

    @dataclasses.dataclass(frozen=True)
    class Settings:
        network: Network = choose({"resnet": ResNet, "densenet": DenseNet}, by="model", title="network")
        recipe: Recipe = group(Recipe, "recipe", steps=1000)        # with another default

    settings = with_defaults(Settings, parse(parser, argv))         # settings.recipe.steps

A bool is a pair of options, `--nesterov` and `--no-nesterov`; a `Literal` is a choice. Names are unique across groups,
since the JSON form (`as_dict`, `make`) is one flat object. Checks of several settings together belong in
`__post_init__`, which raises `UsageError`. Instances are therefore always valid.
"""

import argparse
import contextlib
import dataclasses
import math
import operator
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from idmatters_tf._arguments import abbreviate
from trainers.cli.arguments import Parser, UsageError, suggest

S = typing.TypeVar("S")
# Default upper bound of whole numbers: sizes and steps are 32-bit integers in TensorFlow's kernels.
MOST = 2**31 - 1
_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text that is not empty"}
_BOUNDS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}
_BOUND_WORDS = {"at_least": "of at least", "at_most": "at most"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One setting: the arguments of `setting`, then properties of the field of the dataclass."""

    help: str  # phrase for --help, without the default
    metavar: str | None = None  # placeholder of the value in --help; by default N for whole and X for other numbers
    at_least: float | None = None  # bounds of a number or of each number of a tuple
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    may_be_empty: bool = False  # a tuple may have no values
    positional: bool = False  # a positional argument, without a default
    common: bool = False  # listed by --help of programs that have --help-all
    unset: str = ""  # text for --help in place of a default of None

    name: str = ""
    title: str | None = None  # title of the argument group
    kind: type = str  # bool, int, float or str
    many: bool = False  # a tuple of values
    optional: bool = False  # None is allowed
    default: Any = None  # dataclasses.MISSING: required
    choices: tuple[str, ...] = ()  # allowed values of a str; empty: all
    by: str | None = None  # name of the option that selects the kind, see `choose`
    kinds: tuple[str, ...] = ()  # values of the option `by` for which this option exists

    @property
    def flag(self) -> str:
        """Name on the command line, such as --drop-steps."""
        return "--" + self.name.replace("_", "-")

    def expected(self) -> str:
        """Return a description of valid values, for error messages."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = [f"{_BOUND_WORDS.get(name, name)} {bound:,}".replace(",", "") for name, bound in self._bounds()]
        return f"{_NOUNS[self.kind]} {' and '.join(words)}".strip()

    def check(self, value: Any) -> Any:
        """Check a value and return it, with text as numbers and lists as tuples. Raises ValueError."""
        if value is None and self.optional:
            return None
        if not self.many:
            return self._check_one(value)
        if not isinstance(value, (list, tuple)) or not (value or self.may_be_empty):
            raise ValueError(f"expected one or more values, each {self.expected()}, received {abbreviate(value)}")
        return tuple(map(self._check_one, value))

    def _check_one(self, received: Any) -> Any:
        value = received
        if self.kind in (int, float) and type(value) in (int, str):
            with contextlib.suppress(ValueError, OverflowError):
                value = self.kind(value)
        good = type(value) is self.kind and value != "" and (not self.choices or value in self.choices)
        if good and self.kind is not bool and isinstance(value, (int, float)):
            good = all(_BOUNDS[name](value, bound) for name, bound in self._bounds()) and math.isfinite(value)
        if not good:
            raise ValueError(f"expected {self.expected()}, received {abbreviate(received)}")
        return value

    def _bounds(self) -> Iterator[tuple[str, Any]]:
        bounds = {name: getattr(self, name) for name in _BOUNDS}
        if self.kind is int and self.at_most is None and self.below is None:
            bounds["at_most"] = MOST
        return ((name, bound) for name, bound in bounds.items() if bound is not None)


def setting(default: Any = dataclasses.MISSING, **properties: Any) -> Any:
    """Return a dataclass field that is an option, with `help` and other properties of an `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(**properties)})


def group(settings: type[S], title: str, **defaults: Any) -> S:
    """Return a field that contains other settings, an argument group, with some other defaults."""
    metadata = {"kinds": {None: settings}, "by": None, "title": title, "defaults": defaults}
    return typing.cast(S, dataclasses.field(metadata=metadata))


def choose(kinds: Mapping[str, type[S]], by: str, title: str) -> S:
    """Return a field that contains the settings of one of several kinds.

    Args:
        kinds: dataclass for each value of the option `by`, the default first. Each has a field of that name. Options of
            the same name have the type and help of the first kind that has them; others may have fewer choices.
        by: name of the option that selects the kind.
        title: title of the argument groups. Options that some kinds lack have a group that lists the other kinds.
    """
    metadata = {"kinds": kinds, "by": by, "title": title, "defaults": {}}
    return typing.cast(S, dataclasses.field(metadata=metadata))


def options(settings: type) -> dict[str, Option]:
    """Return all options of a settings dataclass by name, in order, with those of its groups and of all kinds."""
    found: dict[str, Option] = {}
    for field in dataclasses.fields(settings):
        if "kinds" not in field.metadata:
            found[field.name] = _read_option(settings, field)
            continue
        kinds, by, title, defaults = (field.metadata[name] for name in ("kinds", "by", "title", "defaults"))
        merged: dict[str, Option] = {}
        for kind, inner in kinds.items():
            for name, option in options(inner).items():
                before = merged.get(name, option)
                merged[name] = dataclasses.replace(before, kinds=(*before.kinds, kind))
        for name, option in merged.items():
            shown = title if option.kinds == tuple(kinds) else f"{title}: {', '.join(option.kinds)}"
            default = defaults.get(name, option.default)
            found[name] = dataclasses.replace(option, by=by, title=shown, default=default)
        if by is not None:
            found[by] = dataclasses.replace(found[by], default=next(iter(kinds)), choices=tuple(kinds))
    return found


def _read_option(settings: type, field: dataclasses.Field) -> Option:
    annotation = typing.get_type_hints(settings)[field.name]
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    kind, *others = typing.get_args(annotation) if is_union else (annotation,)
    many = typing.get_origin(kind) is tuple
    kind = typing.get_args(kind)[0] if many else kind
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    properties = {"kind": str if choices else kind, "many": many, "optional": bool(others), "choices": choices}
    return dataclasses.replace(field.metadata["option"], name=field.name, default=field.default, **properties)


def make_parser(program: str, description: str | None, epilog: str, settings: type) -> Parser:
    """Return the parser of a program, the words behind `python -m`, whose options are those of a settings dataclass."""
    parser = Parser(prog=f"python -m {program}", description=description, epilog=epilog)
    add_options(parser, settings)
    return parser


def add_options(parser: Parser, settings: type, usual: Mapping[str, Any] = types.MappingProxyType({})) -> None:
    """Add the options of a settings dataclass to a parser, with the defaults `usual` in `--help` if given."""
    groups: dict[str | None, Any] = {None: parser}
    for option in options(settings).values():
        if option.title not in groups:
            groups[option.title] = parser.add_argument_group(option.title)
        action = _add_option(groups[option.title], option, usual.get(option.name, option.default))
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
    listed = f"{{{','.join(option.choices)}}}" if option.choices else None
    common |= {"action": _Store, "option": option}
    common["metavar"] = option.metavar or {int: "N", float: "X"}.get(option.kind, listed)
    if option.many:
        common["nargs"] = "*" if option.may_be_empty else "+"
    if option.positional:
        return target.add_argument(option.name, **common)
    required = option.default is dataclasses.MISSING
    return target.add_argument(option.flag, dest=option.name, required=required, **common)


class _Store(argparse.Action):
    def __init__(self, *args: Any, option: Option, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.option = option

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if self.option.many and self.option.kind is not str:
            values = [part for word in values for part in word.split(",")]
        try:
            setattr(namespace, self.dest, self.option.check(values))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def parse(parser: Parser, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the options on the command line by name, without defaults. Exits with code 2 for invalid ones."""
    return vars(parser.parse_args(argv))


def make(settings: type[S], values: Mapping[str, Any], source: object = None) -> S:
    """Return settings from a value for each of them, in the form of `as_dict`.

    Raises a UsageError, which starts with `source`, if a name is unknown or does not belong to the selected kind, or a
    value is missing, invalid, or inconsistent with others.
    """
    try:
        return _resolve(settings, values, None)
    except UsageError as error:
        raise UsageError(f"{source}: {error}" if source else str(error)) from None


def with_defaults(settings: type[S], *layers: Mapping[str, Any]) -> S:
    """Return settings from the defaults, overridden by each layer in turn, such as a preset and the command line.

    In all layers but the last, values that the selected kinds do not accept (see `choose`) are ignored.
    """
    *below, typed = layers or ({},)
    return _resolve(settings, typed, below)


def _resolve(settings: Any, values: Mapping[str, Any], below: Sequence[Mapping[str, Any]] | None) -> Any:
    known = options(settings)
    used: dict[str, Any] = {}
    for name in (name for layer in (values, *(below or ())) for name in layer):
        if name not in known:
            raise UsageError(f"there is no setting {abbreviate(name)}.{suggest(name, known)}")

    def find(option: Option) -> Any:
        if option.name in values:
            try:
                return option.check(values[option.name])
            except ValueError as error:
                raise UsageError(f"{option.name}: {error}") from None
        for layer in reversed(below or ()):
            with contextlib.suppress(KeyError, ValueError):
                return option.check(layer[option.name])
        if below is None or option.default is dataclasses.MISSING:
            raise UsageError(f"the setting {option.name!r} is missing. Add it: {option.expected()}.")
        return option.default

    def build(kind: Any) -> Any:
        arguments = {}
        for field in dataclasses.fields(kind):
            if "kinds" in field.metadata:
                by = field.metadata["by"]
                arguments[field.name] = build(field.metadata["kinds"][by and find(known[by])])
            else:
                option = known[field.name]
                option = option if option.by in (None, option.name) else _read_option(kind, field)
                arguments[field.name] = used[field.name] = find(option)
        return kind(**arguments)

    made = build(settings)
    for name in (name for name in values if name not in used):
        option, chosen = known[name], known[str(known[name].by)]
        kinds = f"{used[chosen.name]}, but of {chosen.flag} {', '.join(option.kinds)}"
        raise UsageError(f"{option.flag} is not an option of {chosen.flag} {kinds}.")
    return made


def as_dict(settings: Any) -> dict[str, Any]:
    """Return every setting by name, as JSON values: tuples become lists."""
    values = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        flat = {field.name: list(value) if isinstance(value, tuple) else value}
        values |= as_dict(value) if "kinds" in field.metadata else flat
    return values
