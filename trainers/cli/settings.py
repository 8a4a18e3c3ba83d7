"""Settings of a program as a dataclass: the source of its options, its help, its JSON form and its checks.

    @dataclasses.dataclass(frozen=True)
    class Settings:
        steps: int = setting(60_000, help="number of updates", at_least=1)
        network: Network = group({"resnet": ResNet, "densenet": DenseNet}, "network", by="model")
        recipe: Recipe = group(Recipe, "recipe", seed=1)        # with another default

    settings = with_defaults(Settings, parser.parse(argv))      # settings.steps, settings.recipe.seed

A bool is a pair of options, `--nesterov` and `--no-nesterov`; a `Literal` is a choice. Names are unique across groups,
since the JSON form (`as_dict`, `make`) is one flat object. Checks of several settings together belong in
`__post_init__`, which raises `UsageError` or ValueError. Instances are therefore always valid.

The help of a field without `setting` is in the section "Attributes" of its class. A field with the metadata
`{"option": None}` is no setting.
"""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import itertools
import math
import operator
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from idmatters_tf._arguments import abbreviate
from trainers.cli.arguments import Parser, UsageError, suggest

S = typing.TypeVar("S")
# Default upper bound of whole numbers: sizes and steps are 32-bit integers in TensorFlow's kernels.
MOST = 2**31 - 1
_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text that is not empty"}
_BOUNDS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Setting: the arguments of `setting`, then properties of the field of the dataclass."""

    help: str  # phrase for --help, without the default
    metavar: str | None = None  # placeholder of the value in --help; by default N for whole and X for other numbers
    may_be_empty: bool = False  # a tuple may have no values
    positional: bool = False  # a positional argument, without a default
    common: bool = False  # listed by --help of programs that have --help-all
    unset: str = ""  # text for --help in place of a default of None
    bounds: Mapping[str, float]  # numbers by key of `_BOUNDS`, for a number or each number of a tuple

    name: str = ""
    title: str | None = None  # title of the argument group
    kind: type = str  # bool, int, float or str
    many: bool = False  # a tuple of values
    default: Any = None  # None: None is allowed; dataclasses.MISSING: required
    choices: tuple[str, ...] = ()  # allowed values of a str; empty: all
    by: str | None = None  # name of the option that selects the kind, see `group`
    kinds: tuple[str, ...] = ()  # values of the option `by` for which this option exists

    @property
    def flag(self) -> str:
        """Name on the command line, such as --drop-steps."""
        return "--" + self.name.replace("_", "-")

    def describe(self, default: Any) -> str:
        """Return the help text."""
        if default in (None, (), [], False, dataclasses.MISSING):
            return f"{self.help} (default: {self.unset})" if self.unset else self.help
        shown = "yes" if default is True else " ".join(map(str, default)) if self.many else str(default)
        return f"{self.help} (default: {shown})"

    def expected(self) -> str:
        """Return a description of valid values, for error messages."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bounds = " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in self.bounds.items())
        return f"{_NOUNS[self.kind]} {bounds.replace('at least', 'of at least')}".strip()

    def check(self, value: Any) -> Any:
        """Check a value and return it, with text as numbers and lists as tuples. Raises ValueError."""
        if value is None is self.default:
            return None
        if not self.many:
            return self._check_one(value)
        if not isinstance(value, (list, tuple)) or not (value or self.may_be_empty):
            raise ValueError(f"expected one or more values, each {self.expected()}, received {abbreviate(value)}")
        if self.kind is not str:
            value = [part for each in value for part in (each.split(",") if isinstance(each, str) else [each])]
        return tuple(map(self._check_one, value))

    def _check_one(self, received: Any) -> Any:
        value: Any = received
        if self.kind in (int, float) and type(received) in (int, str):
            with contextlib.suppress(ValueError, OverflowError):
                value = self.kind(value)
        good = type(value) is self.kind and str(value) != "" and (not self.choices or value in self.choices)
        for name, bound in self.bounds.items():
            good = good and _BOUNDS[name](value, bound)
        if not good or (self.kind is float and not -math.inf < value < math.inf):
            raise ValueError(f"expected {self.expected()}, received {abbreviate(received)}")
        return value


def setting(default: Any = dataclasses.MISSING, **properties: Any) -> Any:
    """Return a dataclass field that is an option, with `help`, bounds, and other properties of an `Option`."""
    bounds = {name: properties.pop(name) for name in _BOUNDS if name in properties}
    return dataclasses.field(default=default, metadata={"option": Option(bounds=bounds, **properties)})


def group(kinds: Any, title: str, by: str | None = None, **defaults: Any) -> Any:
    """Return a field that contains other settings.

    Args:
        kinds: dataclass of these settings; with `by`, a dataclass for each value of the option `by`, the default first.
            Options of the same name have the type and help of the first kind that has
            them; others may have fewer choices.
        title: title of the argument groups. Options that some kinds lack have a group that lists the other kinds.
        by: name of the option that selects the kind, a field before this one or of all kinds.
        defaults: other defaults by name.
    """
    by_name = {None: kinds} if by is None else kinds
    return dataclasses.field(metadata={"kinds": by_name, "title": title, "by": by, "defaults": defaults})


@functools.cache
def options(settings: type) -> Mapping[str, Option]:
    """Return all options of a settings dataclass by name, in order, with those of its groups and of all kinds."""
    found: dict[str, Option] = {}
    for field in dataclasses.fields(settings):
        if "kinds" not in field.metadata:
            if _is_option(field):
                found[field.name] = _read_option(settings, field)
            continue
        kinds, title, by, defaults = field.metadata.values()
        merged: dict[str, Option] = {}
        for kind, inner in kinds.items():
            for name, option in options(inner).items():
                before = merged.get(name, option)
                merged[name] = dataclasses.replace(before, kinds=(*before.kinds, kind))
        for name, option in merged.items():
            shown = title if option.kinds == tuple(kinds) else f"{title}: {', '.join(option.kinds)}"
            usual = defaults.get(name, option.default)
            found[name] = dataclasses.replace(option, by=by, title=shown, default=usual)
        if by is not None:
            found[by] = dataclasses.replace(found[by], title=title, default=next(iter(kinds)), choices=tuple(kinds))
    return found


def _is_option(field: dataclasses.Field) -> bool:
    return field.metadata.get("option", field) is not None


def _read_attributes(settings: type) -> dict[str, str]:
    """Return the descriptions in the section "Attributes" of a docstring by name, as phrases without backticks."""
    section = inspect.cleandoc(settings.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    texts = (" ".join(text.split()).replace("`", "").rstrip(".") for text in found[1::2])
    return dict(zip(found[::2], texts, strict=True))


def _read_option(settings: type, field: dataclasses.Field) -> Option:
    annotation = typing.get_type_hints(settings)[field.name]
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    kind = typing.get_args(annotation)[0] if is_union else annotation
    many = typing.get_origin(kind) is tuple
    kind = typing.get_args(kind)[0] if many else kind
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    option = field.metadata.get("option") or Option(
        help=_read_attributes(settings).get(field.name, ""),
        bounds={},
        common=field.metadata.get("common", False),
        may_be_empty=field.default == (),
    )
    kind = str if choices else kind
    bounds = {**option.bounds, "at_most": option.bounds.get("at_most", MOST)} if kind is int else option.bounds
    named = dataclasses.replace(option, name=field.name, default=field.default)
    return dataclasses.replace(named, kind=kind, many=many, choices=choices, bounds=bounds)


def make_parser(program: str, description: str | None, epilog: str, *settings: type) -> Parser:
    """Return the parser of a program, the words behind `python -m`, whose options are those of settings dataclasses."""
    parser = Parser(prog=f"python -m {program}", description=description, epilog=epilog)
    groups: dict[str | None, Any] = {None: parser}
    for option in itertools.chain(*(options(each).values() for each in settings)):
        properties: dict[str, Any] = {}
        if not option.positional:
            properties |= {"dest": option.name, "required": option.default is dataclasses.MISSING}
        if option.kind is bool:
            properties["action"] = argparse.BooleanOptionalAction
        else:
            listed = f"{{{','.join(option.choices)}}}" if option.choices else None
            properties["metavar"] = option.metavar or {int: "N", float: "X"}.get(option.kind, listed)
        if option.many:
            properties["nargs"] = "*" if option.may_be_empty else "+"
        if option.title not in groups:
            groups[option.title] = parser.add_argument_group(option.title)
        name = option.name if option.positional else option.flag
        action = groups[option.title].add_argument(name, default=argparse.SUPPRESS, **properties)
        parser.options[action] = option
    parser.describe()
    return parser


def make(settings: type[S], values: Mapping[str, Any], source: object = None) -> S:
    """Return settings from a value for each of them, in the form of `as_dict`.

    Raises a UsageError, which starts with `source`, if a name is unknown or does not belong to the selected kind, or a
    value is missing, invalid, or inconsistent with others.
    """
    try:
        return with_defaults(settings, values, complete=True)
    except UsageError as error:
        raise UsageError(f"{source}: {error}" if source else str(error)) from None


def with_defaults(settings: type[S], *layers: Mapping[str, Any], complete: bool = False) -> S:
    """Return settings from the defaults, overridden by each layer in turn, such as a preset and the command line.

    In all layers but the last, values that the selected kinds do not accept (see `group`) are ignored. If the layers
    are `complete`, no defaults are used.
    """
    known = options(settings)
    typed = layers[-1] if layers else {}
    for name in itertools.chain(*layers):
        if name not in known:
            raise UsageError(f"there is no setting {abbreviate(name)}.{suggest(name, known)}")

    def find(option: Option) -> Any:
        for layer in reversed(layers):
            if option.name in layer:
                try:
                    return option.check(layer[option.name])
                except ValueError as error:
                    if layer is typed:
                        raise UsageError(f"{option.name}: {error}") from None
        if complete or option.default is dataclasses.MISSING:
            raise UsageError(f"the setting {option.name!r} is missing. Add it: {option.expected()}.")
        return option.default

    def build(kind: Any) -> Any:
        arguments = {}
        for field in dataclasses.fields(kind):
            if "kinds" in field.metadata:
                by = field.metadata["by"]
                arguments[field.name] = build(field.metadata["kinds"][by and find(known[by])])
            elif _is_option(field):
                option = known[field.name]
                arguments[field.name] = find(option if option.by in (None, option.name) else options(kind)[field.name])
        try:
            return kind(**arguments)
        except ValueError as error:
            # Errors of the library name arguments, and options have the same names.
            flag = lambda found: known[found[1]].flag if found[1] in known else found[0]  # noqa: E731
            raise UsageError(re.sub("`(\\w+)`", flag, str(error))) from None

    made = build(settings)
    used = as_dict(made)
    for option in (known[name] for name in typed if name not in used):
        chosen = known[str(option.by)].flag
        raise UsageError(
            f"{option.flag} is not an option of {chosen} {used[str(option.by)]}, but of {chosen} "
            f"{', '.join(option.kinds)}."
        )
    return made


def as_dict(settings: Any) -> dict[str, Any]:
    """Return every setting by name, as JSON values: tuples become lists."""
    values = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if "kinds" in field.metadata:
            values |= as_dict(value)
        elif _is_option(field):
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return values
