"""SIGTERM and Ctrl-C: requests that a program honours when it can."""

import signal
import types
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalHandler:
    """A context manager that receives SIGTERM and Ctrl-C in place of their usual effect.

    Args:
        on_signal: called for each with the signal and how many there have been so far, itself included.
        patience: how many signals are received; the one after them has its usual effect again, which ends the process
            at once. None: all of them.

    Attributes:
        received: the first signal, or None.
    """

    def __init__(self, on_signal: Callable[[signal.Signals, int], object] | None = None, patience: int | None = 1):
        self.received: signal.Signals | None = None
        self._on_signal, self._patience, self._count = on_signal, patience, 0
        self._previous = {}

    def __enter__(self) -> "SignalHandler":
        self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _receive(self, number: int, _frame: types.FrameType | None) -> None:
        self._count += 1
        self.received = self.received or signal.Signals(number)
        if self._count == self._patience:
            self._restore()
        if self._on_signal is not None:
            self._on_signal(signal.Signals(number), self._count)
