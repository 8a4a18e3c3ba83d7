"""Tests of the record of versions, threads and devices, and of the warning when a run resumes with others."""

import importlib.metadata
import json

from idmatters_tf import _environment
from trainers.run.folder import Run

DATA = {"digest": "1", "origin": "made up"}
HERE = {"threads per operation": 2, "oneDNN": "default", "processor's instructions": "avx2 fma", "GPUs": []}


def test_a_resume_under_the_same_conditions_says_nothing(tmp_path, capsys):
    for _ in range(2):
        Run(tmp_path / "run").start({}, DATA, "program", HERE)
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["numerics"] == HERE
    named = {name.removesuffix("-cpu").removesuffix("-nightly") for name in saved["versions"]}
    assert {"python", "tensorflow", "keras", "numpy"} <= named
    assert capsys.readouterr().err == ""


def test_a_resume_elsewhere_is_told_what_differs(tmp_path, capsys):
    run = Run(tmp_path / "run")
    # Some programs do not record threads and devices.
    run.start({}, DATA, "program")
    config = json.loads(run.config_path.read_text())
    config["versions"]["numpy"] = "1.0"
    run.config_path.write_text(json.dumps(config))
    run.start({}, DATA, "program", HERE)
    assert "numpy was '1.0', now " in capsys.readouterr().err
    for name, value, message in (
        ("threads per operation", 1, "threads per operation was 2, now 1"),
        ("oneDNN", "0", "oneDNN was 'default', now '0'"),
        ("processor's instructions", "", "processor's instructions was 'avx2 fma', now ''"),
        ("GPUs", ["H100", "H100"], "GPUs was [], now ['H100', 'H100']"),
    ):
        run = Run(tmp_path / name)
        run.start({}, DATA, "program", HERE)
        run.start({}, DATA, "program", {**HERE, name: value})
        expected = f"{message}: results will differ by rounding from those of an uninterrupted run.\n"
        assert capsys.readouterr().err == expected


def test_a_pre_release_of_keras_is_recorded_and_compared(monkeypatch):
    def installed(package):
        if package != "keras-nightly":
            raise importlib.metadata.PackageNotFoundError(package)
        return "3.16.0.dev1"

    monkeypatch.setattr(importlib.metadata, "version", installed)
    found = _environment.collect_versions()
    assert found["keras-nightly"] == "3.16.0.dev1"
    changed = {"versions": {**found, "keras-nightly": "3.16.0.dev2"}}
    warning = _environment.describe_environment_change({"versions": found}, changed)
    assert warning is not None
    assert warning.startswith("keras-nightly was '3.16.0.dev1', now '3.16.0.dev2': results will differ by rounding")


def test_threads_are_those_that_were_asked_for_or_those_of_the_processor(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    assert _environment.describe_numerics()["threads per operation"] == 3
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "0")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 4, 5, 6, 9}, raising=False)
    assert _environment.describe_numerics()["threads per operation"] == 5
