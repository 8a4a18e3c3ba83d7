"""File with the secret of a cluster: rejected if another user may have written or read it."""

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
        path.write_text("x" * {"short": 3, "empty": 0, "one too short": 15, "shortest": 16, "long": 2000}.get(what, 64))
        path.chmod(0o640 if what == "readable" else 0o602 if what == "writable" else 0o600)
        if what == "another user":
            os.chown(path, 65534, -1)


PLANTED = ["short", "empty", "one too short", "long", "link", "dangling link", "device", "pipe", "folder", "readable"]
PLANTED += ["writable", pytest.param("another user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"))]


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("read", [token.load_or_create, token.load])
def test_a_planted_file_is_rejected_at_once(read, what, tmp_path):
    plant(tmp_path / token.FILE, what)
    before = time.monotonic()
    with pytest.raises(UsageError, match=f"{token.FILE} .*Delete it and start all tasks again"):
        read(tmp_path)
    assert time.monotonic() - before < 5


@pytest.mark.parametrize("where", ["variable", "file"])
def test_minimum_length_of_the_token(where, monkeypatch, tmp_path):
    for length in (15, 16):
        if where == "variable":
            monkeypatch.setenv(token.VARIABLE, "x" * length)
        else:
            plant(tmp_path / token.FILE, "one too short" if length == 15 else "shortest")
        if length == 15:
            with pytest.raises(UsageError):
                token.load_or_create(tmp_path)
        else:
            assert token.load_or_create(tmp_path) == b"x" * 16


def test_tasks_read_the_file_of_the_chief_until_its_removal(monkeypatch, tmp_path):
    folder = tmp_path / "run"
    assert token.load(folder) is None
    made = token.load_or_create(folder)
    assert len(made) == 64
    assert made == token.load(folder) == token.load_or_create(folder)
    monkeypatch.setenv(token.VARIABLE, "y" * 64)
    token.remove(folder)
    assert (folder / token.FILE).exists(), "the variable was used, not the file"
    monkeypatch.delenv(token.VARIABLE)
    token.remove(folder)
    token.remove(folder)
    assert list(folder.iterdir()) == []
