"""Tests of the shared parts of experiments: cases, tables, figures, verdicts."""

import dataclasses

from matplotlib.figure import Figure

from trainers.experiments.experiment import Experiment, Verdict, by_columns
from trainers.experiments.panels import add_legend, line, panel_for_each, panels


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    size: int
    value: float | None


ROWS = [Row("a", 1, 0.5), Row("a", 2, None), Row("b", 1, 1e-9)]


def draw(rows):
    figure, (axes,) = panels(1)
    line(axes, rows, "size", "value", label="value")
    add_legend(figure)
    return figure


def cases(problem, settings):
    """Return two cases: the first two rows, and the third one."""
    return [(problem[:2],), (problem[2:],)] if problem else []


EXPERIMENT = Experiment(
    "measured",
    cases,
    measure=iter,
    figures={"first": draw, "second": draw},
    verdict=lambda rows: Verdict(len(rows) > 1, f"{len(rows)} rows"),
    verdict_by="name",
)


def test_an_experiment_measures_its_cases_in_order():
    assert EXPERIMENT.run(ROWS, None) == ROWS
    assert EXPERIMENT.run([], None) == []


def test_there_is_a_verdict_for_each_value_of_a_column():
    assert EXPERIMENT.verdicts(ROWS) == ["SEEN: 2 rows.", "NOT SEEN: 1 rows."]
    whole = dataclasses.replace(EXPERIMENT, verdict_by=None)
    assert whole.verdicts(ROWS) == ["SEEN: 3 rows."]
    assert dataclasses.replace(EXPERIMENT, verdict=None).verdicts(ROWS) == []
    assert str(Verdict(None, "because")) == "OPEN: because."


def test_the_table_and_the_figures_are_written(tmp_path):
    paths = EXPERIMENT.write(ROWS, tmp_path, "png")
    assert [path.name for path in paths] == ["measured.csv", "first.png", "second.png"]
    # The fields of the rows are the columns, and cells for None are empty.
    assert paths[0].read_text() == "name,size,value\na,1,0.5\na,2,\nb,1,1e-09\n"
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_panels_stand_two_in_a_row_and_a_single_point_is_a_dot():
    figure, axes = panels(3)
    assert (len(axes), len(figure.axes)) == (3, 3)
    assert isinstance(figure, Figure)
    line(axes[0], ROWS[:2], "size", "value")
    assert axes[0].lines[0].get_marker() == "o"
    line(axes[1], ROWS[1:2], "size", "value")
    assert not axes[1].lines
    assert list(by_columns(ROWS, "name", "size")) == [("a", 1), ("a", 2), ("b", 1)]


def test_a_figure_has_a_panel_for_each_of_the_first_values():
    def panel(axes, rows):
        line(axes, rows, "size", "value")

    figure = panel_for_each(ROWS, "name", panel, "value", lowest=1e-12)
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    assert {axes.get_ylim()[0] for axes in figure.axes} == {1e-12}
    figure = panel_for_each(ROWS, "name", panel, "value", most=1)
    assert [axes.get_title() for axes in figure.axes] == ["a"]
