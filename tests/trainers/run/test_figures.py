"""Figures of runs: names with markup, errors of zero and running means."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from trainers.run import figures


def test_figures_with_dollar_signs_and_zero_errors(tmp_path):
    records = [{"kind": kind, "step": step, "error": 0.0} for step in (10, 20) for kind in ("train", "test")]
    names = ["plain", "$x$", r"$\frac{$", r"\$5 and $\bad{$"]
    figures.convergence(records, tmp_path / "convergence.png", r"$\frac{$")
    figures.comparison(dict.fromkeys(names, records), tmp_path / "comparison.png")
    for name in ("convergence.png", "comparison.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("errors", "labels"), [([0.9, 0.02, 0.0], ["0", "2", "5", "10", "20", "50"]), ([0.3, 0.0], None)]
)
def test_an_error_of_zero_is_drawn_at_a_labeled_zero(errors, labels):
    axes = Figure().subplots()
    (curve,) = axes.plot([100 * error for error in errors], marker="o")
    figures._set_logarithmic(axes, curve.get_ydata())
    low, high = axes.get_ylim()
    assert low < 0 < high
    heights = axes.transData.transform(curve.get_xydata())[:, 1]
    zero = axes.transData.transform((0, 0))[1]
    assert heights[-1] == pytest.approx(zero)
    # The lowest positive value is apart from zero.
    assert heights[-2] - zero > 0.05 * np.ptp(axes.bbox.intervaly)
    shown = [axes.yaxis.get_major_formatter()(tick) for tick in axes.get_yticks()]
    assert shown == (labels or ["0", "30"])


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
