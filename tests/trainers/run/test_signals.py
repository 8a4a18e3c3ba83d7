"""Tests of deferred SIGTERM and Ctrl-C."""

import signal
import sys
import threading

import pytest

from trainers.run.signals import SIGNALS, SignalHandler


@pytest.fixture(autouse=True)
def usual_effect():
    """Replace the default effect of a signal, and restore it afterwards."""

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
        with pytest.raises(SystemExit, match="143"):
            signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="130"):
        signal.raise_signal(signal.SIGINT)


def test_two_kinds_that_come_at_once_are_both_received(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    calls = []
    with SignalHandler(lambda *call: calls.append(call)) as handler:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for number in SIGNALS:
            # To this thread, because another thread would not block them.
            signal.pthread_kill(threading.get_ident(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        assert sorted(calls) == [(signal.SIGINT, 1), (signal.SIGTERM, 2)]
        assert handler.received is signal.SIGINT
        for number, code in ((signal.SIGINT, "130"), (signal.SIGTERM, "143")):
            with pytest.raises(SystemExit, match=code):
                signal.raise_signal(number)
    assert not unraisable


def test_each_is_handed_on_with_its_number():
    calls = []
    with SignalHandler(lambda *call: calls.append(call), patience=None):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
    assert calls == [(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGTERM, 3)]
