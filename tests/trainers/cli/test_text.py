"""Quoting of commands, and names of files that are not text."""

from idmatters_tf._arguments import abbreviate
from trainers.cli.text import as_text, program_command


def test_commands_are_quoted():
    assert program_command("trainers.cifar", "--out", "my run") == "python -m trainers.cifar --out 'my run'"


def test_names_of_any_bytes_become_text():
    assert as_text("caf\udce9") == "caf\\xe9"
    assert as_text("café") == "café"


def test_long_values_are_abbreviated():
    assert abbreviate("x") == "'x'"
    assert len(abbreviate("x" * 5000)) < 220
