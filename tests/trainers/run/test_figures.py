"""Figures of runs: names with markup, running means and logarithmic axes."""

import pytest

from trainers.run import figures

RECORDS = [
    {"kind": "train", "step": 10, "error": 0.9},
    {"kind": "test", "step": 10, "error": 0.8},
    {"kind": "test", "step": 20, "error": 0.7},
]


def test_names_and_titles_are_no_formulas(tmp_path):
    names = ["plain", "$x$", r"$\frac{$", "$", r"\$5 and $\bad{$"]
    figures.convergence(RECORDS, tmp_path / "convergence.png", r"$\frac{$")
    path = tmp_path / "comparison.png"
    assert figures.comparison(dict.fromkeys(names, RECORDS), path, r"\$5 and $\bad{$") == path
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


def test_error_axes_are_logarithmic_also_with_errors_of_0(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: drawn.append(figure.axes[0]))
    errors = [0.64, 0.08, 0.02, 0.01, 0.0]
    records = [{"kind": "test", "step": step, "error": error} for step, error in enumerate(errors)]
    figures.convergence(records, tmp_path / "x.png", "title")
    figures.comparison({"a": records, "b": records, "c": records[:-1]}, tmp_path / "x.png", "title")
    for axes in drawn:
        heights = axes.transData.transform([(0, 100 * error) for error in errors[:-1]])[:, 1]
        # 1 to 2 % are as far apart as 2 to 4 %: a third of the way from 8 to 64 %.
        assert heights[2] - heights[3] == pytest.approx((heights[0] - heights[1]) / 3)
        low, high = axes.get_ylim()
        assert 0 < low < 1 < 64 < high
    figures.convergence([{"kind": "test", "step": 1, "error": 0.0}], tmp_path / "x.png", "title")
    assert drawn[-1].get_yscale() == "linear"
