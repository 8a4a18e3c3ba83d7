"""Tables and figures of results, and the display of progress on a terminal and in a log file."""

import io
import sys

import keras
import numpy as np
import pytest
from matplotlib.figure import Figure

from idmatters_tf._presentation import progress as progress_module
from idmatters_tf._presentation.progress import Progress
from idmatters_tf.callbacks import BlockNorms, CurvatureMonitor, IsometryMonitor
from idmatters_tf.curvature import spectral_density
from idmatters_tf.isometry import block_distances, layer_influence
from idmatters_tf.layers import ResidualDense

DATA = np.random.default_rng(0).normal(size=(6, 4)).astype("float32"), np.ones((6, 1), "float32")
MATRIX = np.diag(np.arange(1.0, 51.0))


def network(depth=2):
    blocks = [ResidualDense(4, name=f"block{number}") for number in range(depth)]
    return keras.Sequential([keras.Input((4,)), *blocks, keras.layers.Dense(1)])


def drawn(result):
    """Return the axes of a figure."""
    result.draw(figure := Figure())
    return figure.axes


def test_results_of_one_model(tmp_path):
    model = network()
    density = spectral_density(MATRIX)
    density.plot(tmp_path / "density.png")
    assert (tmp_path / "density.png").read_bytes().startswith(b"\x89PNG")
    assert density.image().shape[2] == 4
    (axes,) = drawn(density)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), density.grid)
    distances = block_distances(model, DATA[0][:2])
    assert isinstance(distances, dict)
    (axes,) = drawn(distances)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [np.maximum(row, 1e-6).mean() for row in distances.values()])
    assert [line.split()[0] for line in distances.table().splitlines()] == ["block", "block0", "block1"]
    influence = layer_influence(model, "mse", DATA)
    axes = drawn(influence)
    assert [bar.get_width() for bar in axes[0].patches] == [block.relative for block in influence.blocks.values()]
    assert influence.table().splitlines()[1].startswith("block0  ")


def test_monitors_draw_their_measurements(tmp_path):
    model = network()
    model.compile("sgd", "mse")
    few = {"probes": 1, "steps": 3, "products": 6}
    norms, isometry, curvature = BlockNorms(), IsometryMonitor(DATA[0][:2]), CurvatureMonitor(DATA, measure_options=few)
    model.fit(*DATA, verbose=0, callbacks=[norms, isometry, curvature])
    isometry.plot(tmp_path / "isometry.png")
    (axes,) = drawn(isometry)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["epoch 0", "epoch 1"]
    for monitor, count in ((norms, 2), (curvature, 12)):
        panels = drawn(monitor)
        assert len(panels) == count
        values = [monitor.logged(measured)[panels[0].get_title()] for measured in monitor.measurements.values()]
        assert panels[0].lines[0].get_ydata().tolist() == values


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream, monkeypatch, **options):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_module, "_LINE_SECONDS", 0.0)
    with Progress(10, "training", **options) as progress:
        progress.advance(2, text=None)
        progress.advance(2, "loss 0.5")
        progress.say("saved")
    return stream.getvalue()


def test_lines_in_a_log_file(monkeypatch):
    lines = shown(io.StringIO(), monkeypatch, done=4).splitlines()
    assert lines == ["training 8/10 loss 0.5, 0:00:00 left", "saved"]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    Progress(None, "eigenvalues", unit="products").advance(3)
    assert sys.stderr.getvalue() == "eigenvalues 3 products\n"


def test_bar_on_a_terminal(monkeypatch):
    bar, *updates = shown(Terminal(), monkeypatch, done=4, delay=0, leave=True).split("\r")[1:]
    assert "training:  40%" in bar
    assert "4/10" in bar
    assert any("8/10" in each and "loss 0.5" in each for each in updates)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(10, "short work") as progress:
        progress.advance(10)
    assert sys.stderr.getvalue().strip() == ""


def test_nothing_is_shown_by_other_processes(monkeypatch):
    for stream in (Terminal(), io.StringIO()):
        assert shown(stream, monkeypatch, progress=False) == ""
    with pytest.raises(ValueError, match="`progress` must be True or False"):
        Progress(10, "training", progress=1)
