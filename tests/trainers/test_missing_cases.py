"""Tests that figures of experiments name missing cases, and that coinciding curves are visible."""

import dataclasses

import numpy as np

from trainers.landscape import factorization
from trainers.shortcuts import conditions, sweep


def notes(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_targets_and_depths_that_are_left_out_are_named():
    # Depth 2 is too shallow for the paper's construction.
    targets = {f"R{number}": np.diag([2.0 + number, 1.0]) for number in range(5)}
    rows = [row for name, R in targets.items() for depth in (2, 8) for row in factorization.measure(name, R, depth)]
    figure = factorization.draw(rows)
    assert figure.get_suptitle() == "the first 4 of 5 targets; the table has all of them"
    assert notes(figure) == 4 * ["not defined at depth 2: the paper's construction"]
    assert factorization.draw(rows[:8]).get_suptitle() == ""
    whole = dataclasses.replace(rows[-1], log=None)
    assert notes(factorization.draw([whole])) == ["not defined for this target: matrix logarithm"]


def test_kinds_of_network_that_diverge_or_are_beyond_float64_are_named():
    row = sweep.SweepRow("linear", "xavier", 4, 0.1, True, 0.5, 0, 1, 0.0)
    rows = [row, dataclasses.replace(row, depth=8, loss=None, diverged=1)]
    assert notes(sweep.draw(rows)) == ["diverged at every rate: xavier at 8"]
    assert notes(sweep.draw(rows[:1])) == []

    start = conditions.ConditionsRow("xavier", 4, 10, 3.0, 0.1, 0, 1.0, 0.5)
    limited = dataclasses.replace(start, depth=64, lg_condition=12.0, at_limit=7)
    assert notes(conditions.draw([start, limited])) == ["beyond float64, drawn at its limit: xavier at 64 (7 runs)"]
    assert notes(conditions.draw([start])) == []
