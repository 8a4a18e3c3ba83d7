"""Signals that pause a running `fit`."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence


@contextlib.contextmanager
def pausing_on(numbers: Sequence[signal.Signals], pause: Callable[[], object]) -> Iterator[None]:
    """Call a function for the first signal in the context. A second one has its usual effect.

    Args:
        numbers: signals to handle.
        pause: function to call.

    Raises:
        ValueError: this is not the main thread.
    """
    if numbers and threading.current_thread() is not threading.main_thread():
        raise ValueError(
            f"Argument `pause_on` of ExactResume requires `fit` in the main thread. Received: pause_on={list(numbers)} "
            f"in another thread. Call `pause()` from a handler of your own."
        )
    # None stands for a handler that was not installed by Python.
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}

    def handle(number, frame):
        signal.signal(number, previous[number])
        pause()

    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)
