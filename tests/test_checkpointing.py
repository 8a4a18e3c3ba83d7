"""Files and folders are replaced entirely or not at all."""

import os
import subprocess
import sys

import pytest

from idmatters_tf._replacing import remove_unfinished, replacing, write_atomically
from tests.conftest import ROOT


def test_text_and_bytes_replace_what_was_there(tmp_path):
    path = tmp_path / "result.json"
    for content in ("first", "zweitens: ü", b"\x00\xff"):
        write_atomically(path, content)
        expected = content if isinstance(content, bytes) else content.encode()
        assert path.read_bytes() == expected
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_folder_replaces_a_folder(tmp_path):
    target = tmp_path / "saved_model"
    for name in ("old", "new"):
        with replacing(target, folder=True) as beside:
            assert beside.parent == tmp_path
            (beside / "variables").mkdir(parents=True)
            (beside / "variables" / name).write_text(name)
    assert {path.name for path in target.rglob("*")} == {"variables", "new", "manifest.json"}
    assert os.listdir(tmp_path) == ["saved_model"]


def test_the_suffix_is_kept_for_libraries_that_look_at_it(tmp_path):
    with replacing(tmp_path / "model.keras") as beside:
        assert beside.suffix == ".keras"
        beside.touch()


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


def test_what_a_kill_left_is_removed_later(tmp_path):
    path = tmp_path / "kept"
    write_atomically(path, "kept")
    script = """
import os, pathlib, signal, sys
from idmatters_tf._replacing import replacing
with replacing(pathlib.Path(sys.argv[1])) as beside:
    beside.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(path)], cwd=ROOT, timeout=60, check=False)
    assert path.read_text() == "kept"
    assert len(os.listdir(tmp_path)) == 2
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["kept"]
