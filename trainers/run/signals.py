"""SIGTERM and Ctrl-C: requests that a program honours when it can."""

import signal
import types
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalHandler:
    """A context manager that receives SIGTERM and Ctrl-C in place of their usual effect.

    Args:
        on_signal: called for each with the signal and how many there have been so far, itself included.
        patience: how many signals of each kind are received; the next one of this kind has its usual effect again,
            which ends the process at once. None: all of them.

    Attributes:
        received: the first signal, or None.
    """

    def __init__(self, on_signal: Callable[[signal.Signals, int], object] | None = None, patience: int | None = 1):
        self.received: signal.Signals | None = None
        self._on_signal, self._patience = on_signal, patience
        self._counts: dict[signal.Signals, int] = dict.fromkeys(SIGNALS, 0)
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "SignalHandler":
        # Known before the first can come.
        self._previous = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: types.FrameType | None) -> None:
        kind = signal.Signals(number)
        self._counts[kind] += 1
        self.received = self.received or kind
        if self._counts[kind] == self._patience:
            # Of this kind alone: one of the other kind that came with it would be lost, and Python say so.
            signal.signal(kind, self._previous[kind])
        if self._on_signal is not None:
            self._on_signal(kind, sum(self._counts.values()))
