"""How many faults are tried, and the table of what came of them.

pytest tests/faults                                       few of each
pytest tests/faults --faults 50 --faults-seed 7           fifty times as many, drawn from another seed
"""

import pathlib
import random

import pytest

from tests.support.programs import run_here

STEPS = 120
TINY = ["--dataset", "shapes", "--train-images", 500, "--test-images", 100, "--blocks", 1, "--stem", 4]
TINY += ["--widths", 4, 8, "--batch-size", 16, "--initializer", "standard", "--steps", STEPS, "--drop-steps", 80]
TINY += ["--log-every", 5, "--evaluate-every", 40, "--checkpoint-every", 10]
_PROPERTY = "faults"


@pytest.fixture(scope="session")
def amount(request) -> int:
    """How many times as many faults are tried."""
    return request.config.getoption("--faults")


@pytest.fixture
def chance(request) -> random.Random:
    """Randomness that depends on the seed and on the test."""
    return random.Random(f"{request.config.getoption('--faults-seed')} {request.node.name}")


@pytest.fixture
def count_faults(record_property):
    """Notes how many faults of a kind were tried, and how many of them ended as they should."""

    def count(kind: str, tried: int, survived: int) -> None:
        record_property(_PROPERTY, f"{kind}|{tried}|{survived}")

    return count


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> pathlib.Path:
    """An undisturbed run, for comparison."""
    run = tmp_path_factory.mktemp("faults") / "whole"
    done = run_here("trainers.cifar", *TINY, "--out", run)
    assert done.returncode == 0, done.stderr
    return run


def pytest_terminal_summary(terminalreporter, config):
    lines = [
        value.split("|")
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if not lines:
        return
    terminalreporter.section(f"faults, seed {config.getoption('--faults-seed')}")
    terminalreporter.write_line("| fault | tried | survived |\n|---|---|---|")
    for kind, tried, survived in lines:
        terminalreporter.write_line(f"| {kind} | {tried} | {survived} |")
