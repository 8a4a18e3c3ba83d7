"""Tests of figures of runs: unusual names and titles, and running means that keep steep parts."""

import pytest

from trainers.run import figures

RECORDS = [
    {"kind": "train", "step": 10, "error": 0.9},
    {"kind": "test", "step": 10, "error": 0.8},
    {"kind": "test", "step": 20, "error": 0.7},
]


@pytest.mark.parametrize("name", ["plain", "$x$", r"$\frac{$", "$", r"\$5 and $\bad{$"])
def test_names_and_titles_are_no_formulas(tmp_path, name):
    figures.convergence(RECORDS, tmp_path / "convergence.png", name)
    assert figures.comparison({name: RECORDS}, tmp_path / "comparison.png", name) == tmp_path / "comparison.png"
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["comparison.png", "convergence.png"]


def test_running_means_are_centred_and_stop_at_drops():
    line = [(step, 2.0 * step) for step in range(400)]
    assert figures.running_mean(line)[:390] == line[:390]
    noisy = [(step, float(step % 2)) for step in range(5000)]
    means = figures.running_mean(noisy)
    assert means[0] == (0, 0.0)
    assert means[-1] == (4999, pytest.approx(0.5, abs=0.01))
    steps = [(step, float(step < 200)) for step in range(400)]
    assert figures.running_mean(steps, [200]) == steps
    assert figures.running_mean(steps) != steps
    assert figures.running_mean([]) == []


def test_drops_of_the_rate_are_found_in_the_records():
    def records(rates):
        return [{"kind": "train", "step": 10 * i, "learning_rate": rate} for i, rate in enumerate(rates, start=1)]

    assert figures.rate_drops(records([0.05] * 3 + [0.005] * 3 + [0.0005] * 3)) == [40, 70]
    assert figures.rate_drops(records([0.1, 0.1, 0.094, 0.094])) == []
    assert figures.rate_drops(records([0.4, 0.3, 0.2, 0.1, 0.0])) == []
    assert figures.rate_drops(RECORDS) == []
