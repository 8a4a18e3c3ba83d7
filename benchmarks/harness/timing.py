"""Interleaved measurements of several implementations, so that changes of the machine's load affect all of them."""

import os
import statistics
import time
from collections.abc import Callable, Mapping


def seconds(function: Callable[[], object]) -> float:
    """Return the duration of one call in seconds."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(ways: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 0) -> dict[str, list[float]]:
    """Measure every implementation once per round, by name, and return the measurements after `warm_up` rounds."""
    measured = [{name: way() for name, way in ways.items()} for _ in range(warm_up + rounds)]
    return {name: [values[name] for values in measured[warm_up:]] for name in ways}


def ratio(numerators: list[float], denominators: list[float]) -> float:
    """Return the median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def available_cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
