"""Fields of settings dataclasses and the options that they define, see `trainers.cli.settings`."""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from idmatters_tf._arguments import abbreviate

S = typing.TypeVar("S")
_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text that is not empty"}
_PLACEHOLDERS = {int: "N", float: "X"}
# Default upper bound of whole numbers: sizes and steps are 32-bit integers in TensorFlow's kernels.
MOST = 2**31 - 1
_type_hints = functools.cache(typing.get_type_hints)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declaration:
    """Properties of a setting, besides its name, type and default.

    Attributes:
        help: phrase for `--help`, without the default.
        metavar: placeholder of the value in `--help`; by default N for whole numbers and X for other numbers.
        at_least: lower bound, inclusive, of a number or of each number of a tuple.
        above: lower bound, exclusive.
        at_most: upper bound, inclusive; without it and `below`, whole numbers are at most `MOST`.
        below: upper bound, exclusive.
        may_be_empty: allow a tuple without values.
        positional: define a positional argument; for settings without a default.
        free_on_resume: allow other values when a run is resumed, since they do not affect results.
        free_per_task: allow different values in the tasks of a cluster.
        common: list the option in `--help` of programs that have `--help-all`.
        unset: text for `--help` in place of a default of None.
    """

    help: str
    metavar: str | None = None
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    may_be_empty: bool = False
    positional: bool = False
    free_on_resume: bool = False
    free_per_task: bool = False
    common: bool = False
    unset: str = ""


def setting(default: Any = dataclasses.MISSING, **properties: Any) -> Any:
    """Return a dataclass field that is an option of the command line and a key of the JSON form.

    Args:
        default: default value; a setting without one is required.
        properties: `help` and the other attributes of `Declaration`.
    """
    return dataclasses.field(default=default, metadata={"setting": Declaration(**properties)})


def group(settings: type[S], title: str, free_on_resume: bool = False, **defaults: Any) -> S:
    """Return a field that contains other settings, an argument group of `--help`.

    Args:
        settings: dataclass of the group.
        title: title of the argument group.
        free_on_resume: `Declaration.free_on_resume` of all settings of the group.
        defaults: defaults that replace those of the dataclass.
    """
    factory = functools.partial(settings, **defaults)
    metadata = {"group": title, "free_on_resume": free_on_resume}
    return typing.cast(S, dataclasses.field(default_factory=factory, metadata=metadata))


def choose(kinds: Mapping[str, type[S]], by: str, title: str) -> S:
    """Return a field that contains the settings of one of several kinds.

    Args:
        kinds: dataclass for each value of the option `by`, the default first. Each has a field of that name. Options of
            the same name have the same type in all kinds, but may have other defaults and choices.
        by: name of the option that selects the kind.
        title: title of the argument groups of `--help`. Options that some kinds lack are in a group whose title lists
            the kinds that have them.
    """
    first = functools.partial(next(iter(kinds.values())), **{by: next(iter(kinds))})
    return typing.cast(S, dataclasses.field(default_factory=first, metadata={"kinds": kinds, "by": by, "title": title}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option(Declaration):
    """Description of one setting: its declaration, name, type and default.

    Attributes:
        name: name of the attribute; `flag` is the name on the command line.
        title: title of the argument group, or None.
        kind: bool, int, float or str.
        many: True for a tuple of values.
        optional: True if None is allowed.
        default: default value; `dataclasses.MISSING` for required settings.
        choices: allowed values of a str, or empty.
        by: name of the option that selects the kind, for options of `choose`, including the selecting option itself.
        kinds: values of the option `by` for which this option exists.
    """

    name: str
    title: str | None
    kind: type
    many: bool
    optional: bool
    default: Any
    choices: tuple[str, ...]
    by: str | None = None
    kinds: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """Name on the command line, such as --drop-steps."""
        return "--" + self.name.replace("_", "-")

    def expected(self) -> str:
        """Return a description of valid values, for error messages."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = {"of at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        bounds = [f"{word} {bound:,}".replace(",", "") for word, bound in words.items() if bound is not None]
        return f"{_NOUNS[self.kind]} {' and '.join(bounds)}".strip()

    def parse(self, text: str) -> Any:
        """Convert one value from the command line. Raises ValueError."""
        try:
            value = self.kind(text)
        except ValueError:
            value = None
        return self._check_value(value, text)

    def check(self, value: Any) -> Any:
        """Check a value from JSON or Python, and return it with lists as tuples. Raises ValueError."""
        if value is None and self.optional:
            return None
        if not self.many:
            return self._check_value(value, value)
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"expected a list, each {self.expected()}, received {abbreviate(value)}")
        if not value and not self.may_be_empty:
            raise ValueError(f"expected one or more values, each {self.expected()}, received none")
        return tuple(self._check_value(number, number) for number in value)

    def _check_value(self, value: Any, received: Any) -> Any:
        if self.kind is float and type(value) is int:
            value = float(value)
        good = type(value) is self.kind
        if good and self.choices:
            good = value in self.choices
        elif good and self.kind is not bool:
            good = value != "" if self.kind is str else self._is_within_bounds(value)
        if not good:
            raise ValueError(f"expected {self.expected()}, received {abbreviate(received)}")
        return value

    def _is_within_bounds(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


@functools.cache
def options(settings: type) -> Mapping[str, Option]:
    """Return all options of a settings dataclass by name, in order, with those of groups and of all kinds."""
    return types.MappingProxyType({option.name: option for option in _options(settings, None, {}, None)})


def list_options(settings: type, chosen: Mapping[str, Any]) -> dict[str, Option]:
    """Return the options of the selected kinds by name, with their defaults for these kinds.

    Args:
        settings: the dataclass.
        chosen: values of the options that select kinds; missing or unknown values are replaced by the defaults.
    """
    return {option.name: option for option in _options(settings, None, {}, chosen)}


def _options(
    settings: type, title: str | None, defaults: Mapping[str, Any], chosen: Mapping[str, Any] | None
) -> Iterator[Option]:
    """Yield the options of a settings dataclass, of all kinds if `chosen` is None."""
    hints = _type_hints(settings)
    for field in dataclasses.fields(settings):
        if "group" in field.metadata:
            factory = typing.cast(Any, field.default_factory)
            for option in _options(factory.func, field.metadata["group"], factory.keywords, chosen):
                is_free = option.free_on_resume or field.metadata["free_on_resume"]
                yield dataclasses.replace(option, free_on_resume=is_free)
        elif "kinds" in field.metadata:
            yield from _merge_options(**field.metadata, chosen=chosen)
        else:
            declared = field.metadata["setting"]
            kind, many, optional, choices = _read_annotation(hints[field.name])
            properties = {**vars(declared), "metavar": declared.metavar or _PLACEHOLDERS.get(kind)}
            if kind is int and declared.at_most is None and declared.below is None:
                properties["at_most"] = MOST
            yield Option(
                **properties,
                name=field.name,
                title=title,
                kind=kind,
                many=many,
                optional=optional,
                default=defaults.get(field.name, field.default),
                choices=choices,
            )


def _merge_options(
    kinds: Mapping[str, type], by: str, title: str, chosen: Mapping[str, Any] | None
) -> Collection[Option]:
    """Return the options of a field made by `choose`, with options of the same name merged."""
    usual = next(iter(kinds))
    if chosen is not None:
        kind = chosen.get(by, usual)
        kinds = {kind: kinds[kind]} if kind in kinds else {usual: kinds[usual]}
    merged: dict[str, Option] = {}
    for kind, settings in kinds.items():
        for option in _options(settings, title, {}, chosen):
            before: Any = merged.get(option.name) or dataclasses.replace(option, by=by)
            merged[option.name] = dataclasses.replace(
                before,
                optional=before.optional or option.optional,
                common=before.common or option.common,
                choices=tuple(dict.fromkeys(before.choices + option.choices)),
                kinds=(*before.kinds, kind),
            )
    if chosen is None:
        for name, option in merged.items():
            if name == by:
                merged[name] = dataclasses.replace(option, default=usual, choices=tuple(kinds))
            elif option.kinds != tuple(kinds):
                merged[name] = dataclasses.replace(option, title=f"{title}: {', '.join(option.kinds)}")
    return merged.values()


def _read_annotation(annotation: Any) -> tuple[type, bool, bool, tuple[str, ...]]:
    """Return (kind, many, optional, choices) of an annotation such as `tuple[int, ...] | None`."""
    optional = many = False
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        alternatives = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        optional = len(alternatives) < len(typing.get_args(annotation))
        (annotation,) = alternatives
    if typing.get_origin(annotation) is tuple:
        many = True
        annotation, _ = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return str, many, optional, typing.get_args(annotation)
    return annotation, many, optional, ()
