"""Tests of the lock of a run's folder."""

import shutil

import pytest

from idmatters_tf.checkpointing import FolderLock, FolderLost, write_atomically
from idmatters_tf.checkpointing.locks import LOCK_FILE
from trainers.cli.arguments import RunError, UsageError
from trainers.run.folder import Run
from trainers.run.lock import hold_lock


def test_a_folder_in_use_is_bad_input(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(UsageError, match=f"--out {tmp_path} is in use by another process"), hold_lock(tmp_path):
        pass
    lock.release()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"cannot be written: Not a directory\."),
        hold_lock(tmp_path / "file" / "x"),
    ):
        pass


def test_a_lost_folder_is_noticed_by_each_way_to_write(tmp_path):
    path = tmp_path / "run"
    lock = FolderLock(path)
    run = Run(path)
    run.start({}, {"digest": "", "origin": ""})
    run.record(kind="train", step=1)
    shutil.rmtree(path)
    for write in (
        lambda: run.record(kind="train", step=2),
        lambda: run.finish({}),
        lambda: run.restore_metrics(0, []),
    ):
        with pytest.raises(FolderLost, match=f"{path}.* was deleted, moved or replaced while this process was using"):
            write()
    lock.release()
    assert not path.exists()


def test_a_lost_folder_ends_a_run_with_exit_code_1(tmp_path):
    def lose_and_write():
        with hold_lock(tmp_path / "run"):
            (tmp_path / "run" / LOCK_FILE).unlink()
            (tmp_path / "run").rmdir()
            write_atomically(tmp_path / "run" / "result.json", "")

    with pytest.raises(RunError, match=r"run was deleted, moved or replaced"):
        lose_and_write()
    assert not (tmp_path / "run").exists()
