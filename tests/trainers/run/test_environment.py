"""Record of threads and of oneDNN."""

import os

import pytest

from idmatters_tf import _environment
from trainers.cli.startup import enable_onednn


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
