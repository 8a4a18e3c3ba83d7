"""Type checks of the contents of config.json, metrics.jsonl and result.json.

The settings in config.json are checked one by one when a program needs them, see `trainers.cli.settings.make`.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from idmatters_tf._arguments import abbreviate

# Numbers in records and results. A diverging run has losses and norms that are not finite.
_FINITE = ("seconds", "learning_rate", "images_per_second", "best_step", "steps", "parameters")
_FRACTIONS = ("error", "top5_error", "best_error", "last_error", "last_top5_error")
_MAY_DIVERGE = ("loss", "penalty", "gradient_norm", "last_loss")
_NUMBERS = (*_FINITE, *_FRACTIONS, *_MAY_DIVERGE)
# Required numbers of the records of each kind.
_REQUIRED = {"train": ("seconds", "loss", "error", "images_per_second"), "test": ("seconds", "loss", "error")}


def check_config(config: Any) -> None:
    """Raise ValueError unless `config` has the types of config.json."""
    _check_object(config, _CONFIG, required=("settings",))


def check_result(result: Any, numbers: Collection[str] = ()) -> None:
    """Raise ValueError unless `result` has the types of result.json.

    Args:
        result: content of the file; the names in results of experiments are arbitrary.
        numbers: required names with numbers. If there are any, the result is that of a training run, and its other
            numbers are also checked.
    """
    _check_object(result, {"verdicts": ("a list of texts", _is_list_of_texts)})
    missing = [name for name in numbers if name not in result]
    if missing:
        raise ValueError(f"no number {missing[0]!r}")
    _check_numbers(result, _NUMBERS if numbers else ())


def check_record(record: Any) -> None:
    """Raise ValueError unless `record` is a record of metrics.jsonl."""
    _check_object(record, {"kind": _TEXT, "norms": _OBJECT}, required=("kind",))
    required = ("step", *_REQUIRED.get(record["kind"], ()))
    missing = [name for name in required if name not in record]
    if missing or type(record["step"]) is not int or record["step"] < 0:
        raise ValueError(f"no number {missing[0] if missing else 'step'!r}")
    _check_numbers(record, _NUMBERS)


def _check_object(
    value: Any, items: Mapping[str, tuple[str, Callable[[Any], bool]]], required: Collection[str] = ()
) -> None:
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    for name, (expected, is_right) in items.items():
        absent = name not in required and value.get(name) is None
        if not absent and not is_right(value.get(name)):
            raise ValueError(f"{name} must be {expected}, received {abbreviate(value.get(name))}")


def _check_numbers(values: Mapping[str, Any], names: Collection[str]) -> None:
    for name in names:
        value = values.get(name, 0)
        good = type(value) in (int, float) and (name in _MAY_DIVERGE or math.isfinite(value))
        # Rounding can raise a training error of 1 above 1.
        if not good or (name in _FRACTIONS and not 0 <= value < 1.001):
            expected = "a number from 0 to 1" if name in _FRACTIONS else "a number"
            raise ValueError(f"{name} must be {expected}, received {abbreviate(value)}")


def _is_text(value):
    return isinstance(value, str)


def _is_object(value):
    return isinstance(value, dict)


def _is_list_of_texts(value):
    return isinstance(value, list) and all(map(_is_text, value))


_TEXT = ("text", _is_text)
_OBJECT = ("an object", _is_object)
_CONFIG = {
    "settings": _OBJECT,
    "program": _TEXT,
    "data": _OBJECT,
    "versions": ("an object of texts", lambda value: _is_object(value) and all(map(_is_text, value.values()))),
    "numerics": _OBJECT,
    "command": ("a list of texts", _is_list_of_texts),
    "extended": ("a list of objects", lambda value: isinstance(value, list) and all(map(_is_object, value))),
}
