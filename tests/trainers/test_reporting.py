"""Tests of the HTML report."""

import base64
import html.parser
import json
import re
import xml.etree.ElementTree

import pytest

from tests.trainers.test_report import make
from trainers.cli.arguments import UsageError
from trainers.report import main
from trainers.reporting.curves import chart

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
VOID = {"meta", "img", "br"}


class Elements(html.parser.HTMLParser):
    """Parser of the elements of a page with their attributes, and of the text of table rows."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.rows = [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append((dict(attributes).get("class"), []))
        if tag in ("td", "th"):
            self.rows[-1][1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][1][-1] += text


@pytest.fixture
def runs(tmp_path):
    """Return two training runs, one with markup as its name, and a run of an experiment with an image."""
    first = make(
        tmp_path / "a", {"seed": 0, "widths": [8, 16]}, [0.5, 0.25, 0.3], {"best_error": 0.25, "parameters": 9}
    )
    second = make(tmp_path / "<b>&", {"seed": 1, "widths": [8, 16]}, [0.6])
    third = tmp_path / "landscape"
    (third / "figures").mkdir(parents=True)
    config = {"program": "trainers.landscape", "settings": {"dim": 6}, "data": {"origin": "drawn", "digest": "12ab"}}
    (third / "config.json").write_text(json.dumps(config))
    (third / "result.json").write_text(json.dumps({"verdicts": ["SEEN: 1 < 2."], "rows": {"descent": 7}}))
    (third / "figures" / "descent.png").write_bytes(PNG)
    (third / "figures" / "descent.svg").write_text("<svg/>")
    return [first, second, third]


def test_one_file_with_everything(runs, tmp_path, capsys):
    file = tmp_path / "report.html"
    assert main([*map(str, runs), "--html", str(file), "--title", "Two & one"]) == 0
    assert "3 runs" in capsys.readouterr().out
    text = file.read_text()
    page = Elements(text)
    # The page is self-contained.
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.found}
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    sources = [attributes["src"] for tag, attributes in page.found if tag == "img"]
    assert sources == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]
    assert "<h1>Two &amp; one</h1>" in text
    assert "<h2>&lt;b&gt;&amp;</h2>" in text
    rows = [cells for _, cells in page.rows]
    assert ["seed", "0", "1", "-"] in [cells for css, cells in page.rows if css == "differs"]
    assert ["rows.descent", "7"] in rows
    assert ["checksum of the data", "12ab"] in rows
    assert any(cells[:3] == ["a", "25.00", "20"] for cells in rows)
    assert "SEEN: 1 &lt; 2." in text
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings[:3] == ["Results", "Curves", "Settings"]
    assert "Not finished." in text
    # Test and training errors and losses, of two runs each; one of the runs is a single point.
    charts = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert [re.findall("<title>(.*?):", chart) for chart in charts] == [["a", "&lt;b&gt;&amp;"]] * 4


def test_equal_curves_are_named_and_have_stripes(tmp_path):
    errors = {"a": [0.5, 0.2], "b": [0.5, 0.3], "<c>": [0.5, 0.2]}
    paths = [make(tmp_path / name, {"seed": seed, "widths": [8, 16]}, errors[name]) for seed, name in enumerate(errors)]
    file = tmp_path / "report.html"
    main([*map(str, paths), "--html", str(file)])
    rows = Elements(file.read_text()).rows
    assert [cells[0] for css, cells in rows if css == "differs"] == ["seed"]
    assert (None, ["widths", "8 16"]) in rows
    first = re.findall(r"<figure>.*?</figure>", file.read_text(), re.DOTALL)[0]
    assert re.findall("same curve: [^<]*", first) == ["same curve: a, &lt;c&gt;"]
    lines = {
        name: re.findall(r"stroke-das[^;\"]*", path)
        for name, path in re.findall(r"<title>(.*?): [^<]*</title>\s*<path ([^>]*)", first)
    }
    assert lines["b"] == []
    assert lines["a"][0] == lines["&lt;c&gt;"][0]
    assert lines["a"][1] != lines["&lt;c&gt;"][1]


def test_runs_of_experiments_alone_have_no_curves(runs, tmp_path):
    file = tmp_path / "report.html"
    main([str(runs[2]), "--html", str(file)])
    text = file.read_text()
    Elements(text)
    for absent in ("<svg", "differs", "legend"):
        assert absent not in text.split("</style>")[1]


def test_bad_input(runs, tmp_path):
    with pytest.raises(UsageError, match="is not a run"):
        main([str(tmp_path), "--html", str(tmp_path / "x.html")])
    with pytest.raises(UsageError, match="--html .* cannot be written"):
        main([str(runs[0]), "--html", str(tmp_path / "missing" / "x.html")])


def curve(drawn):
    """Return the points of the only curve of a chart, in pixels from the top left."""
    (path,) = re.findall(r'<title>run: [^<]*</title>\s*<path d="([^"]*)"', drawn)
    return [tuple(map(float, point)) for point in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path)]


def test_points_are_where_their_axes_say():
    curves = {"run": [(0, 1.0), (50, 100.0), (100, 10.0), (120, float("nan"))]}
    for logarithmic, middle in ((True, 0.5), (False, 9 / 99)):
        drawn = chart("<loss>", curves, {"run": 0}, logarithmic)
        assert xml.etree.ElementTree.fromstring(drawn.replace("xlink:", "")).get("aria-label") == "<loss>"
        (x0, low), (x1, high), (x2, end) = curve(drawn)
        assert x1 - x0 == pytest.approx(x2 - x1, abs=0.01)
        assert high < end < low
        assert (low - end) / (low - high) == pytest.approx(middle, abs=0.001)
        # The tick with this label is at the height of the point with this value.
        pattern = r'y="([\d.]+)"[^>]*/>\s*</g>\s*</g>\s*<g>\s*<text[^>]*>([^<]*)</text>'
        heights = {text: float(y) for y, text in re.findall(pattern, drawn)}
        assert heights["100"] == pytest.approx(high, abs=0.01)


def test_charts_have_no_part_of_the_page_outside_and_follow_its_colors():
    drawn = chart("loss", {"run": [(0, 1.0), (9, 0.5)]}, {"run": 12})
    assert "stroke: currentColor" in drawn
    assert "stroke-dasharray" in drawn
    assert "<title>run: 0.5 at 9</title>" in drawn
    assert not re.search(r"https?:|<metadata|<style[^>]*>[^<]*@import", drawn)
    # The only ids are those of clip paths and markers, which are equal if charts share them.
    assert set(re.findall(r' id="([^"]*)"', drawn)) == set(re.findall(r"#([\w-]+)[)\"]", drawn))
    assert drawn == chart("loss", {"run": [(0, 1.0), (9, 0.5)]}, {"run": 12})


@pytest.mark.filterwarnings("error")
def test_values_of_any_size_are_drawn():
    points = [(step, float(step % 2)) for step in range(5000)]
    assert len(curve(chart("x", {"run": points}, {"run": 0}))) < 700
    assert chart("x", {"run": [(1, float("inf")), (2, 1e160)]}, {"run": 0}) == ""
    assert "<title>run: 0 at 0" in chart("x", {"run": [(0, 0.0)]}, {"run": 0})
    for values in ((1e150, -1e150), (1e-300, 1e-310), (1e-300, 1e150)):
        for logarithmic in (False, True):
            assert "NaN" not in chart("x", {"run": list(enumerate(values))}, {"run": 0}, logarithmic)
