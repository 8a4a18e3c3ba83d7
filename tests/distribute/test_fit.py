"""`fit`, `evaluate` and `predict` on several replicas of one process, compared with one device."""

import os

import pytest

from tests.support.fits import compare
from tests.support.processes import DEVICES, Forked
from tests.support.replicated_fits import SHORT


@pytest.fixture(scope="module")
def folder(tmp_path_factory, slow):
    folder = tmp_path_factory.mktemp("fits")
    names = () if slow else SHORT["mirrored"]
    processes = []
    for devices, kind in [(1, "one"), (2, "mirrored"), *([(3, "mirrored")] if slow else [])]:
        words = ("tests.support.replicated_fits", folder / str(devices), kind, *names)
        processes.append(Forked(words, {**os.environ, DEVICES: str(devices)}))
    for process in processes:
        output, _ = process.communicate(3600)
        assert process.returncode == 0, output
    return folder


@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_replicas_end_where_one_device_ends(folder, replicas):
    compare(folder / "1/one 0", folder / f"{replicas}/mirrored 0")
