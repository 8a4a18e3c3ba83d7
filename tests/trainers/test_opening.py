"""Opening of the runs of experiments."""

import pytest

from trainers.cli.arguments import UsageError
from trainers.experiments.program import open_run

DATA = {"origin": "", "digest": "1"}


def started(folder, depth):
    with open_run(folder, {"depth": depth}) as run:
        assert run is not None
        run.start({"depth": depth}, DATA)
        return run


def test_a_run_that_was_stopped_before_it_had_results_is_started_anew(tmp_path):
    started(tmp_path, 3)
    run = started(tmp_path, 4)
    assert run.config()["settings"] == {"depth": 4}
    (tmp_path / "table.csv").write_text("depth\n4\n")
    with pytest.raises(UsageError, match="other settings: depth was 4, now 5"), open_run(tmp_path, {"depth": 5}):
        pass
    with open_run(tmp_path, {"depth": 4}) as run:
        assert run is not None


def test_a_finished_run_is_left_alone_or_overwritten(tmp_path, capsys):
    started(tmp_path, 3).finish({"verdicts": ["SEEN."]})
    (tmp_path / "table.csv").write_text("depth\n3\n")
    with open_run(tmp_path, {"depth": 3}) as run:
        assert run is None
    assert "is finished. SEEN. Use another --out" in capsys.readouterr().out
    with open_run(tmp_path, {"depth": 5}, overwrite=True) as run:
        assert run is not None
        # Nothing is lost before the new run starts.
        assert run.result() is not None
        run.start({"depth": 5}, DATA)
    assert run.result() is None
    assert run.config()["settings"] == {"depth": 5}
    assert (tmp_path / "table.csv").exists()


def test_a_run_of_a_training_program_is_not_overwritten(tmp_path):
    with open_run(tmp_path, {}) as run:
        assert run is not None
        run.start({}, DATA, "trainers.cifar")
    with pytest.raises(UsageError, match=r"is a run of trainers.cifar"), open_run(tmp_path, {}, overwrite=True):
        pass
