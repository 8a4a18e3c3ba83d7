"""Tests of the ledger: its rows, the numbers read from runs, and the program that runs rows again."""

import dataclasses
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import tomllib

import pytest

from tests.conftest import ROOT
from trainers.cli.arguments import UsageError
from trainers.landscape import critical, identity, starts
from trainers.landscape.descent import DescentRow
from trainers.landscape.factorization import FactorizationRow
from trainers.reproduce import __main__ as program
from trainers.reproduce.numbers import Number
from trainers.reproduce.rows import Row, expand_command, format_commands, load
from trainers.shortcuts import conditions, norms, sweep, trajectory
from trainers.shortcuts.conditions import ConditionsRow
from trainers.shortcuts.norms import NormsRow
from trainers.shortcuts.sweep import SweepRow
from trainers.shortcuts.trajectory import TrajectoryRow

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
(out / "steps.csv").write_text("step\\n17\\n")
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
file = "steps.csv"
key = "step"
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


def test_reproducing_a_row(ledger, capfd):
    ledger("good")
    ledger("sum", "", 'rests_on = ["good"]')
    assert program.main(["good"]) == 0
    output = capfd.readouterr().out
    assert "step 17 of the work" in output
    assert re.search(r"error +21\.49 % +21\.5 % +0\.5 % +within", output)
    assert re.search(r"step +16 +17 +a factor of 1\.5 +within", output)
    # A row without commands runs those on which it depends.
    assert program.main(["sum"]) == 0
    output = capfd.readouterr().out
    assert "is finished" in output
    assert "sum: all numbers are within their tolerances" in output
    assert program.main(["--list"]) == 0
    assert re.search(r"^good +good +not run +not recorded$", capfd.readouterr().out, re.MULTILINE)


def test_exit_codes_of_the_command(ledger, capfd):
    ledger("diverged", "OUT 1", "exit_code = 1")
    assert program.main(["diverged"]) == 0
    ledger("failed", "OUT 1")
    assert program.main(["failed"]) == 1
    assert "failed: exit code 1 instead of 0" in capfd.readouterr().err
    ledger("outside", numbers=NUMBERS.replace("21.49", "30.0"))
    # The other rows run after a failure.
    ledger("refused", "OUT 2")
    assert program.main(["refused", "outside"]) == 2
    assert "1 of 2 numbers differ by more than their tolerance" in capfd.readouterr().out


def test_checking_an_existing_run(ledger, tmp_path, capfd):
    ledger("row")
    run = tmp_path / "mine"
    run.mkdir()
    (run / "result.json").write_text('{"error": 0.2}')
    assert program.main(["row", "--check", str(run)]) == 1
    output = capfd.readouterr().out
    assert "DIFFERS" in output
    assert "missing" in output
    assert not (tmp_path / "runs").exists()


def test_rows_of_tests_require_the_checkout(ledger, monkeypatch, capfd):
    ledger("tested", "", 'tests = ["tests/absent.py"]')
    with pytest.raises(UsageError, match=r"tested runs tests/absent.py of the checkout, which is not installed"):
        program.main(["tested"])
    ledger("tested", "", 'tests = ["tests/trainers/test_reproduce.py"]')
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="pytest is not installed"):
        program.main(["tested"])
    assert program.main(["--list"]) == 0
    assert "(tests of the checkout)" in capfd.readouterr().out


def test_invalid_input_raises_usage_errors(ledger):
    ledger("row")
    for arguments, message in (
        ("", "Specify names of rows or --list"),
        ("--list --check x", "--check requires the name of one row"),
        ("rows", "unknown row 'rows'. Did you mean row?"),
        ("raw", "unknown row 'raw'. See --list."),
        ("row --check nowhere", "nowhere contains none of the numbers of row"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            program.main(arguments.split())
    ledger("row", text="weight = 1")
    with pytest.raises(UsageError, match="row.toml is damaged: .*unexpected keyword argument 'weight'"):
        program.main(["row"])


def test_a_stopped_reproduction_is_resumed(ledger, tmp_path):
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
        assert process.wait(timeout=900) == 143
    assert program.main(["long"]) == 0


def test_rows_refer_to_existing_files():
    row_types = (ConditionsRow, NormsRow, SweepRow, TrajectoryRow, FactorizationRow, DescentRow)
    columns = {
        row.__name__.removesuffix("Row").lower(): {field.name for field in dataclasses.fields(row)} for row in row_types
    }
    data_sets = tomllib.loads((ROOT / "trainers" / "reproduce" / "data.toml").read_text())
    rows = load()
    for row in rows.values():
        assert row.verdict or not row.paper, row.name
        assert row.commands or row.tests or row.rests_on, row.name
        assert all((ROOT / test).is_file() for test in row.tests), row.name
        assert row.figure is None or (ROOT / "docs" / row.figure).is_file(), row.name
        assert not row.date or row.hardware, row.name
        assert {*row.rests_on, row.page or row.name} <= set(rows), row.name
        assert row.data is None or row.data in data_sets, row.name
        for number in row.numbers:
            has_tolerance, has_factor = number.tolerance is not None, number.factor is not None
            assert number.file is None or number.value is None or has_tolerance != has_factor, (row.name, number.name)
            assert (number.file is None) == (not number.key), (row.name, number.name)
            table = pathlib.PurePath(number.file or "").stem
            if table in columns:
                assert {number.key, *number.where} <= columns[table], (row.name, number.name)


def verdicts():
    """Yield verdicts of experiments on artificial results, with a row that reads its numbers from them."""
    targets = identity.symmetric_targets(4, (2.0,), 4)
    yield from (("identity-start", each) for each in identity.verdicts([*identity.measure(targets, 3, 9, 900)]))
    points = [critical.CriticalRow("d", 0, 0, 0, 2.0, -0.1, -0.1, held, False, True, True) for held in (True, False)]
    yield from (("critical-points", each) for each in critical.verdicts(points))
    changes = [
        starts.StartRow(start, layers, depth, beta, 1.0, 1.0, 1.0, 1.0, None)
        for start in starts.STARTS
        for layers in (1, 2)
        for depth in (4, 16)
        for beta in starts.EXPONENTS.values()
    ]
    yield from (("depth-limit", each) for each in starts.verdicts(changes))
    kinds = ("xavier", "orthogonal", "1-shortcut", "2-shortcut", "3-shortcut")
    ends = [(kind, depth) for kind in kinds for depth in (3, 24)]
    yield "li-figure-5", conditions.verdict([ConditionsRow(*end, 10, 2, 0, 0, 0, 0) for end in ends])
    for activation in ("linear", "relu"):
        yield "li-figure-3", norms.verdict([NormsRow(activation, 2**i, 0, 1, 0, 0.1, i) for i in range(1, 6)])
        path = [
            TrajectoryRow(activation, kind, 16, 0, 1, epoch, loss, condition, 1, 0.5, 1)
            for kind, condition in (("xavier", 100), ("orthogonal", 10), ("1-shortcut", 10), ("2-shortcut", 1))
            for epoch, loss in ((0, 1.0), (9, 0.1))
        ]
        names = ("li-figure-6", "li-figure-8", "li-section-5") if activation == "linear" else ("li-figure-7",) * 2
        yield from zip(names, trajectory.verdicts(path), strict=False)
    best = (("2-shortcut", 8), ("2-shortcut", 96), ("orthogonal", 8), ("orthogonal", 96))
    yield "li-figure-9", sweep.verdict([SweepRow("linear", *each, 1.0, True, 1e-5, 0, 5, 0.0) for each in best])


def test_rows_name_numbers_of_the_verdicts(tmp_path):
    found = {}
    rows = load()
    for name, verdict in verdicts():
        found.setdefault(name, {})[verdict.name] = verdict.numbers
    for name, numbers in found.items():
        (tmp_path / "result.json").write_text(json.dumps({"numbers": numbers}))
        named = [number for number in rows[name].numbers if number.file == "result.json"]
        assert len(named) >= 2
        for number in named:
            assert number.read(tmp_path) is not None, (name, number.name, numbers)


def test_reading_numbers_of_a_run(tmp_path):
    (tmp_path / "result.json").write_text('{"loaded": {"error": 0.25}}')
    lines = ['{"kind": "test", "step": 1, "seconds": 1, "loss": 4.0, "error": 0.5}\n' for _ in range(2)]
    lines[1] = lines[1].replace('"step": 1', '"step": 2').replace("4.0", "1.0")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    (tmp_path / "sweep.csv").write_text("depth,best,lg,partly\n4,False,1.0,1\n8,True,2.0 ± 0.3,\n8,False,5.0,2\n")

    def value(file, key, **how):
        return Number("x", file=file, key=key, **how).read(tmp_path)

    assert value("result.json", "loaded.error", times=100) == 25
    assert value("metrics.jsonl", "loss", where={"kind": "test"}) == 1
    assert value("metrics.jsonl", "loss", where={"kind": "test"}, take="max") == 4
    assert value("metrics.jsonl", "loss", take="mean") == 2.5
    assert value("metrics.jsonl", "loss", where={"step": 1}) == 4
    assert value("sweep.csv", "lg", where={"depth": 8, "best": "True"}, base=10) == 100
    assert value("sweep.csv", "partly", take="mean") is None
    for file, key in (("sweep.csv", "no"), ("nothing.json", "a"), ("result.json", "loaded")):
        assert value(file, key) is None
    (tmp_path / "result.json").write_text('{"loss": NaN}')
    assert value("result.json", "loss") is None
    assert Number("x", None, unit="%").compare(0.25) == ("x", "not recorded", "0.25 %", "", "nothing recorded")


def test_commands_of_rows_with_and_without_a_data_folder():
    command = "trainers.cifar --dataset cifar10 --data-dir DATA --blocks 1 --out OUT/a"
    assert expand_command(command, "runs/x", None) == shlex.split(
        "trainers.cifar --dataset cifar10 --blocks 1 --out runs/x/a"
    )
    assert expand_command(command, "o", "/d d")[3:5] == ["--data-dir", "/d d"]
    row = Row("row", 1, "item", commands=(command, "benchmarks/memorize.py"), tests=("tests/a.py",))
    assert format_commands(row, "o", "D") == [
        "python -m trainers.cifar --dataset cifar10 --data-dir D --blocks 1 --out o/a",
        "python benchmarks/memorize.py",
        "python -m pytest tests/a.py",
    ]
