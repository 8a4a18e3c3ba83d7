"""Folder of a run: its lock, records and results in damaged files, its figures, and deferred signals."""

import json
import shutil
import signal

import pytest

from idmatters_tf.checkpointing import FolderLost, write_atomically
from trainers.cli.arguments import RunError
from trainers.run import figures
from trainers.run.folder import Run, hold_lock
from trainers.run.signals import SignalHandler

RECORDS = [{"kind": kind, "step": step, "loss": 1 / 3, "error": 0.5} for step in (10, 20) for kind in ("train", "test")]
LINES = [json.dumps(record).encode() for record in RECORDS]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*LINES, b""]))
    return Run(tmp_path)


def test_damaged_records_are_skipped(run):
    path = run.path / "metrics.jsonl"
    other = [5, None, [], {}, {"kind": "test"}, {"step": 20, "error": 0.5}]
    damaged = [bytes(100), b"\xff", b"[" * 10**5, *(json.dumps(value).encode() for value in other)]
    path.write_bytes(b"\n".join([LINES[0], *damaged, *LINES[2:], b'{"kind": "tr']))
    assert run.metrics() == [RECORDS[0], *RECORDS[2:]]


def test_records_of_the_checkpoint_are_restored_and_continued(run):
    run.restore_metrics(RECORDS[:2])
    run.record(**RECORDS[2])
    assert run.records == Run(run.path).metrics() == RECORDS[:3]


def test_writing_to_a_removed_folder_raises(tmp_path):
    path = tmp_path / "run"

    def lose_and_write(write):
        with hold_lock(path):
            run = Run(path)
            run.start({}, {"digest": "", "origin": ""})
            run.record(kind="train", step=1)
            shutil.rmtree(path)
            write(run)

    for write in (
        lambda run: run.record(kind="train", step=2),
        lambda run: run.finish({}),
        lambda run: run.restore_metrics([]),
        lambda run: write_atomically(run.path / "model.keras", ""),
    ):
        with pytest.raises(RunError, match="run was deleted, moved or replaced") as lost:
            lose_and_write(write)
        assert isinstance(lost.value.__cause__, FolderLost)
        assert not path.exists()


def test_figures_with_dollar_signs_and_zero_errors(tmp_path):
    records = [{"kind": kind, "step": step, "error": 0.0} for step in (10, 20) for kind in ("train", "test")]
    names = ["plain", "$x$", r"$\frac{$", r"\$5 and $\bad{$"]
    figures.convergence(records, tmp_path / "convergence.png", r"$\frac{$")
    figures.comparison(dict.fromkeys(names, records), tmp_path / "comparison.png")
    for name in ("convergence.png", "comparison.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_drops_of_the_rate_are_found_in_the_records():
    def find(*rates):
        records = [{"kind": "train", "step": 10 * i, "learning_rate": rate} for i, rate in enumerate(rates, start=1)]
        return figures.rate_drops([*records, {"kind": "test", "step": 10}])

    assert find(*[0.05] * 3, *[0.005] * 3, *[0.0005] * 3) == [30, 60]
    assert find(0.1, 0.1, 0.094, 0.094) == find(0.4, 0.3, 0.2, 0.1, 0.0) == []


@pytest.fixture
def usual_effect():
    """Replace the default effect of a signal, and restore it afterwards."""

    def act(number, _frame):
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, act) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def test_the_second_signal_has_its_usual_effect(usual_effect):
    with SignalHandler() as handler:
        assert handler.received is None
        signal.raise_signal(signal.SIGTERM)
        assert handler.received is signal.SIGTERM
        with pytest.raises(SystemExit, match="143"):
            signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="130"):
        signal.raise_signal(signal.SIGINT)
