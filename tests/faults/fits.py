"""Trials of `model.fit` with `ExactResume`, killed at random moments: see `tests.support.killed_fit`."""

import functools
import json
import random

from tests.faults.bench import Bench
from tests.faults.tally import DETAIL, Tally
from tests.support.fit_sources import SOURCES, installed_sources

# Heading of the table's column by backend and number of devices.
COLUMNS = {
    ("tensorflow", 1): "TensorFlow",
    ("tensorflow", 2): "TensorFlow, `MirroredStrategy` of two",
    ("jax", 1): "JAX",
    ("jax", 2): "JAX, `DataParallel` of two",
}
ROW = "`model.fit` with `ExactResume`, {}: SIGKILL, then the same script"
KILLS_A_CASE = 5
# Each source on one device and on two.
CASES = 2 * len(installed_sources())


def _fits(backend: str, bench: Bench, chance: random.Random, most: int) -> Tally:
    tally, folder = Tally(), bench.place("fit")
    # Two kills of each case, and more with a larger network. A smaller number of faults tests the first cases only.
    kills = max(2, min(KILLS_A_CASE, most // CASES))
    # Prepared processes have imported TensorFlow.
    process = bench.start(
        "tests.support.killed_fit",
        folder,
        kills,
        chance.random(),
        "--devices",
        1,
        2,
        "--cases",
        max(1, min(CASES, most // kills)),
        "--network",
        "classifier" if most > 2 * CASES else "quick",
        cold=backend != "tensorflow",
        env={
            "KERAS_BACKEND": backend,
            # Later processes on JAX load the compiled functions of the first one.
            "JAX_COMPILATION_CACHE_DIR": str(bench.folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
    )
    code, said = process.wait(3 * 3600), process.said()
    if code:
        tally.count(ROW.format(COLUMNS[backend, 1]), kills, 0, said)
        return tally
    for source, devices, tried, survived, _ in json.loads(said.splitlines()[-1]):
        tally.count(ROW.format(COLUMNS[backend, devices]) + DETAIL + source, tried, survived, said)
    return tally


def by_source(tally: Tally) -> str:
    """Return a Markdown table of kills survived and tried, by training data, backend and number of devices."""
    rows = {heading: ROW.format(heading) for heading in COLUMNS.values()}
    lines = [f"| data | {' | '.join(rows)} |", "|---" * (1 + len(rows)) + "|"]
    for source in SOURCES:
        found = [tally.rows.get(row + DETAIL + source, (0, 0)) for row in rows.values()]
        cells = [f"{survived} of {tried}" if tried else "" for tried, survived in found]
        lines.append(f"| {source} | {' | '.join(cells)} |")
    return "\n".join(lines)


on_tensorflow = functools.partial(_fits, "tensorflow")
on_jax = functools.partial(_fits, "jax")
