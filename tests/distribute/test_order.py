"""Order of the data of `fit` on several workers, without seeds in the script."""

import pytest

from tests.support.processes import Cluster
from tests.support.unseeded_fits import CASES

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
