"""Figures of runs: names with markup, running means and logarithmic axes."""

import pytest

from trainers.run import figures


def test_names_and_titles_are_no_formulas(tmp_path):
    records = [{"kind": kind, "step": step, "error": 0.5} for step in (10, 20) for kind in ("train", "test")]
    names = ["plain", "$x$", r"$\frac{$", r"\$5 and $\bad{$"]
    figures.convergence(records, tmp_path / "convergence.png", r"$\frac{$")
    groups = {name: [name] for name in names}
    figures.comparison(dict.fromkeys(names, records), tmp_path / "comparison.png", r"$\bad{$", groups)
    for name in ("convergence.png", "comparison.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_running_means_are_centred_and_stop_at_drops():
    line = [(step, 2.0 * step) for step in range(400)]
    assert figures.running_mean(line)[:390] == line[:390]
    means = figures.running_mean([(step, float(step % 2)) for step in range(5000)])
    assert means[0] == (0, 0.0)
    assert means[-1] == (4999, pytest.approx(0.5, abs=0.01))
    steps = [(step, float(step < 200)) for step in range(400)]
    assert figures.running_mean(steps, [199]) == steps
    assert figures.running_mean(steps) != steps


def test_drops_of_the_rate_are_found_in_the_records():
    def find(*rates):
        records = [{"kind": "train", "step": 10 * i, "learning_rate": rate} for i, rate in enumerate(rates, start=1)]
        return figures.rate_drops([*records, {"kind": "test", "step": 10}])

    assert find(*[0.05] * 3, *[0.005] * 3, *[0.0005] * 3) == [30, 60]
    assert find(0.1, 0.1, 0.094, 0.094) == find(0.4, 0.3, 0.2, 0.1, 0.0) == []


def test_error_axes_are_logarithmic_also_with_errors_of_0(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: drawn.append(figure.axes[0]))
    errors = [0.64, 0.08, 0.02, 0.01, 0.0]
    records = [{"kind": "test", "step": step, "error": error} for step, error in enumerate(errors)]
    figures.convergence(records, tmp_path / "x.png", "title")
    figures.comparison({"a": records, "b": records[:-1]}, tmp_path / "x.png", "title", {"a": ["a"], "b": ["b"]})
    for axes in drawn:
        heights = axes.transData.transform([(0, 100 * error) for error in errors[:-1]])[:, 1]
        # 1 to 2 % are as far apart as 2 to 4 %: a third of the way from 8 to 64 %.
        assert heights[2] - heights[3] == pytest.approx((heights[0] - heights[1]) / 3)
        low, high = axes.get_ylim()
        assert 0 < low < 1 < 64 < high
    figures.convergence([{"kind": "test", "step": 1, "error": 0.0}], tmp_path / "x.png", "title")
    assert drawn[-1].get_yscale() == "linear"
