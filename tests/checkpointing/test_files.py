"""Files and folders replace only what they may replace, entirely or not at all, whenever the process is killed."""

import os
import signal
import subprocess
import sys

import pytest

from idmatters_tf.checkpointing import (
    list_steps,
    remove,
    remove_steps,
    remove_unfinished,
    replacing,
    saving,
    write_atomically,
)
from idmatters_tf.checkpointing.files import MANIFEST
from tests.conftest import ROOT
from tests.support.occupants import tree


@pytest.fixture(autouse=True)
def default_policy():
    """Override the fixture of all tests. Nothing is computed in this process, so Keras need not be imported."""


def texts(folder):
    """Return the contents of the files below a folder by path."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def fill(folder, text):
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_text(text)
    (folder / "variables" / "variables.index").write_text(text)


def write_folder(path, text="new"):
    with replacing(path, folder=True) as beside:
        fill(beside, text)


def test_a_file_does_not_replace_a_folder(tmp_path):
    write_folder(tmp_path / "target", "old")
    before = tree(tmp_path)
    with pytest.raises(IsADirectoryError, match="a folder is in the place of a file"):
        write_atomically(tmp_path / "target", "new")
    assert tree(tmp_path) == before


def test_text_and_bytes_replace_a_file(tmp_path):
    path = tmp_path / "result.json"
    for content in ("zweitens: ü", b"\x00\xff"):
        write_atomically(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    with replacing(path) as beside:
        assert beside.suffix == ".json", "libraries choose a format by the suffix"
        beside.touch()
    assert os.listdir(tmp_path) == ["result.json"]


@pytest.mark.parametrize("as_folder", [False, True])
def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path, as_folder):
    path = tmp_path / "kept"
    write_folder(path, "kept") if as_folder else write_atomically(path, "kept")
    before = texts(tmp_path)

    def write_half():
        with replacing(path, folder=as_folder) as beside:
            fill(beside, "half") if as_folder else beside.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_half()
    assert texts(tmp_path) == before


# Counts what changes names, by the events of Python's own auditing, and kills the process before one of them.
KILL = """
import os, pathlib, signal, sys

folder, last, what = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
from idmatters_tf.checkpointing import saving
from idmatters_tf.checkpointing import remove, remove_unfinished, replacing

def write(text):
    if what == "checkpoint":
        with saving(folder, 7) as beside:
            (beside / "index").write_text(text)
        return
    if what == "file":
        with replacing(folder / "x") as beside:
            beside.write_text(text)
        return
    with replacing(folder / "x", folder=True) as beside:
        (beside / "variables").mkdir(parents=True)
        (beside / "variables" / "index").write_text(text)
        (beside / "saved_model.pb").write_text(text)

if not os.listdir(folder):
    write("old")
count = 0
def hook(event, arguments):
    global count
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink"):
        count += 1
        if count > last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
if sys.argv[4] == "recover":
    remove_unfinished(folder)
elif sys.argv[4] == "remove":
    remove(folder / "step-00000007")
else:
    write("new")
print("through")
"""


def killed(folder, last, what, then="write"):
    """Return True if a process was killed before its operation number `last + 1`, and False if it ended."""
    command = [sys.executable, "-c", KILL, str(folder), str(last), what, then]
    ended = subprocess.run(command, cwd=ROOT, timeout=900, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) in ((-signal.SIGKILL, ""), (0, "through\n")), ended.stderr
    return ended.returncode != 0


@pytest.mark.parametrize("what", ["folder", "checkpoint", "file"])
def test_a_kill_before_any_operation_leaves_the_old_or_the_new(tmp_path, what):
    seen, number, missing = set(), 0, 0
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        was_killed = killed(folder, number, what)
        target = folder / ("step-00000007" if what == "checkpoint" else "x")
        missing += not target.exists()
        remove_unfinished(folder)
        found = texts(folder)
        values = {text for name, text in found.items() if not name.endswith(MANIFEST)}
        assert values <= {"old", "new"}
        assert len(values) == 1
        assert {name for name in found if not name.endswith(MANIFEST)} == {
            "folder": {"x/variables/index", "x/saved_model.pb"},
            "checkpoint": {"step-00000007/index"},
            "file": {"x"},
        }[what]
        assert not [path for path in folder.rglob("*") if path.name.startswith(".")]
        seen |= values
        if what in ("folder", "checkpoint"):
            # It can be replaced again.
            assert not killed(folder, 1000, what)
        if not was_killed:
            break
        number += 1
    assert seen == {"old", "new"}
    assert number >= {"folder": 8, "checkpoint": 6, "file": 2}[what]
    if what in ("folder", "checkpoint"):
        # The window in which neither had the name was met.
        assert missing == 1


def test_a_kill_of_the_recovery_is_recovered_from(tmp_path):
    number = 0
    while True:
        # The old one has been renamed, the new one not yet.
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in (("x", "old"), (".replaced-x", "older")):
            write_folder(folder / name, text)
        if not killed(folder, number, "folder", "recover"):
            break
        remove_unfinished(folder)
        assert os.listdir(folder) == ["x"]
        assert (folder / "x" / "saved_model.pb").read_text() == "old"
        number += 1
    assert number > 3


def save(folder, step):
    with saving(folder, step) as beside:
        (beside / "index").write_text(str(step))


def test_a_killed_removal_leaves_all_or_nothing(tmp_path):
    number, seen = 0, set()
    while True:
        folder = tmp_path / str(number)
        save(folder, 7)
        before = tree(folder)
        was_killed = killed(folder, number, "checkpoint", "remove")
        remove_unfinished(folder)
        seen.add(not tree(folder))
        assert tree(folder) in ({}, before)
        if not was_killed:
            break
        number += 1
    assert seen == {False, True}


def test_objects_that_are_no_checkpoints_are_kept(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "step-00000003").mkdir()
    for step in (4, 5):
        (tmp_path / f"step-0000000{step}").mkdir()
        (tmp_path / f"step-0000000{step}" / "notes.txt").write_text("mine")
    remove_steps(tmp_path, [1, 3, 4])
    assert list_steps(tmp_path) == [2, 4, 5]
    save(tmp_path, 5)
    assert list_steps(tmp_path) == [2, 4, 5]
    assert len(list(tmp_path.rglob("notes.txt"))) == 2
    remove(tmp_path / "step-00000009")
