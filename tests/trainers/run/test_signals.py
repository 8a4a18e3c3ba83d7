"""SIGTERM and Ctrl-C as requests."""

import signal

import pytest

from trainers.run.signals import SignalHandler


@pytest.fixture(autouse=True)
def usual_effect():
    """Stands for what a signal does by default, and is restored afterwards."""

    def act(number, _frame):
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, act) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def test_the_first_is_received_and_the_second_has_its_usual_effect():
    with SignalHandler() as handler:
        assert handler.received is None
        signal.raise_signal(signal.SIGTERM)
        assert handler.received is signal.SIGTERM
        with pytest.raises(SystemExit, match="130"):
            signal.raise_signal(signal.SIGINT)
        assert handler.received is signal.SIGTERM


def test_each_is_handed_on_with_its_number():
    calls = []
    with SignalHandler(lambda *call: calls.append(call), patience=None):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
    assert calls == [(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGTERM, 3)]


def test_the_usual_effect_is_back_after_the_block():
    with SignalHandler():
        pass
    with pytest.raises(SystemExit, match="143"):
        signal.raise_signal(signal.SIGTERM)
