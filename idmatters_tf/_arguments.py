"""Checks of arguments, and values in error messages. Neither Keras nor TensorFlow is imported here."""

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def positive_integer(argument: str, value: Any, owner: object | None = None) -> int:
    """The value as an `int`, NumPy's integers included.

    Args:
        argument: its name, for the message.
        value: what was received.
        owner: the layer or other object whose argument it is, named in the message.

    Raises:
        ValueError: where it is not an integer of at least 1; `True` does not count as 1.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(
            f"Argument `{argument}`{_of(owner)} must be a positive integer. Received: {argument}={value!r}"
        )
    return int(value)


def seed_number(value: Any, owner: object | None = None) -> int:
    """Return the argument `seed` as an `int`.

    Args:
        value: the value received.
        owner: the object whose argument it is, named in the message.

    Raises:
        ValueError: it is not a non-negative integer.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise ValueError(f"Argument `seed`{_of(owner)} must be a non-negative integer. Received: seed={value!r}")
    return int(value)


def one_of(argument: str, value: T, allowed: Sequence[T], owner: object | None = None) -> T:
    """The value if it is among those allowed.

    Raises:
        ValueError: where it is not; the message lists those that are.
    """
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"Argument `{argument}`{_of(owner)} must be one of {choices}. Received: {argument}={value!r}")
    return value


def abbreviate(value: Any, most: int = 200) -> str:
    """Return `repr(value)`, without its middle where that is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # Deeply nested, or a whole number of more than 4,300 digits.
        return f"a very long {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 4 :]}"


def _of(owner: object | None) -> str:
    return "" if owner is None else f" of {type(owner).__name__}"
