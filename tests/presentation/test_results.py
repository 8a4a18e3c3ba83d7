"""Representations, tables and figures of results."""

import keras
import numpy as np
import pytest
from matplotlib.figure import Figure

from idmatters_tf._presentation.results import tabulate
from idmatters_tf.callbacks import BlockNorms, CurvatureMonitor, IsometryMonitor
from idmatters_tf.curvature import spectral_density, top_eigenpairs
from idmatters_tf.isometry import block_distances, layer_influence
from idmatters_tf.isometry import measure as measure_isometry
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
    density, pairs = spectral_density(MATRIX), top_eigenpairs(MATRIX, 5)
    (axes,) = drawn(density, tmp_path / "density.png")
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), density.grid)
    assert repr(density).startswith("SpectralDensity(grid=<float64 (400,)>, density=<")
    assert "vectors=<float64 (50, 5)>, residuals=<" in repr(pairs)
    distances = block_distances(model, DATA[0][:2])
    assert isinstance(distances, dict)
    (axes,) = drawn(distances, tmp_path / "distances.png")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [np.maximum(row, 1e-6).mean() for row in distances.values()])
    assert [line.split()[0] for line in distances.table().splitlines()] == ["block", "block0", "block1"]
    assert "end_to_end=[[" in repr(measure_isometry(model, DATA[0][:2]))
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


def test_tables():
    assert tabulate(("name", "value"), []) == "name  value"
    assert tabulate(("name", "value"), [("a", 1.23456), ("bc", 12.0)]).splitlines() == [
        "name  value",
        "a     1.235",
        "bc       12",
    ]


def test_measurements_are_short(monitors):
    measured = monitors[2].measurements[0]
    assert len(repr(measured)) < 700
