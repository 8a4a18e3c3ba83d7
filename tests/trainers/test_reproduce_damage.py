"""Tests of runs of rows whose files are truncated or contain values of other types."""

import dataclasses
import re
from decimal import Decimal

import pytest

from trainers.reproduce import __main__ as program
from trainers.reproduce.numbers import read_value
from trainers.reproduce.rows import load

CUT = [
    "",
    "{",
    '{"state": "with',
    "[]",
    "5",
    "null",
    '{"state": 5}',
    '{"state": []}',
    '{"state": "\\u001b[2J"}',
    "[" * 100_000,
]


@pytest.mark.parametrize("content", CUT)
def test_a_cut_result_does_not_stop_the_list(content, tmp_path, capsys):
    (tmp_path / "quick.json").write_text(content)
    assert program.main(["--list", "--out", str(tmp_path)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("quick "))
    assert line.endswith("damaged")
    (tmp_path / "quick.json").write_text('{"state": "within"}')
    assert program.main(["--list", "--out", str(tmp_path)]) == 0
    assert re.search(r"^quick .*within$", capsys.readouterr().out, re.MULTILINE)


FOREIGN = ["null", '"x"', "[]", "{}", "1e400", "NaN", "Infinity", "9" * 5000, "[" * 100_000, "1" + "0" * 400]


@pytest.mark.parametrize("content", FOREIGN)
@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
@pytest.mark.parametrize("take", ["last", "max", "mean", "ratio"])
def test_a_foreign_value_is_a_missing_number(content, suffix, take, tmp_path):
    number = dataclasses.replace(next(iter(load()["quick"].numbers)), file=f"x.{suffix}", key="a", pattern=None)
    number = dataclasses.replace(number, where={}, take=take, base=Decimal(10))
    (tmp_path / f"x.{suffix}").write_text(f"a\n{content}\n" if suffix == "csv" else f'{{"a": {content}}}\n')
    assert read_value(number, tmp_path, tmp_path / "log") is None
    (tmp_path / f"x.{suffix}").write_bytes(b"a\n\xff\x00\n")
    assert read_value(number, tmp_path, tmp_path / "log") is None
