"""Tests of the ledger: its rows, the numbers read from runs, and the program that runs rows again."""

import dataclasses
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
import typing
from decimal import Decimal

import pytest

from tests.conftest import ROOT
from trainers.cli.arguments import UsageError
from trainers.landscape.__main__ import PROGRAM as LANDSCAPE
from trainers.reproduce import __main__ as program
from trainers.reproduce.numbers import agrees, compare, read_value
from trainers.reproduce.rows import Number, Row, expand_command, format_commands, format_number, load
from trainers.shortcuts import conditions, norms, sweep, trajectory

SHORTCUTS = [module.EXPERIMENT for module in (conditions, norms, sweep, trajectory)]

# Stand-in for a program that takes a while, saves on SIGTERM, and resumes.
PROGRAM = """
import json, pathlib, signal, sys, time
out = pathlib.Path(sys.argv[1]); code = int(sys.argv[2]) if len(sys.argv) > 2 else 0
out.mkdir(parents=True, exist_ok=True)
if (out / "result.json").exists():
    print("is finished")
    sys.exit(code)
def stop(*_):
    (out / "begun").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("step 17 of the work", flush=True)
if "slow" in sys.argv and not (out / "begun").exists():
    time.sleep(60)
(out / "result.json").write_text(json.dumps({"error": 0.215}))
sys.exit(code)
"""
NUMBERS = """
[[numbers]]
name = "error"
value = 21.49
unit = "%"
tolerance = 0.5
file = "result.json"
key = "error"
times = 100

[[numbers]]
name = "step"
value = 16
factor = 1.5
file = "log"
pattern = 'step (\\d+) of'
"""


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """Create a ledger whose rows run a stand-in for a program, and return the function that adds a row."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(PROGRAM)
    monkeypatch.setattr(program, "load", lambda: load(folder))
    monkeypatch.chdir(tmp_path)

    def add(name, words="OUT", text="", numbers=NUMBERS):
        commands = f'commands = ["{stand_in} {words}"]\n' if words else ""
        (folder / f"{name}.toml").write_text(f'order = 1\nitem = "{name}"\n{commands}{text}\n{numbers}')

    return add


def test_a_row_is_run_again_compared_and_resumed(ledger, capfd):
    ledger("good")
    assert program.main(["good"]) == 0
    first = capfd.readouterr().out
    assert "step 17 of the work" in first
    assert re.search(r"error +21\.49 % +21\.5 % +0\.5 % +within", first)
    assert re.search(r"step +16 +17 +a factor of 1\.5 +within", first)
    assert program.main(["good"]) == 0
    assert "is finished" in capfd.readouterr().out
    assert program.main(["--list"]) == 0
    assert re.search(r"^good +good +not run +not recorded$", capfd.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("change", [("21.49", "30.0"), ('"error"\ntimes', '"wrong"\ntimes')])
def test_a_number_outside_its_tolerance_or_missing_is_exit_code_1(ledger, capfd, change):
    ledger("row", numbers=NUMBERS.replace(*change))
    assert program.main(["row"]) == 1
    assert "1 of 2 numbers differ by more than their tolerance" in capfd.readouterr().out


def test_exit_codes_of_the_command(ledger, capfd):
    ledger("diverged", "OUT 1", "exit_code = 1")
    assert program.main(["diverged"]) == 0
    ledger("failed", "OUT 1")
    assert program.main(["failed"]) == 1
    assert "failed: exit code 1 instead of 0. The output is in" in capfd.readouterr().err
    # The other rows run after a failure.
    ledger("refused", "OUT 2")
    assert program.main(["refused", "diverged"]) == 2
    assert "diverged: all numbers are within" in capfd.readouterr().out


def test_a_run_that_exists_is_checked_without_running_anything(ledger, tmp_path, capfd):
    ledger("row")
    run = tmp_path / "mine"
    run.mkdir()
    with pytest.raises(UsageError, match="mine contains none of the numbers of row"):
        program.main(["row", "--check", str(run)])
    (run / "result.json").write_text('{"error": 0.2}')
    # Only runs of this program have a log.
    assert program.main(["row", "--check", str(run)]) == 1
    said = capfd.readouterr().out
    assert "DIFFERS" in said
    assert "missing" in said
    assert not (tmp_path / "runs").exists()


def test_rows_that_rest_on_others_run_those(ledger, capfd):
    ledger("one")
    ledger("sum", "", 'rests_on = ["one"]')
    assert program.main(["sum"]) == 0
    assert "sum: all numbers are within their tolerances" in capfd.readouterr().out
    ledger("drawing", "", 'verdict = "a drawing"', "")
    with pytest.raises(UsageError, match="drawing has no commands or tests: a drawing"):
        program.main(["drawing"])


def test_bad_input_is_one_sentence(ledger):
    ledger("row")
    for arguments, message in (
        ("", "Specify names of rows or --list"),
        ("row --list", "Specify names of rows or --list"),
        ("--list --check x", "--check requires the name of one row"),
        ("raw", "unknown row 'raw'. Did you mean row?"),
        ("row --check nowhere", "nowhere contains none of the numbers of row"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            program.main(arguments.split())


def test_a_signal_is_handed_on_and_the_same_command_goes_on(ledger, tmp_path):
    ledger("long", "OUT 0 slow")
    code = textwrap.dedent(f"""
        import pathlib, sys
        from trainers.reproduce import __main__ as program
        from trainers.reproduce.rows import load
        program.load = lambda: load(pathlib.Path({str(tmp_path / "ledger")!r}))
        sys.exit(program.main(["long"]))
    """)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"step 17"):
                break
        process.send_signal(signal.SIGTERM)
        assert b"run the same command again" in process.stdout.read()
        assert process.wait(timeout=30) == 143
    began = time.monotonic()
    assert program.main(["long"]) == 0
    assert time.monotonic() - began < 30


@pytest.fixture(scope="module")
def rows():
    return load()


def test_every_row_names_what_exists(rows):
    # `measure` is annotated with the rows that it returns.
    tables = {
        experiment.name: typing.get_args(experiment.measure.__annotations__["return"])[0]
        for experiment in (*SHORTCUTS, *LANDSCAPE.experiments(None))
    }
    data_sets = tomllib.loads((ROOT / "trainers" / "reproduce" / "data.toml").read_text())
    for row in rows.values():
        assert row.verdict or not row.paper, row.name
        assert all((ROOT / test).is_file() for test in row.tests), row.name
        assert row.figure is None or (ROOT / "docs" / row.figure).is_file(), row.name
        assert not row.date or row.hardware, row.name
        assert set(row.rests_on) <= set(rows), row.name
        assert row.data is None or row.data in data_sets, row.name
        for number in row.numbers:
            has_tolerance, has_factor = number.tolerance is not None, number.factor is not None
            assert number.file is None or number.value is None or has_tolerance != has_factor, (row.name, number.name)
            assert (number.file is None) == (number.key is None and number.pattern is None), (row.name, number.name)
            assert number.pattern is None or re.compile(number.pattern).groups == 1, (row.name, number.name)
            # A pattern is independent of columns.
            if number.pattern is None and number.file is not None and number.file.endswith(".csv"):
                columns = {field.name for field in dataclasses.fields(tables[number.file.removesuffix(".csv")])}
                assert {number.key, *number.where} <= columns, (row.name, number.name)


def verdicts():
    """Return verdicts of `trainers.shortcuts` on artificial results, by the row that reads its numbers from them."""
    growth = {"xavier": 2.4e10, "orthogonal": 63, "1-shortcut": 69, "2-shortcut": 1, "3-shortcut": 1.08}
    ends = [(kind, depth, math.log10(ratio) * (depth == 24)) for kind, ratio in growth.items() for depth in (3, 24)]
    rows = [conditions.ConditionsRow(kind, depth, 10, value, 0, 0, 0, 0) for kind, depth, value in ends]
    yield "li-figure-5", conditions.verdict(rows)
    norms_at = {"linear": (3.10, 2.50, 2.01, 1.62, 1.25), "relu": (3.76, 2.74, 1.88, 1.39, 0.99)}
    for activation, values in norms_at.items():
        rows = [norms.NormsRow(activation, 2**i, 0, 1, 0, 0.1, value) for i, value in enumerate(values, start=1)]
        yield "li-figure-3", norms.verdict(rows)
    # The largest gradient is in the middle of the path.
    paths = (
        ("linear", "li-figures-6-8", 3, (0.50, 0.47, 0.47), 6.2),
        ("relu", "li-figure-7", 12, (0.50, 0.48, 0.34), 8e3),
    )
    for activation, name, peak, index, ratio in paths:
        steps = [(0, 1.0, index[0], 0.0), (peak, 0.5, index[1], 1.0), (99, 0.1, index[2], 0.0)]
        rows = [
            trajectory.TrajectoryRow(activation, kind, 16, 0, 1, epoch, loss, condition, 1, share, gradient)
            for kind, condition in (("orthogonal", ratio), ("2-shortcut", 1))
            for epoch, loss, share, gradient in steps
        ]
        yield name, trajectory.verdict(rows)
    losses = [
        ("2-shortcut", 4, 2.6e-5),
        ("2-shortcut", 8, 2.9e-7),
        ("2-shortcut", 96, 1.2e-5),
        ("orthogonal", 96, 7.9e-4),
    ]
    rows = [sweep.SweepRow("linear", kind, depth, 1.0, True, loss, 0, 5, 0.0) for kind, depth, loss in losses]
    yield "li-figure-9", sweep.verdict(rows)


def test_patterns_find_their_numbers_in_the_verdicts(rows):
    texts = {}
    for name, verdict in verdicts():
        texts.setdefault(name, []).append(str(verdict))
    assert len(texts) == 5
    for name, lines in texts.items():
        read = [number for number in rows[name].numbers if number.pattern is not None]
        assert len(read) >= 2
        for number in read:
            found = re.findall(str(number.pattern), json.dumps({"verdicts": lines}, indent=2))
            assert len(found) == 1, (name, number.name, found, lines)
            # The share of the losses follows from the artificial path.
            assert number.name.startswith("share") or float(found[0]) == pytest.approx(float(number.value), rel=5e-3), (
                name,
                number.name,
            )


def test_what_is_read_from_a_run(tmp_path):
    (tmp_path / "result.json").write_text('{"loaded": {"error": 0.25}, "verdicts": ["grows x 2.4e+10 from"]}')
    lines = ['{"kind": "test", "step": 1, "seconds": 1, "loss": 4.0, "error": 0.5}\n' for _ in range(2)]
    lines[1] = lines[1].replace('"step": 1', '"step": 2').replace("4.0", "1.0")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    # Results of other programs have no steps; the last line is truncated.
    (tmp_path / "results.jsonl").write_text('{"seed": 0, "loss": 2}\n{"seed": 1, "loss": 3}\n{"seed": 2, "lo')
    (tmp_path / "sweep.csv").write_text("depth,best,lg,empty,partly\n4,False,1.0,,1\n8,True,2.0,,\n8,False,5.0,,2\n")

    def value(file, key=None, **how):
        return read_value(Number("x", file=file, key=key, **how), tmp_path)

    assert value("result.json", "loaded.error", times=100) == 25
    assert value("result.json", pattern=r"x ([0-9.e+]+) from") == 2.4e10
    assert value("metrics.jsonl", "loss", where={"kind": "test"}) == 1
    assert value("metrics.jsonl", "loss", where={"kind": "test"}, take="max") == 4
    assert value("metrics.jsonl", "loss", where={"kind": "test"}, take="ratio") == 0.25
    assert value("metrics.jsonl", "loss", take="mean") == 2.5
    assert value("results.jsonl", "loss", take="mean") == 2.5
    assert value("sweep.csv", "empty", take="mean") is None
    assert value("sweep.csv", "partly", take="mean") is None
    assert value("metrics.jsonl", "loss", where={"step": 1}) == 4
    assert value("sweep.csv", "lg", where={"depth": 8, "best": "True"}, base=10) == 100
    for file, key in (("sweep.csv", "empty"), ("sweep.csv", "no"), ("nothing.json", "a"), ("result.json", "loaded")):
        assert value(file, key) is None
    assert value("log", pattern="(a)") is None
    assert compare(Number("x", None, unit="%"), 0.25) == ("x", "not recorded", "0.25 %", "", "nothing recorded")


FOREIGN = ["null", '"x"', "[]", "{}", "1e400", "NaN", "Infinity", "9" * 5000, "1" + "0" * 400]


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
@pytest.mark.parametrize("take", ["last", "max", "mean", "ratio"])
def test_a_foreign_value_is_a_missing_number(suffix, take, tmp_path):
    number = Number("x", file=f"x.{suffix}", key="a", take=take, base=10)
    path = tmp_path / f"x.{suffix}"
    texts = [f"a\n{value}\n" if suffix == "csv" else f'{{"a": {value}}}\n' for value in FOREIGN]
    for content in (*map(str.encode, texts), b"a\n\xff\x00\n"):
        path.write_bytes(content)
        assert read_value(number, tmp_path) is None, content[:20]


def test_tolerances():
    absolute = Number("x", Decimal("0.2"), tolerance=Decimal("0.1"))
    assert [agrees(absolute, value) for value in (0.1, 0.3, 0.301, 0.09)] == [True, True, False, False]
    exact = Number("x", Decimal(50000), tolerance=Decimal(0))
    assert agrees(exact, 50000.0)
    assert not agrees(exact, 49999.0)
    ratio = Number("x", Decimal("1e-6"), factor=Decimal(2))
    assert all(agrees(ratio, value) for value in (5e-7, 2e-6))
    assert not any(agrees(ratio, value) for value in (2.1e-6, 4e-7, -1e-6, 0.0))
    assert agrees(Number("x", Decimal(0), factor=Decimal(2)), 0.0)


def load_row(folder, text):
    (folder / "x.toml").write_text(text)
    return load(folder)["x"]


def test_a_damaged_row_is_one_sentence(tmp_path):
    row = 'order = 1\nitem = "x"\n'
    for text, message in (
        (row + "weight = 1", "unexpected keyword argument 'weight'"),
        ("order = 1", "missing 1 required positional argument: 'item'"),
        ('order = 1\nitem = "x', "Unterminated string"),
    ):
        with pytest.raises(UsageError, match=f"x.toml is damaged: .*{message}"):
            load_row(tmp_path, text)


def test_digits_stay_as_they_are_written(tmp_path):
    text = 'order = 1\nitem = "x"\n'
    for name, value in (("error", "6.2e-12"), ("share", "0.20"), ("rows right", "50000")):
        text += f'[[numbers]]\nname = "{name}"\nvalue = {value}\ntolerance = 0\nfile = "a.json"\nkey = "b"\n'
    assert [format_number(number.value) for number in load_row(tmp_path, text).numbers] == ["6.2e-12", "0.20", "50,000"]


def test_commands_with_and_without_a_folder_of_data():
    command = "trainers.cifar --dataset cifar10 --data-dir DATA --blocks 1 --out OUT/a"
    assert expand_command(command, "runs/x", None) == shlex.split(
        "trainers.cifar --dataset cifar10 --blocks 1 --out runs/x/a"
    )
    assert expand_command(command, "o", "/d d")[3:5] == ["--data-dir", "/d d"]
    inside = "trainers.imagenet --data-dir DATA/imagenette --size 64"
    assert expand_command(inside, "o", "/d")[1:3] == ["--data-dir", "/d/imagenette"]
    assert expand_command(inside, "o", None) == ["trainers.imagenet", "--size", "64"]
    row = Row("row", 1, "item", commands=(command, "benchmarks/memorize.py"), tests=("tests/a.py",))
    assert format_commands(row, "o", "D") == [
        "python -m trainers.cifar --dataset cifar10 --data-dir D --blocks 1 --out o/a",
        "python benchmarks/memorize.py",
        "python -m pytest tests/a.py",
    ]
