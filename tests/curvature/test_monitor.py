"""The callback, the measurements, and several replicas."""

import subprocess
import sys

import numpy as np
import pytest

from idmatters_tf.curvature import CurvatureMonitor, HessianOperator, measure
from tests.conftest import ROOT
from tests.support import curvature_cases as cases


def tags(folder):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = {}
    for path in folder.rglob("events.out.tfevents.*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


def test_monitor_in_fit(tmp_path):
    model, loss, (x, y) = cases.case("cross-entropy")
    model.compile("sgd", loss)
    options = {"eigenvalues": 2, "probes": 2, "steps": 10}
    monitor = CurvatureMonitor((x, y), every=2, log_dir=tmp_path, measure_options=options)
    history = model.fit(x, y, epochs=3, verbose=0, callbacks=[monitor])
    assert list(monitor.measurements) == [0, 2]
    before, after = monitor.measurements.values()
    assert after.loss < before.loss
    assert len(history.history["curvature_index"]) == 1
    written = tags(tmp_path)
    assert written["curvature/largest_eigenvalue_2"] == written["curvature/density"] == [0, 2]
    assert {f"curvature/{name}" for name in ("trace", "index", "gradient_norm", "smallest_eigenvalue_1")} <= set(
        written
    )


def test_a_measurement_agrees_with_the_dense_matrix():
    model, loss, data = cases.case("convolution")
    operator = HessianOperator(model, loss, data)
    dense = operator.to_dense()
    values = np.linalg.eigvalsh(dense)
    measured = measure(operator, eigenvalues=2, probes=40, steps=len(dense), products=len(dense))
    np.testing.assert_allclose(measured.largest, values[:-3:-1], rtol=1e-3)
    np.testing.assert_allclose(measured.smallest, values[:2], rtol=1e-3)
    assert measured.trace == pytest.approx(np.trace(dense))
    index = np.mean(values < -0.01 * np.abs(values).max())
    assert abs(measured.index - index) < 5 * measured.index_error
    assert measured.gradient_norm == pytest.approx(np.linalg.norm(cases.plain_gradient(model, loss, *data)))


def test_monitor_needs_one_loss_and_positive_epochs():
    model, _, (x, y) = cases.case("two outputs")
    model.compile("sgd", ["mse", "mse"])
    with pytest.raises(ValueError, match="`loss` must be given"):
        model.fit(x, [y, y[:, :1]], verbose=0, callbacks=[CurvatureMonitor((x, y))])
    with pytest.raises(ValueError, match="`every` must be a positive"):
        CurvatureMonitor((x, y), every=0)


REPLICAS = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from idmatters_tf.curvature import FisherOperator, GaussNewtonOperator, HessianOperator
from tests.support import curvature_cases as cases
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
kinds = {"labels and L2": HessianOperator, "convolution": GaussNewtonOperator, "squares": FisherOperator}
for name, kind in kinds.items():
    model, loss, data = cases.case(name)
    expected = kind(model, loss, data, batch_size=3, check=False)
    vectors = np.random.default_rng(0).normal(size=(expected.shape[0], 2))
    with strategy.scope():
        mirrored, _, _ = cases.case(name)
        mirrored.set_weights(model.get_weights())
        # The last batch has one example, fewer than there are replicas.
        operator = kind(mirrored, loss, data, batch_size=3, check=name == "squares")
    np.testing.assert_allclose(operator @ vectors, expected @ vectors, rtol=1e-10, atol=1e-12)
print("the same on two replicas")
"""


def test_two_replicas_give_the_same():
    command = [sys.executable, "-c", REPLICAS]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=480, check=False)
    assert "the same on two replicas" in result.stdout, result.stderr
