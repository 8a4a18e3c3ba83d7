"""Folder of a run: its lock, and records and results in damaged files."""

import json
import math
import shutil

import pytest

from idmatters_tf.checkpointing import FolderLost, write_atomically
from trainers.cli.arguments import RunError
from trainers.run.folder import Run, hold_lock

RECORDS = [{"kind": kind, "step": step, "loss": 1 / 3, "error": 0.5} for step in (10, 20) for kind in ("train", "test")]
LINES = [json.dumps(record).encode() for record in RECORDS]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*LINES, b""]))
    return Run(tmp_path)


def test_damaged_records_are_skipped(run):
    path = run.path / "metrics.jsonl"
    other = [5, None, [], {}, {"kind": "test", "step": 20}, {"step": 20, "error": 0.5}]
    values = {"step": ["20", True, -1, 2.5, 10**400], "error": ["0.5", math.nan, math.inf, 10**400, None]}
    values |= {"kind": [["test"]], "seconds": ["1"], "learning_rate": [None], "top5_error": [[]]}
    other += [RECORDS[3] | {name: value} for name in values for value in values[name]]
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
