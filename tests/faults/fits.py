"""`model.fit` with `ExactResume`, killed at random batches: see `tests.support.killed_fit`."""

import functools
import random

from tests.faults.bench import Bench
from tests.faults.tally import Tally

KILLS_A_TRIAL = 10


def _fits(backend: str, row: str, bench: Bench, chance: random.Random, most: int) -> Tally:
    tally, folder = Tally(), bench.place("fit")
    kills = min(most, KILLS_A_TRIAL)
    # The processes that have imported everything have imported TensorFlow.
    process = bench.start(
        "tests.support.killed_fit",
        folder,
        kills,
        chance.random(),
        cold=backend != "tensorflow",
        env={"KERAS_BACKEND": backend},
    )
    code, said = process.wait(), process.said()
    if code:
        tally.count(row, kills, 0, said)
    else:
        tried, survived = map(int, said.split()[-2:])
        tally.count(row, tried, survived, said)
    return tally


on_tensorflow = functools.partial(
    _fits, "tensorflow", "`model.fit` with [`ExactResume`](resume.md) on TensorFlow: SIGKILL, then the same script"
)
on_jax = functools.partial(_fits, "jax", "the same on JAX")
