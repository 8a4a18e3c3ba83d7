"""Folder of a run: its lock, and records and results in damaged files."""

import json
import shutil

import pytest

from idmatters_tf.checkpointing import FolderLost, write_atomically
from trainers.cli.arguments import RunError, UsageError
from trainers.run.folder import Run, hold_lock

RECORDS = [{"kind": kind, "step": step, "loss": 1 / 3} for step in (10, 20) for kind in ("train", "test")]
LINES = [json.dumps(record).encode() for record in RECORDS]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*LINES, b""]))
    return Run(tmp_path)


@pytest.mark.parametrize("damage", [b"{", b"5", b"[]", b"\xff\xfe", b""])
def test_damaged_and_truncated_lines_are_left_out(run, damage):
    path = run.path / "metrics.jsonl"
    path.write_bytes(b"\n".join([LINES[0], damage, *LINES[2:], b'{"kind": "tr']))
    assert run.metrics() == [RECORDS[0], *RECORDS[2:]]


def test_records_of_the_checkpoint_are_restored_and_continued(run):
    run.restore_metrics(RECORDS[:2])
    run.record(**RECORDS[2])
    run.sync_metrics()
    assert run.records == Run(run.path).metrics() == RECORDS[:3]


@pytest.mark.parametrize("damage", ["", "{", "5", "null"])
def test_a_damaged_result_is_one_sentence(tmp_path, damage):
    (tmp_path / "result.json").write_text(damage)
    with pytest.raises(UsageError, match="result.json is damaged .* Remove it, and run the same command"):
        Run(tmp_path).result()


def test_a_lost_folder_is_noticed_by_each_way_to_write(tmp_path):
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
