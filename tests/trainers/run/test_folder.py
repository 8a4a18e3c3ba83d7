"""Tests of the records and the result of a run with damaged files."""

import json

import pytest

from trainers.cli.arguments import UsageError
from trainers.run.folder import Run


def record(step, kind="train"):
    return {"kind": kind, "step": step, "seconds": 0.5, "loss": 1 / 3, "error": 1 / step, "images_per_second": 10.0}


RECORDS = [record(10), record(10, "test"), record(20), record(20, "test")]
LINES = [json.dumps(each).encode() for each in RECORDS]
DAMAGE = [b"{", b"5", b"[]", b"\xff\xfe", b'{"kind": "test"}', b'{"kind": "test", "step": "x"}', b""]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*LINES, b""]))
    return Run(tmp_path)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_in_the_middle_is_said_once_and_the_rest_is_read(run, capsys, damage):
    (run.path / "metrics.jsonl").write_bytes(b"\n".join([LINES[0], damage, *LINES[2:], b""]))
    for _ in range(2):
        assert run.metrics() == [RECORDS[0], *RECORDS[2:]]
    assert capsys.readouterr().err == (
        f"{run.path / 'metrics.jsonl'} is damaged: line 2 is not a record. The remaining lines are used.\n"
    )


def test_a_last_line_cut_off_by_a_crash_is_left_out_without_a_word(run, capsys):
    (run.path / "metrics.jsonl").write_bytes(b"\n".join(LINES)[:-5])
    assert run.metrics() == RECORDS[:-1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", [None, b"", b"\n".join([*LINES[:2], b""]), b"\n".join([b"{", *LINES[1:], b""])])
def test_what_the_checkpoint_holds_comes_back(run, capsys, content):
    path = run.path / "metrics.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert run.restore_metrics(20, RECORDS) == run.records == RECORDS
    assert "differs from the records in the checkpoint of step 20: it is rewritten" in capsys.readouterr().err
    assert Run(run.path).metrics() == RECORDS


def test_records_after_the_checkpoint_are_made_again(run, capsys):
    assert run.restore_metrics(10, RECORDS[:2]) == RECORDS[:2]
    run.record(**RECORDS[2])
    run.sync_metrics()
    assert run.records == Run(run.path).metrics() == RECORDS[:3]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", ["", "{", "5", "null", "[]", "{}", '{"seconds": "1"}', "\xff"])
def test_a_damaged_result_is_one_sentence(tmp_path, damage):
    (tmp_path / "result.json").write_bytes(damage.encode("latin-1"))
    with pytest.raises(UsageError, match="result.json is damaged .* Remove it, and run the same command"):
        Run(tmp_path).result(["seconds"])


def test_what_a_kill_has_left_unfinished_is_removed(tmp_path):
    (tmp_path / "best" / ".writing-1-saved_model").mkdir(parents=True)
    for path in (tmp_path / ".writing-1-result.json", tmp_path / "best" / ".writing-1-model.keras", tmp_path / "kept"):
        path.touch()
    Run(tmp_path).remove_unfinished()
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "best", tmp_path / "kept"]
