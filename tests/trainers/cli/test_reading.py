"""Parsing of damaged and malicious JSON, and escaping of control characters."""

import json
import math
import os
import subprocess
import sys

import pytest

from idmatters_tf._arguments import abbreviate
from trainers.cli.reading import MOST_LEVELS, decode_json, read_json
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


@pytest.mark.parametrize(
    "value", [None, True, 5, -(2**63), 2**63 - 1, 0.5, 1e308, "text", "\U0001f600", [], {}, [{"a": [None, 1.5]}], ODD]
)
def test_values_of_json(value, tmp_path):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert decode_json(text) == decode_json(text.encode()) == value
        (tmp_path / "file").write_text(text, encoding="utf-8")
        assert read_json(tmp_path / "file") == value


def test_nan_and_infinity_are_accepted():
    assert math.isnan(decode_json("NaN"))
    assert decode_json("[Infinity, -Infinity]") == [math.inf, -math.inf]


def nested(levels):
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("9" * 5000, "a whole number of 5,000 digits"),
        (f"-{'9' * 30}", "a whole number of 30 digits"),
        (str(-(2**63) - 1), "a whole number of 19 digits"),
        ('{"a": 1e400}', "too large for a float"),
        ("-1e400", "too large for a float"),
        (nested(MOST_LEVELS + 1), "more than 50 levels"),
        ('{"a":' * 400 + "1" + "}" * 400, "more than 50 levels"),
        ("[" * 100_000, "more than 50 levels|Expecting"),
        ('["\\ud800"]', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        (b"\xff", "utf-8"),
        ("", "Expecting"),
        ("{", "Expecting"),
        ("\ufeff{}", "BOM"),
    ],
)
def test_invalid_json_is_a_value_error_of_one_line(content, message):
    with pytest.raises(ValueError, match=message) as error:
        decode_json(content)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_the_deepest_valid_nesting():
    assert decode_json(nested(MOST_LEVELS))


def test_an_endless_file_is_rejected(monkeypatch, tmp_path):
    monkeypatch.setattr("trainers.cli.reading.MOST_BYTES", 1000)
    (tmp_path / "file").write_text(" " * 1001)
    with pytest.raises(ValueError, match="larger than"):
        read_json(tmp_path / "file")


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
    assert abbreviate(10**5000) == "a very long int"
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert abbreviate(deep) == "a very long list"
