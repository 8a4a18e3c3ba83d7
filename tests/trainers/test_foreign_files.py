"""Tests that programs keep files of other programs: they change nothing and exit with code 2, or keep these files."""

import json
import pathlib
import shutil

import pytest

from idmatters_tf.checkpointing import list_steps
from tests.support.occupants import tree
from tests.support.processes import records
from tests.support.programs import run_here
from tests.trainers.conftest import TINY
from trainers.run.folder import EXPORTED_FILES, EXPORTED_FOLDERS, FILES, FOLDERS


@pytest.fixture
def run(finished, tmp_path):
    """Return a copy of a finished run."""
    return pathlib.Path(shutil.copytree(finished, tmp_path / "run"))


def unfinish(run):
    """Restore the state of a run before its last steps."""
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000006")


def refused(parent, expected, *command):
    """Check that a command exits with code 2 and an error message, and does not change a folder."""
    before = tree(parent)
    ended = run_here(*command)
    assert (ended.returncode, len(ended.stderr.strip().splitlines())) == (2, 1), ended.stderr
    assert expected in ended.stderr
    assert tree(parent) == before


def test_the_programs_list_everything_that_they_write(finished):
    known = {*FILES, *FOLDERS, *EXPORTED_FOLDERS}
    inside = ("checkpoints/", "events/", *(f"{name}/" for name in EXPORTED_FOLDERS))
    written = {path.relative_to(finished).as_posix() for path in finished.rglob("*")}
    assert {name for name in written if not name.startswith(inside)} <= known
    assert set(EXPORTED_FILES) <= written
    assert not list(finished.rglob(".*"))


def test_a_report_replaces_no_folder(run, tmp_path, monkeypatch):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    for target in ("thesis", "run", "run/", ".", "..", "/"):
        refused(tmp_path, ", not a file. Move it away", "trainers.report", "run", "--html", target)
    for name in ("comparison.md", "comparison.csv", "comparison.png", "seeds.csv"):
        (tmp_path / "out" / name).mkdir(parents=True)
        refused(tmp_path, ", not a file. Move it away", "trainers.report", run, "--out", tmp_path / "out")
        (tmp_path / "out" / name).rmdir()


def test_a_page_replaces_pages_only_and_shows_no_image_from_outside(run, tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.png").write_bytes(b"mine")
    (run / "secret.png").symlink_to(tmp_path / "private" / "secret.png")
    page = tmp_path / "page.html"
    refused(tmp_path, "links to a file outside of the run", "trainers.report", run, "--html", page)
    (run / "secret.png").unlink()
    # Folders that are links are not entered.
    (run / "plots").symlink_to(tmp_path / "private")
    for _ in range(2):
        assert run_here("trainers.report", run, "--html", page).returncode == 0
        assert "secret" not in page.read_text()
    for path in (run / "config.json", run / "metrics.jsonl", run / "model.keras"):
        refused(tmp_path, "exists and is not a page of this program", "trainers.report", run, "--html", path)


def test_an_export_replaces_only_exports(run, tmp_path):
    out = tmp_path / "out"
    for name in (*EXPORTED_FILES, *EXPORTED_FOLDERS):
        (out / name).mkdir(parents=True)
        (out / name / "thesis.txt").write_text("mine")
        refused(tmp_path, "Move it away", "trainers.cifar", "--export-only", run, "--out", out)
        shutil.rmtree(out)
    for _ in range(2):
        assert run_here("trainers.cifar", "--export-only", run, "--out", out).returncode == 0
    assert not list(out.glob(".*"))
    (out / "saved_model" / "assets" / "vocabulary.txt").write_text("mine")
    expected = "saved_model contains assets/vocabulary.txt, which is not listed in its manifest.json"
    refused(tmp_path, expected, "trainers.cifar", "--export-only", run, "--out", out)


def test_a_card_keeps_the_repository_that_it_has_become(run, tmp_path, monkeypatch):
    out = tmp_path / "card"
    make = ("trainers.card", run, "--no-measure", "--out")
    assert run_here(*make, out).returncode == 0
    assert not list(out.glob(".*"))
    (out / ".git").mkdir()
    for name in (".git/HEAD", ".gitattributes", "samples.py"):
        (out / name).write_text("mine")
    (out / "README.md").write_text("old")
    monkeypatch.chdir(out)
    assert run_here(*make, ".").returncode == 0
    assert all((out / name).read_text() == "mine" for name in (".git/HEAD", ".gitattributes", "samples.py"))
    assert "hf upload USER/card" in (out / "README.md").read_text()


def test_a_card_goes_into_no_other_folder(run, tmp_path, monkeypatch):
    out = tmp_path / "project"
    out.mkdir()
    (out / "README.md").write_text("mine")
    monkeypatch.chdir(out)
    for content in (None, "{", "[]", "{}", '{"program": "another"}'):
        if content is not None:
            (out / "training.json").write_text(content)
        for target in (out, ".", run, out / "README.md"):
            refused(tmp_path, "Name a", "trainers.card", run, "--no-measure", "--out", target)


@pytest.mark.parametrize("name", [name for name in FILES if name != "config.json"])
def test_a_run_is_not_resumed_where_a_folder_stands_in_the_way_of_a_file(run, tmp_path, name):
    unfinish(run)
    path = run / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "thesis.txt").write_text("mine")
    refused(tmp_path, ", not a file. Move it away", "trainers.cifar", "--resume", "--out", run)


@pytest.mark.parametrize("name", [*FOLDERS, *EXPORTED_FOLDERS])
def test_a_run_is_not_resumed_where_a_file_stands_in_the_way_of_a_folder(run, tmp_path, name):
    unfinish(run)
    path = run / name
    if path.exists():
        shutil.move(path, tmp_path / "elsewhere")
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    refused(tmp_path, "Move it away", "trainers.cifar", "--resume", "--out", run)


def test_overwriting_a_run_keeps_foreign_files(finished, run, tmp_path):
    overwrite = ("trainers.cifar", *TINY.split(), "--seed", "1", "--steps", "2", "--overwrite", "--out", run)
    overwrite += ("--init-from", finished, "--histograms")
    note = run / "checkpoints" / "step-00000006" / "notes.txt"
    note.write_text("mine")
    refused(tmp_path, "step-00000006 contains notes.txt, which is not listed", *overwrite)
    note.unlink()
    kept = [run / name for name in ("notes.txt", "checkpoints/notes.txt", "best/notes.txt", "events/notes.txt")]
    for path in kept:
        path.write_text("mine")
    ended = run_here(*overwrite)
    assert ended.returncode == 0, ended.stderr
    assert [path.read_text() for path in kept] == ["mine"] * 4
    assert list_steps(run / "checkpoints") == [2]
    assert json.loads((run / "config.json").read_text())["settings"]["seed"] == 1
    assert f"starting from the weights of {finished} at step 6" in ended.stderr
    assert "the learning rate will not drop at 4: --steps is 2" in ended.stderr
    first, last = records(run)[0], [record for record in records(finished) if record["kind"] == "test"][-1]
    assert (first["step"], first["error"], first["loss"]) == (0, last["error"], last["loss"])
