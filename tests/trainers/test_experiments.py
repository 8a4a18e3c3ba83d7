"""Tests of the shared parts of experiments: cases, tables, figures, verdicts."""

import dataclasses

from trainers.experiments.experiment import Experiment, Verdict
from trainers.experiments.panels import line, panel_for_each


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    size: int
    value: float | None


ROWS = [Row("a", 1, 0.5), Row("a", 2, None), Row("b", 1, 1e-9)]


def panel(axes, rows):
    line(axes, rows, "size", "value", label="value")


def cases(problem, settings):
    """Return two cases: the first two rows, and the third one."""
    return [(problem[:2],), (problem[2:],)] if problem else []


EXPERIMENT = Experiment(
    "measured",
    cases,
    measure=iter,
    figures={"first": lambda rows: panel_for_each(rows, "name", panel, "value")},
    verdict=lambda rows: Verdict(len(rows) > 1, f"{len(rows)} rows"),
    verdict_by="name",
)


def test_an_experiment_measures_its_cases_and_writes_its_results(tmp_path):
    assert EXPERIMENT.run(ROWS, None) == ROWS
    assert EXPERIMENT.run([], None) == []
    assert EXPERIMENT.verdicts(ROWS) == ["SEEN: 2 rows.", "NOT SEEN: 1 rows."]
    assert dataclasses.replace(EXPERIMENT, verdict_by=None).verdicts(ROWS) == ["SEEN: 3 rows."]
    assert str(Verdict(None, "because")) == "OPEN: because."
    paths = EXPERIMENT.write(ROWS, tmp_path, "png")
    assert [path.name for path in paths] == ["measured.csv", "first.png"]
    # The fields of the rows are the columns, and cells for None are empty.
    assert paths[0].read_text() == "name,size,value\na,1,0.5\na,2,\nb,1,1e-09\n"
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_a_figure_has_a_panel_for_each_of_the_first_values():
    figure = panel_for_each(ROWS, "name", panel, "value", lowest=1e-12)
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    assert {axes.get_ylim()[0] for axes in figure.axes} == {1e-12}
    # A single point is a dot.
    assert figure.axes[0].lines[0].get_marker() == "o"
    figure = panel_for_each(ROWS, "name", panel, "value", most=1)
    assert [axes.get_title() for axes in figure.axes] == ["a"]
