"""Tests of the file with the secret of a cluster, which is rejected if others could have written or read it."""

import os
import pathlib
import time

import pytest

from trainers.cli.arguments import UsageError
from trainers.cluster import token


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(token.VARIABLE, raising=False)


def plant(path: pathlib.Path, what: str) -> None:
    if what == "link":
        path.with_name("elsewhere").write_text("x" * 64)
        path.with_name("elsewhere").chmod(0o600)
        path.symlink_to("elsewhere")
    elif what == "dangling link":
        path.symlink_to("nowhere")
    elif what == "pipe":
        os.mkfifo(path, 0o600)
    elif what == "folder":
        path.mkdir(0o700)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("x" * {"short": 3, "empty": 0, "one too short": 15, "long": 2000}.get(what, 64))
        path.chmod(0o640 if what == "readable" else 0o602 if what == "writable" else 0o600)
        if what == "another user":
            os.chown(path, 65534, -1)


PLANTED = ["short", "empty", "one too short", "long", "link", "dangling link", "device", "pipe", "folder", "readable"]
PLANTED += ["writable", pytest.param("another user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"))]


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("read", [token.of_chief, token.of_task])
def test_a_planted_file_is_refused_at_once(read, what, tmp_path):
    plant(tmp_path / token.FILE, what)
    before = time.monotonic()
    with pytest.raises(UsageError, match=f"{token.FILE} .*Delete it, and start all tasks again"):
        read(tmp_path)
    assert time.monotonic() - before < 5


def test_the_file_is_as_long_as_the_variable_has_to_be(monkeypatch, tmp_path):
    """Test that the file accepts the same secrets as the variable, and no shorter ones."""
    for length in (15, 16):
        monkeypatch.setenv(token.VARIABLE, "x" * length)
        (tmp_path / token.FILE).write_text("x" * length)
        (tmp_path / token.FILE).chmod(0o600)
        if length == 15:
            with pytest.raises(UsageError):
                token.of_chief(tmp_path)
        else:
            assert token.of_chief(tmp_path) == b"x" * 16
        monkeypatch.delenv(token.VARIABLE)
        if length == 15:
            with pytest.raises(UsageError):
                token.of_chief(tmp_path)
        else:
            assert token.of_chief(tmp_path) == b"x" * 16


def test_tasks_find_what_the_chief_has_made_until_it_is_removed(monkeypatch, tmp_path):
    folder = tmp_path / "run"
    assert token.of_task(folder) is None
    made = token.of_chief(folder)
    assert len(made) == 64
    assert made == token.of_task(folder) == token.of_chief(folder)
    monkeypatch.setenv(token.VARIABLE, "y" * 64)
    token.remove(folder)
    assert (folder / token.FILE).exists(), "the variable was used, not the file"
    monkeypatch.delenv(token.VARIABLE)
    token.remove(folder)
    token.remove(folder)
    assert list(folder.iterdir()) == []
