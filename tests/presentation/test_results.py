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


@pytest.fixture(scope="module")
def monitors():
    model = network()
    model.compile("sgd", "mse")
    few = {"probes": 1, "steps": 3, "products": 6}
    callbacks = [BlockNorms(), IsometryMonitor(DATA[0][:2]), CurvatureMonitor(DATA, measure_options=few)]
    model.fit(*DATA, epochs=2, verbose=0, callbacks=callbacks)
    return callbacks


def drawn(result, path):
    """Return the axes of a figure that is also saved."""
    result.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert result.image().shape[2] == 4
    result.draw(figure := Figure())
    return figure.axes


def test_results_of_one_model(tmp_path):
    model = network()
    density = spectral_density(MATRIX)
    (axes,) = drawn(density, tmp_path / "density.png")
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), density.grid)
    distances = block_distances(model, DATA[0][:2])
    assert isinstance(distances, dict)
    (axes,) = drawn(distances, tmp_path / "distances.png")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [np.maximum(row, 1e-6).mean() for row in distances.values()])
    assert [line.split()[0] for line in distances.table().splitlines()] == ["block", "block0", "block1"]
    influence = layer_influence(model, "mse", DATA)
    axes = drawn(influence, tmp_path / "influence.png")
    assert [bar.get_width() for bar in axes[0].patches] == [block.relative for block in influence.blocks.values()]
    assert influence.table().splitlines()[1].startswith("block0  ")


@pytest.mark.parametrize(("number", "axes"), [(0, 2), (1, 1), (2, 12)])
def test_monitors_draw_their_measurements(monitors, number, axes, tmp_path):
    monitor = monitors[number]
    panels = drawn(monitor, tmp_path / "monitor.png")
    assert len(panels) == axes
    if axes > 1:
        name = panels[0].get_title()
        values = [monitor.logged(measured)[name] for measured in monitor.measurements.values()]
        assert panels[0].lines[0].get_ydata().tolist() == values
    else:
        assert [text.get_text() for text in panels[0].get_legend().get_texts()] == ["epoch 0", "epoch 1", "epoch 2"]


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
