"""Several workers: an equal order of the data without seeds in the script, and errors for differences."""

import pytest

from tests.support.processes import Cluster
from tests.support.unseeded_fits import CASES
from tests.support.worker_differences import DIFFERENCES

PROGRAM = "tests.support.unseeded_fits"
SHORT = ["arrays", "a PyDataset that shuffles", "tf.data of files"]


@pytest.mark.parametrize(
    ("workers", "names"), [(2, SHORT), pytest.param(3, list(CASES), marks=pytest.mark.slow)], ids=["2", "3"]
)
def test_unseeded_fits_equal_one_process(workers, names):
    with Cluster(workers) as cluster:
        cluster.start(PROGRAM, *names)
        for code, output in cluster.finish(timeout=900).values():
            assert code == 0, output


def test_differences_between_workers_are_named():
    with Cluster(2) as cluster:
        cluster.start("tests.support.worker_differences")
        for code, output in cluster.finish(timeout=900).values():
            lines = [line for line in output.splitlines() if line.startswith(("ok ", "WRONG "))]
            assert code == 0, output
            assert len(lines) == len(DIFFERENCES)
            assert not [line for line in lines if line.startswith("WRONG ")], output
