"""Figures of runs: whatever the runs and their titles are called."""

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
