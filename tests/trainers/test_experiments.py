"""What the programs that run experiments share: progress, tables, figures, TensorBoard runs."""

import csv
import dataclasses

import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from trainers.experiments.panels import add_legend, by_columns, line, panels
from trainers.experiments.progress import Bars
from trainers.experiments.registry import Counter, Experiment, Scalars, Verdict
from trainers.experiments.results import write_results, write_scalars


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


EXPERIMENT = Experiment("measured", Row, lambda problem, settings, progress: ROWS, {"first": draw, "second": draw})


def test_a_table_has_the_fields_of_its_rows_as_columns_and_empty_cells_for_none(tmp_path):
    paths = write_results(EXPERIMENT, ROWS, tmp_path)
    assert [path.name for path in paths] == ["measured.csv", "first.png", "second.png"]
    assert paths[0].read_text() == "name,size,value\na,1,0.5\na,2,\nb,1,1e-09\n"
    with open(paths[0], newline="") as stream:
        assert list(csv.DictReader(stream))[1]["value"] == ""
    assert paths[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("format", "beginning"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_in_other_formats(tmp_path, format, beginning):
    path = write_results(EXPERIMENT, ROWS, tmp_path, format)[1]
    assert path.suffix == f".{format}"
    assert path.read_bytes().startswith(beginning)


def test_each_run_is_a_folder_of_its_own(tmp_path):
    scalars = [
        Scalars(f"descent, depth {depth}", step, {"risk/κ = 2, det < 0": 1.0, "risk/κ = 2, det > 0": 2.0})
        for depth in (4, 16)
        for step in (0, 1)
    ]
    write_scalars(scalars, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["descent-depth-16", "descent-depth-4"]
    (file,) = (tmp_path / "descent-depth-4").iterdir()
    tags = [value.tag for event in tf.compat.v1.train.summary_iterator(str(file)) for value in event.summary.value]
    assert tags == ["risk/κ = 2, det < 0", "risk/κ = 2, det > 0"] * 2


def test_a_counter_reports_every_piece_and_bars_show_each_stage(capsys):
    seen = []
    counter = Counter(lambda *progress: seen.append(progress), "sweep", 2)
    counter.advance()
    counter.advance()
    assert seen == [("sweep", 0, 2), ("sweep", 1, 2), ("sweep", 2, 2)]
    with Bars() as bars:
        for progress in (*seen, ("norms", 1, 1)):
            bars(*progress)


def test_verdicts_in_words():
    assert [str(Verdict(seen, "because")) for seen in (True, False, None)] == [
        "SEEN: because.",
        "NOT SEEN: because.",
        "OPEN: because.",
    ]


def test_panels_stand_two_in_a_row_and_a_single_point_is_a_dot():
    figure, axes = panels(3)
    assert (len(axes), len(figure.axes)) == (3, 3)
    assert isinstance(figure, Figure)
    assert line(axes[0], ROWS[:2], "size", "value")
    assert axes[0].lines[0].get_marker() == "o"
    assert not line(axes[1], ROWS[1:2], "size", "value")
    assert list(by_columns(ROWS, "name", "size")) == [("a", 1), ("a", 2), ("b", 1)]
