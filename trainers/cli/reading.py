"""Parsing of JSON that may be damaged or malicious."""

import json
import math
import pathlib
from typing import Any

# Settings have three levels, results of experiments a few more.
MOST_LEVELS = 50
MOST_BYTES = 1 << 28


def decode_json(content: str | bytes) -> Any:
    """Return the value of a JSON text.

    NaN and infinities are accepted, since losses may have these values.

    Args:
        content: text, or bytes in UTF-8.

    Raises:
        ValueError: invalid JSON; a number outside of the range of 64-bit integers or floats; invalid Unicode; or more
            than 50 levels of nested lists and objects.
    """
    text = content.decode() if isinstance(content, bytes) else content
    too_deep = f"it is nested in more than {MOST_LEVELS} levels"
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_float)
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [value]
    for _ in range(MOST_LEVELS):
        for each in level:
            if isinstance(each, str):
                _check_unicode(each)
            elif isinstance(each, dict):
                for key in each:
                    _check_unicode(key)
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return value
    raise ValueError(too_deep)


def read_json(path: pathlib.Path) -> Any:
    """Return the value of a JSON file, see `decode_json`.

    Raises:
        ValueError: the content is invalid or larger than 256 MiB.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    return decode_json(content)


def _inside(value):
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _check_unicode(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it contains half of a surrogate pair") from None


def _integer(text):
    # Python's limit is 4,300 digits.
    if len(text) <= 20 and -(2**63) <= (value := int(text)) < 2**63:
        return value
    raise ValueError(f"a whole number of {len(text.lstrip('-')):,} digits does not fit 64 bits")


def _float(text):
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large for a float")
    return value
