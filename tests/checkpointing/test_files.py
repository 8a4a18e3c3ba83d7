"""Files and folders replace only what they may replace, entirely or not at all, and the lock of a folder."""

import itertools
import os
import shutil
import signal
import subprocess
import sys

import pytest

from idmatters_tf.checkpointing import (
    FolderInUse,
    FolderLock,
    FolderLost,
    list_steps,
    remove,
    remove_steps,
    remove_unfinished,
    replacing,
    saving,
    write_atomically,
)
from idmatters_tf.checkpointing.files import MANIFEST
from idmatters_tf.checkpointing.locks import LOCK_FILE
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def default_policy():
    """Override the fixture of all tests. Nothing is computed in this process, so Keras need not be imported."""


def tree(folder):
    """Return the objects below a folder by path: the content of a file, or the mode of a folder."""
    return {path: path.read_bytes() if path.is_file() else oct(path.stat().st_mode) for path in folder.rglob("*")}


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
def test_files_are_unchanged_after_an_error(tmp_path, as_folder):
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


def save(folder, text="new", step=7):
    with saving(folder, step) as beside:
        (beside / "index").write_text(text)


# Functions that write to a folder, and the files that they leave.
WRITES = {
    "folder": (
        lambda folder, text: write_folder(folder / "x", text),
        {"x/variables/variables.index", "x/saved_model.pb"},
    ),
    "checkpoint": (save, {"step-00000007/index"}),
    "file": (lambda folder, text: write_atomically(folder / "x", text), {"x"}),
}


def killed(last, function, *arguments):
    """Return True if a process was killed before operation number `last + 1` that changes a name, else False."""
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        return code != 0
    count = itertools.count()

    def hook(event, arguments):
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        names = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink")
        if (writes or event in names) and next(count) >= last:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        sys.addaudithook(hook)
        function(*arguments)
        code = 0
    finally:
        os._exit(code)


def kills(tmp_path, prepare, function):
    """Yield prepared folders, in which a process with the function was killed before each of its operations in turn."""
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        prepare(folder)
        was_killed = killed(number, function, folder)
        yield folder
        if not was_killed:
            return


@pytest.mark.parametrize("kind", WRITES)
def test_kills_of_a_replacement(tmp_path, kind):
    (write, files), seen, missing = WRITES[kind], [], 0
    for folder in kills(tmp_path, lambda folder: write(folder, "old"), lambda folder: write(folder, "new")):
        missing += not any(path.name in ("x", "step-00000007") for path in folder.iterdir())
        remove_unfinished(folder)
        found = {name: text for name, text in texts(folder).items() if not name.endswith(MANIFEST)}
        assert found.keys() == files
        assert not [path for path in folder.rglob("*") if path.name.startswith(".")]
        [text] = set(found.values())
        seen.append(text)
        # It can be replaced again.
        write(folder, "newest")
    assert set(seen) == {"old", "new"}
    assert len(seen) > {"folder": 8, "checkpoint": 6, "file": 2}[kind]
    # The window in which neither folder had the name was met.
    assert missing == (kind != "file")


def test_kills_of_the_recovery(tmp_path):
    def prepare(folder):
        # The old folder has been renamed and replaced, and has not been removed.
        write_folder(folder / "x", "old")
        write_folder(folder / ".replaced-x", "older")

    for folder in kills(tmp_path, prepare, remove_unfinished):
        remove_unfinished(folder)
        assert os.listdir(folder) == ["x"]
        assert (folder / "x" / "saved_model.pb").read_text() == "old"
    assert len(list(tmp_path.iterdir())) > 4


def test_kills_of_a_removal(tmp_path):
    seen = set()
    for folder in kills(tmp_path, save, lambda folder: remove(folder / "step-00000007")):
        remove_unfinished(folder)
        seen.add(tuple(sorted(texts(folder))))
    assert sorted(seen) == [(), ("step-00000007/index", "step-00000007/manifest.json")]


def test_other_files_and_folders_are_kept(tmp_path):
    for step in (1, 2):
        save(tmp_path, step=step)
    for step in (3, 4, 5):
        (tmp_path / f"step-0000000{step}").mkdir()
    for step in (4, 5):
        (tmp_path / f"step-0000000{step}" / "notes.txt").write_text("mine")
    remove_steps(tmp_path, [1, 3, 4])
    assert list_steps(tmp_path) == [2, 4, 5]
    save(tmp_path, step=5)
    assert list_steps(tmp_path) == [2, 4, 5]
    assert len(list(tmp_path.rglob("notes.txt"))) == 2
    remove(tmp_path / "step-00000009")


HOLD = """
import sys, time
from idmatters_tf.checkpointing import FolderLock

lock = FolderLock(sys.argv[1])
print(flush=True)
time.sleep(100)
"""


def test_a_folder_is_in_use_until_its_process_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(FolderInUse, match=f"{tmp_path} is in use by another process. Wait until it has ended, or"):
            FolderLock(tmp_path)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == [LOCK_FILE]
    FolderLock(tmp_path).release()
    assert not os.listdir(tmp_path)


def test_folders_that_remain_empty_are_removed(tmp_path):
    (tmp_path / "kept").mkdir()
    for _ in range(2):
        FolderLock(tmp_path / "kept" / "new" / "run").release()
    FolderLock(tmp_path / "kept").release()
    filled = FolderLock(tmp_path / "filled")
    (tmp_path / "filled" / "config.json").touch()
    filled.release()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "filled", "kept"]


def replace(run):
    run.rename(run.with_name("moved"))
    FolderLock(run)


LOSSES = {"deleted": shutil.rmtree, "replaced": replace, "unlocked": lambda run: (run / LOCK_FILE).unlink()}


@pytest.mark.parametrize("kind", LOSSES)
def test_nothing_is_written_to_a_lost_folder(tmp_path, kind):
    path = tmp_path / "run"
    path.mkdir()
    lock = FolderLock(path)
    LOSSES[kind](path)
    before = tree(tmp_path)

    def save():
        with saving(path / "checkpoints", 1):
            pass

    for write in (save, lambda: write_atomically(path / "table.csv", "")):
        with pytest.raises(FolderLost, match=f"{path}.* was deleted, moved or replaced while this process was using"):
            write()
    write_atomically(tmp_path / "report.html", "")
    lock.release()
    (tmp_path / "report.html").unlink()
    assert tree(tmp_path) == before
