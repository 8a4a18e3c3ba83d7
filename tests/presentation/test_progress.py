"""The progress display on a terminal and in a log file."""

import io
import sys

import pytest

from idmatters_tf._presentation import progress as progress_module
from idmatters_tf._presentation.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream, monkeypatch, **options):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_module, "_LINE_SECONDS", 0.0)
    with Progress(10, "training", **options) as progress:
        progress.advance(2, text=None)
        progress.advance(2, "loss 0.5")
        progress.say("saved")
    return stream.getvalue()


def test_lines_in_a_log_file(monkeypatch):
    lines = shown(io.StringIO(), monkeypatch, done=4).splitlines()
    assert lines == ["training 8/10 loss 0.5, 0:00:00 left", "saved"]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    Progress(None, "eigenvalues", unit="products").advance(3)
    assert sys.stderr.getvalue() == "eigenvalues 3 products\n"


def test_bar_on_a_terminal(monkeypatch):
    bar, *updates = shown(Terminal(), monkeypatch, done=4, delay=0, leave=True).split("\r")[1:]
    assert "training:  40%" in bar
    assert "4/10" in bar
    assert any("8/10" in each and "loss 0.5" in each for each in updates)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(10, "short work") as progress:
        progress.advance(10)
    assert sys.stderr.getvalue().strip() == ""


def test_nothing_is_shown_by_other_processes(monkeypatch):
    for stream in (Terminal(), io.StringIO()):
        assert shown(stream, monkeypatch, progress=False) == ""
    with pytest.raises(ValueError, match="`progress` must be True or False"):
        Progress(10, "training", progress=1)
