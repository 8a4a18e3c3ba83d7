"""Settings of a program as a dataclass: the source of its options, its help, its JSON form and its checks.

    @dataclasses.dataclass(frozen=True)
    class Settings:
        steps: int = setting(60_000, help="number of updates", at_least=1)
        network: Network = group({"resnet": ResNet, "densenet": DenseNet}, "network", by="model")
        recipe: Recipe = group(Recipe, "recipe", seed=1)        # with another default

    settings = with_defaults(Settings, parser.parse(argv))      # settings.steps, settings.recipe.seed

A bool is a pair of options, `--download` and `--no-download`; a `Literal` is a choice. Names are unique across groups,
since the JSON form (`as_dict`, `make`) is one flat object. Checks of several settings together belong in
`__post_init__`, which raises `UsageError` or ValueError. Instances are therefore always valid.
"""

import argparse
import contextlib
import dataclasses
import functools
import math
import operator
import pathlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import idmatters_tf
from idmatters_tf._arguments import abbreviate
from trainers.cli.arguments import UsageError, option_of, suggest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = typing.TypeVar("S", bound="DataclassInstance")
T = typing.TypeVar("T", bound="DataclassInstance")
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

    name: str
    title: str | None = None  # title of the argument group
    kind: type  # bool, int, float or str
    many: bool  # a tuple of values
    default: object  # None: None is allowed; dataclasses.MISSING: required
    choices: tuple[str, ...]  # allowed values of a str; empty: all
    by: str | None = None  # name of the option that selects the kind, see `group`
    kinds: tuple[str, ...] = ()  # values of the option `by` for which this option exists

    @property
    def flag(self) -> str:
        """Name on the command line, such as --drop-steps."""
        return option_of(self.name)

    def describe(self, default: object) -> str:
        """Return the help text."""
        if default in (None, (), [], False, dataclasses.MISSING):
            return f"{self.help} (default: {self.unset})" if self.unset else self.help
        is_listed = isinstance(default, (list, tuple))
        values = cast(Iterable[object], default) if is_listed else ["yes" if default is True else default]
        shown = " ".join(map(str, values))
        return f"{self.help} (default: {shown})"

    def expected(self) -> str:
        """Return a description of valid values, for error messages."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bounds = " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in self.bounds.items())
        return f"{_NOUNS[self.kind]} {bounds.replace('at least', 'of at least')}".strip()

    def check(self, value: object) -> object:
        """Check a value and return it, with text as numbers and lists as tuples. Raises ValueError."""
        if value is None is self.default:
            return None
        if not self.many:
            return self._check_one(value)
        received = abbreviate(value)
        if not isinstance(value, (list, tuple)) or not (value or self.may_be_empty):
            raise ValueError(f"expected one or more values, each {self.expected()}, received {received}")
        parts = list(cast(Iterable[object], value))
        if self.kind is not str:
            parts = [part for each in parts for part in (each.split(",") if isinstance(each, str) else [each])]
        return tuple(map(self._check_one, parts))

    def _check_one(self, received: object) -> object:
        value = received
        if self.kind in (int, float) and isinstance(received, (int, str)) and not isinstance(received, bool):
            with contextlib.suppress(ValueError, OverflowError):
                value = self.kind(received)
        good = type(value) is self.kind and str(value) != "" and (not self.choices or value in self.choices)
        if good and isinstance(value, (int, float)):
            good = all(_BOUNDS[name](value, bound) for name, bound in self.bounds.items()) and math.isfinite(value)
        if not good:
            raise ValueError(f"expected {self.expected()}, received {abbreviate(received)}")
        return value


class Group(typing.NamedTuple):
    """Arguments of `group`."""

    kinds: Mapping[str | None, type]
    title: str
    by: str | None
    defaults: Mapping[str, object]


def setting(default: object = dataclasses.MISSING, **properties: object) -> Any:
    """Return a dataclass field that is an option, with `help`, bounds, and other properties of an `Option`."""
    return dataclasses.field(default=default, metadata={"setting": properties})


def group(kinds: type | Mapping[str, type], title: str, by: str | None = None, **defaults: object) -> Any:
    """Return a field that contains other settings.

    Args:
        kinds: dataclass of these settings; with `by`, a dataclass for each value of the option `by`, the default first.
            Options of the same name have the type and help of the first kind that has them.
        title: title of the argument groups. Options that some kinds lack have a group that lists the other kinds.
        by: name of the option that selects the kind, a field before this one or of all kinds.
        defaults: other defaults by name.
    """
    by_name: dict[str | None, type] = {None: kinds} if isinstance(kinds, type) else {**kinds}
    return dataclasses.field(metadata={"group": Group(by_name, title, by, defaults)})


@functools.cache
def options(settings: type) -> Mapping[str, Option]:
    """Return all options of a settings dataclass by name, in order, with those of its groups and of all kinds."""
    found: dict[str, Option] = {}
    hints = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        inside: Group | None = field.metadata.get("group")
        if inside is None:
            found[field.name] = _make_option(field, hints[field.name])
            continue
        kinds: dict[str, list[str]] = {}
        for kind, inner in inside.kinds.items():
            for name, option in options(inner).items():
                default = inside.defaults.get(name, option.default)
                found.setdefault(name, dataclasses.replace(option, by=inside.by, default=default))
                kinds.setdefault(name, []).append(str(kind))
        for name, having in kinds.items():
            listed = f": {', '.join(having)}" if len(having) < len(inside.kinds) else ""
            found[name] = dataclasses.replace(found[name], title=inside.title + listed, kinds=tuple(having))
        if inside.by is not None:
            names = tuple(map(str, inside.kinds))
            found[inside.by] = dataclasses.replace(
                found[inside.by], title=inside.title, default=names[0], choices=names
            )
    return found


def _make_option(field: dataclasses.Field[object], kind: object) -> Option:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = typing.get_args(kind)[0]
    many = typing.get_origin(kind) is tuple
    kind = typing.get_args(kind)[0] if many else kind
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    properties = dict(field.metadata["setting"])
    bounds = {name: properties.pop(name) for name in _BOUNDS if name in properties}
    if kind is int:
        bounds.setdefault("at_most", MOST)
    properties |= {"name": field.name, "default": field.default, "kind": str if choices else kind, "many": many}
    return Option(**properties, choices=choices, bounds=bounds)


class Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors.

    Attributes:
        checks: action and check of each option by name. The check returns the value, or raises ValueError.
        flags: option of each choice, for a choice without its option.
    """

    def __init__(self, prog: str, description: str | None, epilog: str | None = None):
        layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
        super().__init__(prog, description=description, epilog=epilog, formatter_class=layout, allow_abbrev=False)
        self.checks: dict[str, tuple[argparse.Action, Callable[[object], object]]] = {}
        self.flags: dict[str, str] = {}
        folder = pathlib.Path(idmatters_tf.__file__).resolve().parents[1]
        version = f"idmatters-tf {idmatters_tf.__version__} in {folder}"
        self.add_argument("--version", action="version", version=version, help="show version and location and exit")

    def parse(self, argv: Sequence[str] | None = None) -> dict[str, object]:
        """Return the options on the command line by name, without defaults. Exits with code 2 for invalid ones."""
        values = vars(self.parse_args(argv))
        for name in values.keys() & self.checks.keys():
            action, check = self.checks[name]
            try:
                values[name] = check(values[name])
            except ValueError as error:
                self.error(str(argparse.ArgumentError(action, str(error))))
        return values

    def error(self, message: str) -> NoReturn:
        """Print one line to standard error and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: ([^\s=]+)", message)
        if unknown:
            flag = self.flags.get(unknown[1])
            hint = suggest(unknown[1].replace("_", "-"), self._option_string_actions)
            hint = f" Did you mean {flag} {unknown[1]}?" if flag else hint
            message += f".{hint}" if hint else ""
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def make_parser(
    program: str,
    description: str | None,
    epilog: str,
    *settings: type,
    defaults: Mapping[str, object] | None = None,
    only_common: bool = False,
) -> Parser:
    """Return the parser of a program, the words behind `python -m`, whose options are those of settings dataclasses.

    The help shows `defaults` by name in place of those of the options, and with `only_common` common options only.
    """
    parser = Parser(f"python -m {program}", description, epilog)
    groups: dict[str | None, Any] = {None: parser}
    for name, option in {name: option for each in settings for name, option in options(each).items()}.items():
        text = argparse.SUPPRESS
        if option.common or not only_common:
            text = option.describe((defaults or {}).get(name, option.default)).replace("%", "%%")
        properties: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text}
        if not option.positional:
            properties |= {"dest": name, "required": option.default is dataclasses.MISSING}
        if option.kind is bool:
            properties["action"] = argparse.BooleanOptionalAction
        else:
            listed = f"{{{','.join(option.choices)}}}" if option.choices else None
            properties["metavar"] = option.metavar or {int: "N", float: "X"}.get(option.kind, listed)
        if option.many:
            properties["nargs"] = "*" if option.may_be_empty else "+"
        if option.title not in groups:
            groups[option.title] = parser.add_argument_group(option.title)
        action = groups[option.title].add_argument(name if option.positional else option.flag, **properties)
        parser.checks[name] = action, option.check
        parser.flags = dict.fromkeys(option.choices, option.flag) | parser.flags
    return parser


def make(settings: type[S], values: Mapping[str, object], source: object = None) -> S:
    """Return settings from a value for each of them, in the form of `as_dict`.

    Raises a UsageError, which starts with `source`, if a name is unknown or does not belong to the selected kind, or a
    value is missing, invalid, or inconsistent with others.
    """
    try:
        return with_defaults(settings, values, complete=True)
    except UsageError as error:
        raise UsageError(f"{source}: {error}" if source else str(error)) from None


def with_defaults(settings: type[S], *layers: Mapping[str, object], complete: bool = False) -> S:
    """Return settings from the defaults, overridden by each layer in turn, such as a preset and the command line.

    In all layers but the last, settings that the selected kinds lack (see `group`) are ignored. If the layers are
    `complete`, no defaults are used.
    """
    known = options(settings)
    values = {name: value for layer in layers for name, value in layer.items()}
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"there is no setting {abbreviate(name)}.{suggest(name, known)}")
        try:
            values[name] = known[name].check(value)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None

    def build(kind: type[T], defaults: Mapping[str, object]) -> T:
        arguments = {}
        for field in dataclasses.fields(kind):
            inside: Group | None = field.metadata.get("group")
            name = field.name if inside is None else inside.by
            value: object = None
            if name is not None:
                default = defaults.get(name, field.default) if inside is None else known[name].default
                value = values.get(name, dataclasses.MISSING if complete else default)
            if value is dataclasses.MISSING:
                option = known[str(name)]
                raise UsageError(f"the setting {option.name!r} is missing. Add it: {option.expected()}.")
            if inside is not None:
                selected = inside.kinds[None if inside.by is None else str(value)]
                value = cast(object, build(selected, inside.defaults))
            arguments[field.name] = value
        try:
            return kind(**arguments)
        except ValueError as error:
            # Errors of the library name arguments, and options have the same names.
            names = {name: option.flag for name, option in known.items()}
            text = re.split("`(\\w+)`", str(error))
            text[1::2] = [names.get(name, f"`{name}`") for name in text[1::2]]
            raise UsageError("".join(text)) from None

    made = build(settings, {})
    used = as_dict(made)
    for option in (known[name] for name in (layers[-1] if layers else ()) if name not in used):
        chosen = known[str(option.by)].flag
        raise UsageError(
            f"{option.flag} is not an option of {chosen} {used[str(option.by)]}, but of {chosen} "
            f"{', '.join(option.kinds)}."
        )
    return made


def as_dict(settings: "DataclassInstance") -> dict[str, object]:
    """Return every setting by name, as JSON values: tuples become lists."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if "group" in field.metadata:
            values |= as_dict(value)
        else:
            values[field.name] = list(cast(Iterable[object], value)) if isinstance(value, tuple) else value
    return values
