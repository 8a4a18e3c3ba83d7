"""Files and folders replace only what they may replace, entirely or not at all, whenever the process is killed."""

import os
import signal
import subprocess
import sys

import pytest

from idmatters_tf.checkpointing import (
    PathOccupied,
    find_newest_intact,
    list_steps,
    remove_steps,
    remove_unfinished,
    replacing,
    saving,
    write_atomically,
)
from idmatters_tf.checkpointing.files import MANIFEST
from tests.conftest import ROOT
from tests.support.occupants import NO_FILES, NO_FOLDERS, tree, write_folder


@pytest.fixture(autouse=True)
def default_policy():
    """Override the fixture of all tests. Nothing is computed in this process, so Keras need not be imported."""


def contents(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


WRITTEN = {"assets", "variables", "saved_model.pb", "variables/variables.index", MANIFEST}


@pytest.mark.parametrize("occupy", NO_FILES)
def test_a_file_replaces_nothing_but_a_file(tmp_path, occupy):
    occupy(tmp_path / "target")
    before = tree(tmp_path)
    with pytest.raises(PathOccupied, match="target is a folder, not a file. Move it away, or choose another path"):
        write_atomically(tmp_path / "target", "new")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("occupy", NO_FOLDERS)
def test_a_folder_replaces_nothing_but_a_folder_of_its_own(tmp_path, occupy):
    occupy(tmp_path / "target")
    before = tree(tmp_path)
    with pytest.raises(PathOccupied, match="Move it away, or choose another path"):
        write_folder(tmp_path / "target")
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
    write_atomically(path, "kept")

    def write_half():
        with replacing(path) as beside:
            if as_folder:
                beside.mkdir()
                beside = beside / "inner"
            beside.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_half()
    assert path.read_text() == "kept"
    assert os.listdir(tmp_path) == ["kept"]


def test_the_current_folder_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".", "..", "/", "./."):
        with pytest.raises(PathOccupied, match="is a folder, not a file"):
            write_atomically(name, "new")


def test_a_folder_replaces_its_predecessor_and_lists_what_it_holds(tmp_path):
    for text in ("old", "new"):
        write_folder(tmp_path / "x", text)
        assert contents(tmp_path / "x") == WRITTEN
        assert (tmp_path / "x" / "variables" / "variables.index").read_text() == text
    assert os.listdir(tmp_path) == ["x"]


# Counts what changes names, by the events of Python's own auditing, and kills the process before one of them.
KILL = """
import os, pathlib, signal, sys

folder, last, what = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
from idmatters_tf.checkpointing import saving
from idmatters_tf.checkpointing import remove_unfinished, replacing

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
else:
    write("new")
print("through")
"""


def killed(folder, last, what, then="write"):
    """Return True if a process was killed before its operation number `last + 1`, and False if it ended."""
    command = [sys.executable, "-c", KILL, str(folder), str(last), what, then]
    ended = subprocess.run(command, cwd=ROOT, timeout=60, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) in ((-signal.SIGKILL, ""), (0, "through\n")), ended.stderr
    return ended.returncode != 0


def texts(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


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
    assert number >= {"folder": 12, "checkpoint": 8, "file": 2}[what]
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
    assert number > 5


def test_a_foreign_folder_of_the_name_that_is_put_aside_stays(tmp_path):
    write_folder(tmp_path / "x", "old")
    (tmp_path / ".replaced-x").mkdir()
    (tmp_path / ".replaced-x" / "thesis.txt").write_text("mine")
    before = tree(tmp_path)
    remove_unfinished(tmp_path)
    with pytest.raises(PathOccupied, match=r"\.replaced-x is a folder without"):
        write_folder(tmp_path / "x")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("removed", [(), ("saved_model.pb",), None])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_folder_put_aside_without_a_successor_is_not_lost(tmp_path, removed, foreign):
    """Test that a complete folder is restored, that an incomplete one is removed, and that foreign files are kept."""
    aside = tmp_path / ".replaced-x"
    if removed is None:
        aside.mkdir()
    else:
        write_folder(tmp_path / "x", "old")
        (tmp_path / "x").rename(aside)
        for name in removed:
            (aside / name).unlink()
    if foreign:
        (aside / "thesis.txt").write_text("mine")
    before = contents(aside)
    remove_unfinished(tmp_path)
    restores = removed == ()
    assert os.listdir(tmp_path) == (["x"] if restores else [".replaced-x"] if foreign else [])
    if restores or foreign:
        assert contents(tmp_path / ("x" if restores else ".replaced-x")) == before
    if foreign:
        with pytest.raises(PathOccupied, match=r"x (contains thesis\.txt|is a folder without)"):
            write_folder(tmp_path / "x")
    else:
        write_folder(tmp_path / "x")


def test_names_that_only_look_unfinished_stay(tmp_path):
    (tmp_path / ".writing-novel.md").write_text("mine")
    (tmp_path / ".writing-7-x").write_text("half")
    remove_unfinished(tmp_path)
    assert contents(tmp_path) == {".writing-novel.md"}


def test_a_manifest_that_leads_out_of_its_folder_removes_nothing_there(tmp_path):
    write_folder(tmp_path / "x", "old")
    (tmp_path / "mine").write_text("mine")
    manifest = tmp_path / "x" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"saved_model.pb"', '"../mine"'))
    with pytest.raises(PathOccupied, match="contains saved_model.pb, which is not listed"):
        write_folder(tmp_path / "x")
    (tmp_path / "x" / "saved_model.pb").unlink()
    write_folder(tmp_path / "x")
    assert (tmp_path / "mine").read_text() == "mine"


def save(folder, step):
    with saving(folder, step) as beside:
        (beside / "index").write_text(str(step))


def test_checkpoints_with_foreign_files_are_neither_removed_nor_replaced(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    for step in (1, 3):
        (tmp_path / f"step-0000000{step}" / "notes.txt").write_text("mine")
    remove_steps(tmp_path, [1, 2])
    assert list_steps(tmp_path) == [1, 3]
    save(tmp_path, 3)
    assert not (tmp_path / "step-00000003" / "notes.txt").exists()
    assert len(list(tmp_path.rglob("notes.txt"))) == 2


def test_what_is_put_aside_replaces_nothing(tmp_path):
    for text in ("a", "b"):
        save(tmp_path, 4)
        (tmp_path / "step-00000004" / "index").write_text(text)
        find_newest_intact(tmp_path, "index", lambda path, damage: None, repair=True)
    assert sorted(path.read_text() for path in tmp_path.rglob("index")) == ["a", "b"]
