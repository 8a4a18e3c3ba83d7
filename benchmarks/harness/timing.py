"""Measurements of several implementations in turn, so that a change in the machine's load affects all of them."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping


def seconds(function: Callable[[], object]) -> float:
    """The duration of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def timed(function: Callable[[], object]) -> Callable[[], float]:
    """A function that calls another one and returns how long it took, for `in_turn`."""
    return lambda: seconds(function)


def items_per_second(iterator: Iterator, duration: float, batch_size: int) -> float:
    """The rate at which an iterator delivers items in batches, measured for about `duration` seconds."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < duration:
        next(iterator)
        count += batch_size
    return count / (time.perf_counter() - start)


def in_turn(ways: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 0) -> dict[str, list[float]]:
    """Measures every implementation once per round.

    Args:
        ways: by name, functions that measure themselves once, such as `timed(function)`.
        rounds: how many measurements of each are kept.
        warm_up: rounds before these, whose measurements are discarded.

    Returns:
        The measurements of each, in the order of the rounds.
    """
    values = {name: [] for name in ways}
    for number in range(warm_up + rounds):
        for name, way in ways.items():
            value = way()
            if number >= warm_up:
                values[name].append(value)
    return values


def ratio(numerators: list[float], denominators: list[float]) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
