"""A few faults of each kind. Many more: `make faults FAULTS=50 SEED=0`."""

import pytest

from tests.faults.bench import Bench
from tests.faults.kinds import KINDS, attempt
from tests.faults.soak import Sample, growth, is_flat
from tests.faults.tally import Journal, Tally, table


@pytest.fixture(autouse=True)
def default_policy():
    """In place of the one for all tests: nothing is computed in this process, so Keras need not be imported."""


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


def test_a_journal_goes_on_after_a_line_that_was_cut_off(tmp_path):
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


@pytest.mark.parametrize(
    ("memory", "threads", "descriptors", "flat"),
    [(0.0, 0, 0, True), (0.1, 0, 0, False), (0.0, 0.01, 0, False), (0.0, 0, 0.01, False)],
)
def test_growth_is_noticed(memory, threads, descriptors, flat):
    samples = [
        Sample(step, 500 + memory * step, 20 + int(threads * step), 15 + int(descriptors * step))
        for step in range(0, 1000, 10)
    ]
    assert is_flat(*growth(samples, 1000)) is flat
