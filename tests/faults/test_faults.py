"""A few faults of each kind. `make faults FAULTS=50 SEED=0` tries many more."""

import dataclasses
import json

import pytest

from tests.conftest import ROOT
from tests.faults import command_lines, foreign
from tests.faults.__main__ import main as faults
from tests.faults.bench import Bench
from tests.faults.fits import ROW, by_source
from tests.faults.kinds import KINDS, attempt
from tests.faults.soak import Sample, growth, is_flat
from tests.faults.tally import DETAIL, Journal, Tally, table
from trainers.card.__main__ import TASKS
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, list_options, make
from trainers.run import contents
from trainers.run.folder import DataDescription
from trainers.training.settings import Settings
from trainers.training.train import RESULT


@pytest.fixture(autouse=True)
def default_policy():
    """Override the fixture of all tests. Nothing is computed in this process, so Keras need not be imported."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("faults"))
    yield bench
    bench.close()


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.short])
def test_survived(name, bench, tmp_path):
    if name == "fit-jax":
        pytest.importorskip("jax")
    tally = attempt(name, bench, "0", KINDS[name].short, Journal(tmp_path / "journal"))
    assert not tally.failures, tally.failures[0]
    assert tally.tried
    assert tally.survived == tally.tried


def test_a_journal_continues_after_a_truncated_line(tmp_path):
    journal = Journal(tmp_path / "journal")
    first, second = Tally(cpu_seconds=1.5), Tally()
    first.count("a kill", 3, 3)
    second.count("a kill", 2, 1, "why")
    journal.add("kills", 0, first)
    journal.add("kills", 1, second)
    (tmp_path / "journal").write_text((tmp_path / "journal").read_text() + '{"kind": "kills", "num')
    again = Journal(tmp_path / "journal")
    assert again.find("kills", 1) == second
    assert again.find("kills", 2) is None
    total = again.total(["kills"])
    assert (total.rows, total.failures, total.cpu_seconds) == ({"a kill": (5, 4)}, ["a kill: why"], 1.5)
    assert "| a kill | 5 | 4 |" in table(total)


def test_fits_are_listed_by_data():
    tally, row = Tally(), ROW.format("JAX")
    tally.count(f"{row}{DETAIL}TFDS", 5, 4, "why")
    tally.count(f"{row}{DETAIL}`PyDataset`", 5, 5)
    assert "| TFDS |  |  | 4 of 5 |  |" in by_source(tally)
    assert f"| {row} | 10 | 9 |" in table(tally)


@pytest.mark.parametrize(
    ("page", "row"), [("reliability", "| a kill | 3 | 3 |"), ("resume", "| TFDS |  |  | 4 of 5 |  |")]
)
def test_tables_are_written_into_the_pages(page, row, tmp_path):
    journal, kills, fits = Journal(tmp_path / "journal.jsonl"), Tally(), Tally()
    kills.count("a kill", 3, 3)
    fits.count(f"{ROW.format('JAX')}{DETAIL}TFDS", 5, 4, "why")
    journal.add("kills", 0, kills)
    journal.add("fit-jax", 0, fits)
    original = ROOT / "docs/reference/results" / f"{page}.md"
    copy = tmp_path / "page.md"
    copy.write_text(original.read_text())
    assert faults(["--write", str(copy), "--folder", str(tmp_path)]) == 0
    assert row in copy.read_text()
    assert copy.read_text().splitlines()[0] == original.read_text().splitlines()[0]
    assert copy.read_text().splitlines()[-1] == original.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("memory", "threads", "descriptors", "flat"),
    [(0.0, 0, 0, True), (0.1, 0, 0, False), (0.0, 0.01, 0, False), (0.0, 0, 0.01, False)],
)
def test_growth_is_detected(memory, threads, descriptors, flat):
    samples = [
        Sample(step, 500 + memory * step, 20 + int(threads * step), 15 + int(descriptors * step))
        for step in range(0, 1000, 10)
    ]
    assert is_flat(*growth(samples, 1000)) is flat


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_every_field_that_is_read_gets_foreign_values(task):
    """Compare the readers' lists of fields and the dataclasses of settings with the files of the trials."""
    found = foreign.documents(task)
    config, records, result = (found[name] for name in ("config.json", "metrics.jsonl", "result.json"))
    assert set(config) >= set(contents._CONFIG)
    assert set(config["data"]) == {field.name for field in dataclasses.fields(DataDescription)}
    assert set(config["settings"]) == set(list_options(Settings, config["settings"]))
    numbers = {name for record in records for name in record}.union(result)
    assert numbers >= {*contents._NUMBERS, *RESULT}
    places = {(case.file, case.where) for case in foreign.cases(task, found)}
    assert {("config.json", ("settings", name)) for name in config["settings"]} <= places


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_a_setting_beyond_its_bounds_is_refused_by_name(task):
    usual = as_dict(task.resolve({}, {}))
    for option in list_options(Settings, usual).values():
        for text in foreign.beyond(option):
            with pytest.raises(UsageError, match=f"^x.json: {option.name}: expected"):
                make(Settings, {**usual, option.name: json.loads(text)}, "x.json")


def test_no_whole_number_reaches_the_limits_of_64_bits():
    for program, _, known in command_lines._programs():
        for option in known:
            bounds = [bound for bound in (option.at_most, option.below) if bound is not None]
            assert option.kind is not int or min(bounds) < 2**53, f"{program.__module__} {option.flag}"
