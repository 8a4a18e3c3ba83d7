"""Signals that pause a running `fit`."""

import inspect
import signal
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from idmatters_tf._keras_internals import RunningFit

# A handler as `signal.signal` takes it.
Handler: TypeAlias = Callable[[int, types.FrameType | None], Any] | int


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
        self.fit, self._pause = fit, pause
        # Handlers outside of this `fit`.
        self.previous: dict[int, Handler] = {number: _find_previous(number) for number in numbers}
        for number in numbers:
            signal.signal(number, self)

    def __call__(self, number: int, frame: types.FrameType | None) -> None:
        signal.signal(number, self.previous[number])
        if self.fit.is_running(frame):
            self._pause()
        else:
            signal.raise_signal(number)

    def close(self) -> None:
        """Restore the previous handlers."""
        for number, previous in self.previous.items():
            if signal.getsignal(number) is self:
                signal.signal(number, previous)


def _find_previous(number):
    """Return the current handler, or the one before a `fit` that has raised."""
    found = signal.getsignal(number)
    while isinstance(found, PauseOnSignal) and not found.fit.is_running(inspect.currentframe()):
        found = found.previous[number]
    # None stands for a handler that was not installed by Python.
    return signal.SIG_DFL if found is None else found
