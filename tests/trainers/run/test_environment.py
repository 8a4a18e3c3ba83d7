"""Record of versions, threads and devices, and the warning when a run resumes with others."""

import json
import os

import pytest

from idmatters_tf import _environment
from trainers.cli.startup import enable_onednn
from trainers.run.folder import Run

DATA = {"digest": "1", "origin": "made up"}
HERE = {"threads per operation": 2, "oneDNN": "on", "processor's instructions": "avx2 fma", "GPUs": []}


def test_a_changed_environment_is_described(tmp_path, capsys):
    run = Run(tmp_path / "run")
    for _ in range(2):
        run.start({}, DATA, "program", HERE)
    assert capsys.readouterr().err == ""
    config = json.loads(run.config_path.read_text())
    assert {"python", "numpy"} <= set(config["versions"])
    config["versions"]["numpy"] = "1.0"
    run.config_path.write_text(json.dumps(config))
    run.start({}, DATA, "program", {**HERE, "oneDNN": "off"})
    said = capsys.readouterr().err
    assert "numpy was '1.0', now " in said
    assert "oneDNN was 'on', now 'off'" in said
    assert said.endswith(": results will differ by rounding from those of an uninterrupted run.\n")


def test_number_of_threads(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    assert _environment.describe_numerics()["threads per operation"] == 3
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "0")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 4, 5, 6, 9}, raising=False)
    assert _environment.describe_numerics()["threads per operation"] == 5


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_programs_enable_onednn_unless_the_user_has_set_it(given, expected, monkeypatch):
    if given is None:
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    else:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", given)
    enable_onednn()
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == expected


def test_onednn_is_recorded():
    """`.ci/run` runs this test with both settings."""
    state = {"0": "off", "1": "on"}[os.environ["TF_ENABLE_ONEDNN_OPTS"]]
    assert _environment.describe_numerics()["oneDNN"] == state
