"""Quoting of commands and escaping of control characters."""

import os
import subprocess
import sys

import pytest

from idmatters_tf._arguments import abbreviate
from trainers.cli.startup import print_lines
from trainers.cli.text import as_text, escape_controls, join_command, program_command
from trainers.launch import child_environment

ODD = [
    "plain",
    "",
    "it's",
    'a "b"',
    "a\\b",
    "$HOME `id` !x",
    "new\nline\ttab",
    "\x1b[2J\x07",
    "\u202e\u2028\x85",
    "-x",
    "\x07abc\u202e12",
    "\x00",
]


@pytest.mark.parametrize("word", [word for word in ODD if "\x00" not in word])
def test_bash_parses_printed_commands(word):
    line = join_command(["printf", "%s", word])
    assert line.isprintable()
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8", "PATH": "/bin"}
    )
    assert done.stdout.decode() == word


@pytest.mark.parametrize(
    ("started_as", "expected"),
    [
        ("/home/user/trainers/cifar.py", "python -m trainers.cifar --out 'my run'"),
        ("-c", "python -m trainers.cifar --out 'my run'"),
        ("/usr/bin/idmatters-report", "idmatters-cifar --out 'my run'"),
    ],
)
def test_commands_repeat_the_form_of_the_start(started_as, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", [started_as])
    assert program_command("trainers.cifar", "--out", "my run") == expected
    environment = child_environment({})
    # Console scripts also start programs as modules.
    monkeypatch.setattr(sys, "argv", ["/home/user/trainers/cifar.py"])
    monkeypatch.setattr(os, "environ", environment)
    assert program_command("trainers.cifar", "--out", "my run") == expected


def test_control_characters_are_escaped(capsys):
    print_lines(*ODD)
    assert [line.isprintable() for line in capsys.readouterr().out.split("\n")] == [True] * (len(ODD) + 1)
    assert escape_controls("a\x1b\u202e\nb", keep="\n") == "a\\x1b\\u202e\nb"
    assert as_text("caf\udce9") == "caf\\xe9"
    assert as_text("café") == "café"


def test_long_values_are_abbreviated():
    assert abbreviate("x") == "'x'"
    assert len(abbreviate("x" * 5000)) < 220
