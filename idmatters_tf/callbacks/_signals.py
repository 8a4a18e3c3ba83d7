"""Signals that pause a running `fit`."""

import inspect
import signal
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

from idmatters_tf._keras_internals import RunningFit


class PauseOnSignal:
    """Handler that calls a function for the first signal during a `fit`. A second one has its usual effect.

    Keras does not notify callbacks when `fit` raises. The handler then restores the previous one at the next signal.

    Args:
        fit: the running `fit`.
        pause: function to call.
        numbers: signals to handle.

    Raises:
        ValueError: this is not the main thread.
    """

    def __init__(self, fit: RunningFit, pause: Callable[[], object], numbers: Sequence[signal.Signals]):
        if numbers and threading.current_thread() is not threading.main_thread():
            raise ValueError(
                f"Argument `pause_on` of ExactResume requires `fit` in the main thread. Received: "
                f"pause_on={list(numbers)} in another thread. Call `pause()` from a handler of your own."
            )
        self._fit, self._pause = fit, pause
        self._previous = {number: _find_previous(number) for number in numbers}
        for number in numbers:
            signal.signal(number, self)

    def __call__(self, number: int, frame: types.FrameType | None) -> None:
        self._restore(number)
        if self._fit.is_running(frame):
            self._pause()
        else:
            signal.raise_signal(number)

    def close(self) -> None:
        """Restore the previous handlers."""
        for number in self._previous:
            if signal.getsignal(number) is self:
                self._restore(number)

    def previous(self, number: int) -> Any:
        """Return the handler of a signal outside of this `fit`, or None while `fit` is running."""
        is_running = self._fit.is_running(inspect.currentframe())
        return None if is_running else self._previous[signal.Signals(number)]

    def _restore(self, number):
        signal.signal(number, self._previous[signal.Signals(number)])


def _find_previous(number):
    """Return the current handler, or the one before a `fit` that has raised."""
    found = signal.getsignal(number)
    while isinstance(found, PauseOnSignal):
        previous = found.previous(number)
        if previous is None:
            return found
        found = previous
    # None stands for a handler that was not installed by Python.
    return signal.SIG_DFL if found is None else found
