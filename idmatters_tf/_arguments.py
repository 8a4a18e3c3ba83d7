"""Validation of arguments, and names and values in messages and results. Neither Keras nor TensorFlow is imported."""

import re
import unicodedata
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def positive_integer(argument: str, value: object, owner: object | None = None) -> int:
    """Return the value of an argument as an `int`, including NumPy integers.

    Args:
        argument: name of the argument for the message.
        value: the received value.
        owner: layer or other object with this argument, named in the message.

    Raises:
        ValueError: the value is not an integer of at least 1. Booleans are not accepted.
    """
    return _integer(argument, value, 1, "a positive integer", owner)


def seed_number(value: object, owner: object | None = None) -> int:
    """Return the argument `seed` as an `int`.

    Args:
        value: the received value.
        owner: object with this argument, named in the message.

    Raises:
        ValueError: the value is not a non-negative integer.
    """
    return non_negative_integer("seed", value, owner)


def non_negative_integer(argument: str, value: object, owner: object | None = None) -> int:
    """Return the value of an argument as an `int`. Arguments and errors: as `positive_integer`, with 0 allowed."""
    return _integer(argument, value, 0, "a non-negative integer", owner)


def interval(every: object, unit: str, units: Sequence[str], owner: object | None = None) -> tuple[int, str]:
    """Return the number and the unit of the argument `every`, such as 3, "epoch", "100 steps" or "10 minutes".

    An integer counts `unit`. Raises ValueError for other values, and for a text with a unit that is not in `units`.
    """
    text = re.fullmatch(f"(?:0*([1-9][0-9]*) )?({'|'.join(units)})s?", every) if isinstance(every, str) else None
    if text is not None:
        return int(text[1] or 1), text[2]
    return _integer("every", every, 1, f'a positive integer, or a text such as "10 {units[-1]}s"', owner), unit


def distinguish(names: Sequence[str]) -> list[str]:
    """Return names for a message, in ASCII where two look alike, as by Unicode forms or trailing spaces."""
    looks = [" ".join(unicodedata.normalize("NFKC", name).split()) for name in names]
    return [ascii(name) if looks.count(look) > 1 else name for name, look in zip(names, looks, strict=True)]


def check_choice(argument: str, value: T, allowed: Sequence[T], owner: object | None = None) -> T:
    """Return the value of an argument if it is allowed.

    Raises:
        ValueError: the value is not allowed. The message lists the allowed values.
    """
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(
            f"Argument `{argument}`{_name_owner(owner)} must be one of {choices}. Received: {argument}={value!r}"
        )
    return value


def abbreviate(value: object, most: int = 200) -> str:
    """Return `repr(value)`, without the middle of a long text."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 4 :]}"


def describe_differences(
    saved: Mapping[str, object],
    now: Mapping[str, object],
    names: Iterable[str] | None = None,
    allowed: Mapping[str, object] | None = None,
) -> list[str]:
    """Return "NAME was VALUE, now VALUE" for each name whose values differ.

    Args:
        saved: values by name. A missing value equals None.
        now: other values by name.
        names: names to compare. If None, those of `saved`.
        allowed: other values by name that count as equal to the saved ones. If None, there are none.
    """
    allowed = saved if allowed is None else allowed
    return [
        f"{name} was {abbreviate(saved.get(name))}, now {abbreviate(now.get(name))}"
        for name in (saved if names is None else names)
        if now.get(name) not in (saved.get(name), allowed.get(name))
    ]


def make_unique_name(name: str, names: Container[str], separator: str = ":") -> str:
    """Return the name, or "name:2", "name:3" and so on if the names contain it."""
    unique = name
    number = 1
    while unique in names:
        number += 1
        unique = f"{name}{separator}{number}"
    return unique


def _integer(argument: str, value: Any, least: int, expected: str, owner: object | None) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(
            f"Argument `{argument}`{_name_owner(owner)} must be {expected}. Received: {argument}={value!r}"
        )
    return int(value)


def _name_owner(owner: object | None) -> str:
    return "" if owner is None else f" of {type(owner).__name__}"


def as_utf8(name: str) -> str:
    """Return the name of a file with escapes in place of bytes that are not UTF-8, which Python reads as surrogates."""
    return name.encode(errors="backslashreplace").decode()
