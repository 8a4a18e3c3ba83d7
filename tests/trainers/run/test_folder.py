"""Folder of a run: its lock, and records and results in damaged files."""

import json
import shutil

import pytest

from idmatters_tf.checkpointing import FolderLost, write_atomically
from trainers.cli.arguments import RunError, UsageError
from trainers.run.folder import Run, hold_lock

RECORDS = [{"kind": kind, "step": step, "loss": 1 / 3, "error": 0.5} for step in (10, 20) for kind in ("train", "test")]
LINES = [json.dumps(record).encode() for record in RECORDS]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*LINES, b""]))
    return Run(tmp_path)


RECORD = b'{"kind": "train", "step": 1, "error": 0.5}'
DAMAGES = [b"{", b"5", b"[]", b"\xff\xfe", b"", b"{}", b"[" * 9000, RECORD.replace(b"0.5", b"1e400")]
DAMAGES += [RECORD.replace(b"0.5", b"null"), RECORD.replace(b'"error"', b'"err"'), RECORD.replace(b"1", b'"1"')]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_truncated_lines_are_left_out(run, damage):
    path = run.path / "metrics.jsonl"
    path.write_bytes(b"\n".join([LINES[0], damage, *LINES[2:], b'{"kind": "tr']))
    assert run.metrics() == [RECORDS[0], *RECORDS[2:]]


def test_records_of_the_checkpoint_are_restored_and_continued(run):
    run.restore_metrics(RECORDS[:2])
    run.record(**RECORDS[2])
    assert run.records == Run(run.path).metrics() == RECORDS[:3]


def test_a_description_of_the_data_is_checked(tmp_path):
    data = {"origin": "here", "image_shape": [8, 8, 3], "classes": 2, "digest": "1", "class_names": []}
    for changes in ({"class_names": ["cat"]}, {"image_shape": [8, 8]}):
        (tmp_path / "config.json").write_text(json.dumps({"settings": {}, "data": data | changes}))
        with pytest.raises(UsageError, match="config.json, data: image_shape must have 3 numbers, and class_names"):
            Run(tmp_path).data()


@pytest.mark.parametrize("name", ["model.keras", "events"])
def test_an_object_in_the_place_of_an_output_is_named(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).mkdir() if name == "model.keras" else (tmp_path / name).touch()
    with pytest.raises(UsageError, match=f"{name} must be a (folder|file) of the run. Move it away"):
        Run(tmp_path).check_usable()


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
