"""Deferred handling of SIGTERM and Ctrl-C."""

import signal
import types
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalHandler:
    """Context manager that records SIGTERM and Ctrl-C in place of their usual effect.

    Args:
        on_signal: called for each signal with the signal and the number of signals so far.
        patience: number of signals of each kind to record. The next signal of this kind has its usual effect, which
            ends the process at once. None: record all of them.

    Attributes:
        received: first signal, or None.
    """

    def __init__(self, on_signal: Callable[[signal.Signals, int], object] | None = None, patience: int | None = 1):
        self.received: signal.Signals | None = None
        self._on_signal, self._patience = on_signal, patience
        self._counts: dict[signal.Signals, int] = dict.fromkeys(SIGNALS, 0)
        self._previous: dict[signal.Signals, Callable[[int, types.FrameType | None], object] | int | None] = {}

    def __enter__(self) -> "SignalHandler":
        # Stored before the first signal can arrive.
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
            # Restore this kind only: a simultaneous signal of the other kind would be lost with a message from Python.
            signal.signal(kind, self._previous[kind])
        if self._on_signal is not None:
            self._on_signal(kind, sum(self._counts.values()))
