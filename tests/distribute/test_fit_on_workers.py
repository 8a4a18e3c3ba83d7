"""`fit`, `evaluate` and `predict` on several workers, compared with one device."""

import pytest

from tests.support.fits import compare
from tests.support.processes import Cluster, run_forked
from tests.support.replicated_fits import SHORT

PROGRAM = "tests.support.replicated_fits"


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_end_where_one_process_ends(tmp_path, slow, workers):
    names = () if slow else SHORT["workers"]
    with Cluster(workers) as cluster:
        cluster.start(PROGRAM, tmp_path, "workers", *names)
        done = run_forked(PROGRAM, tmp_path, "one", *names)
        assert done.returncode == 0, done.stderr
        for code, output in cluster.finish(timeout=3600).values():
            assert code == 0, output
    for index in range(workers):
        compare(tmp_path / "one 0", tmp_path / f"workers {index}")
    # The chief alone writes files.
    writers = {path.parent.name for path in tmp_path.rglob("*") if path.suffix in (".csv", ".h5")}
    assert writers == {"one 0", "workers 0"}
