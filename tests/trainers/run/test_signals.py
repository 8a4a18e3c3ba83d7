"""Tests of deferred SIGTERM and Ctrl-C."""

import signal

import pytest

from trainers.run.signals import SignalHandler


@pytest.fixture(autouse=True)
def usual_effect():
    """Replace the default effect of a signal, and restore it afterwards."""

    def act(number, _frame):
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, act) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def test_the_second_signal_has_its_usual_effect():
    with SignalHandler() as handler:
        assert handler.received is None
        signal.raise_signal(signal.SIGTERM)
        assert handler.received is signal.SIGTERM
        with pytest.raises(SystemExit, match="143"):
            signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="130"):
        signal.raise_signal(signal.SIGINT)
