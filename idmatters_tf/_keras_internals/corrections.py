"""Corrections of functions of Keras, which other modules register and `correct_keras` makes.

A correction is made only if the function of Keras still contains the defect.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Correction = TypeVar("Correction", bound=Callable[..., Any])
# Owner and name of the function, text of the defect in its source, correction.
_corrections: list[tuple[Any, str, str, Callable[..., Any]]] = []
_corrected: set[tuple[Any, str]] = set()


def corrects(owner: Any, name: str, defect: str) -> Callable[[Correction], Correction]:
    """Return a decorator for a function that takes the place of one of Keras.

    Args:
        owner: module or class of the function of Keras.
        name: name of the function.
        defect: text in the source of the function. The function is kept if its source does not contain the text.

    Returns:
        Decorator of `correction(original, *args, **kwargs)`.
    """

    def register(correction):
        _corrections.append((owner, name, defect, correction))
        return correction

    return register


def correct_keras() -> None:
    """Make all registered corrections, until the process ends. Further calls have no effect."""
    for owner, name, defect, correction in _corrections:
        original = getattr(owner, name)
        if (owner, name) not in _corrected and defect in inspect.getsource(original):
            setattr(owner, name, _bind(correction, original))
        _corrected.add((owner, name))


def _bind(correction, original):
    @functools.wraps(original)
    def corrected(*args, **kwargs):
        return correction(original, *args, **kwargs)

    return corrected
