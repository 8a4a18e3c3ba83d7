"""Callbacks with periodic measurements: schedule, output and values."""

import dataclasses

import keras
import numpy as np
import pytest

from idmatters_tf import linear
from idmatters_tf.callbacks import BlockNorms, CurvatureMonitor, IsometryMonitor, _encoding
from idmatters_tf.isometry import kernel_norms
from idmatters_tf.layers import LinearResidual, ScaledResidualConv2D, ShortcutUnit
from idmatters_tf.models.linear import assign_weights, get_weights, linear_residual

rng = np.random.default_rng(0)


def tags(folder):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    steps = {}
    for path in folder.rglob("events.out.tfevents.*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    return steps


def linear_network(size=0.3, depth=3):
    model = linear_residual(4, depth)
    A = rng.normal(size=(depth, 4, 4))
    assign_weights(model, size * A / np.linalg.norm(A, 2, axis=(1, 2), keepdims=True))
    return model


def test_all_monitors_in_one_fit(tmp_path):
    model = linear_network()
    x = rng.normal(size=(20, 4)).astype("float32")
    model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
    few = {"probes": 1, "steps": 3, "products": 6}
    options = {"every": "2 epochs", "log_dir": tmp_path}
    monitors = [
        BlockNorms(**options),
        IsometryMonitor(x[:2], **options),
        CurvatureMonitor((x, x), measure_options=few, check=False, **options),
    ]
    history = model.fit(x, -x, initial_epoch=1, epochs=4, verbose=0, callbacks=monitors)
    norms, isometry, curvature = (monitor.measurements for monitor in monitors)
    # The first measurement at the beginning of training, then after every second epoch.
    assert list(norms) == list(isometry) == list(curvature) == [1, 2, 4]
    A = get_weights(model)[:, 0]
    assert norms[4].tau == pytest.approx(linear.tensor_norm(A), rel=1e-5)
    # For linear residual layers ||J - I|| is ||A||.
    for name, block in isometry[4].blocks.items():
        assert block.distance[0] == pytest.approx(norms[4].blocks[name]["spectral"], rel=1e-4)
    assert history.history["norms_tau"] == [pytest.approx(norms[epoch].tau) for epoch in (2, 4)]
    assert history.history["isometry_largest_distance"] == pytest.approx(history.history["norms_tau"], rel=1e-4)
    written = tags(tmp_path)
    for tag in ("norms/tau", "norms_spectral/unit2", "isometry/mean_distance", "isometry_smallest/unit3"):
        assert written[tag] == [1, 2, 4]
    assert written["isometry/distances"] == written["curvature/density"] == [1, 2, 4]
    # Stochastic gradient descent at a rate of 0.01.
    assert history.history["curvature_stability_threshold"] == [pytest.approx(200)] * 2
    assert curvature[4].scalars()["sharpness_over_threshold"] == pytest.approx(curvature[4].largest[0] / 200)
    expected = ("largest_eigenvalue_1", "smallest_eigenvalue_1", "trace", "index", "gradient_norm")
    assert {f"curvature/{name}" for name in expected} <= set(written)
    # The state that `ExactResume` saves is restored.
    for monitor in monitors:
        _encoding.Snapshot(monitor.get_state()).write(tmp_path)
        before, measured = monitor.measurements, _encoding.read(tmp_path)
        monitor.set_state(measured)
        assert list(before) == list(monitor.measurements)
        for epoch, values in before.items():
            np.testing.assert_equal(dataclasses.asdict(monitor.measurements[epoch]), dataclasses.asdict(values))


class Diverge(keras.callbacks.Callback):
    """Callback that makes the weights NaN after the first epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            for variable in self.model.trainable_variables:
                variable.assign(np.nan * variable)


@pytest.mark.parametrize("dim", [4, 260], ids=["dense", "iterations"])
def test_weights_of_nan_are_recorded(tmp_path, dim):
    model = linear_residual(dim, 2)
    x = rng.normal(size=(8, dim)).astype("float32")
    model.compile(keras.optimizers.SGD(1e-4), "mse", run_eagerly=True)
    few, kernel = {"probes": 1, "steps": 3, "products": 6, "tolerance": 0.5}, model.layers[-1].trainable_variables
    monitors = [
        BlockNorms(log_dir=tmp_path),
        IsometryMonitor(x[:1], log_dir=tmp_path),
        CurvatureMonitor((x, x), variables=kernel, measure_options=few, check=False, log_dir=tmp_path),
    ]
    history = model.fit(x, -x, epochs=2, batch_size=8, verbose=0, callbacks=[Diverge(), *monitors]).history
    names = ["norms_mean_frobenius", "norms_largest_spectral", "isometry_mean_distance"]
    names += ["isometry_smallest_singular_value", "isometry_end_to_end_largest"]
    names += [f"curvature_{name}" for name in ("loss", "largest_eigenvalue_1", "trace", "index", "gradient_norm")]
    for name in names:
        assert np.isfinite(history[name]).tolist() == [True, False]
    assert np.isnan(monitors[0].measurements[2].tau)


@pytest.mark.parametrize(("together", "seen"), [(1, [0, 3, 6]), (2, [0, 4, 6])])
def test_measurements_by_steps(tmp_path, together, seen):
    x = rng.normal(size=(20, 4)).astype("float32")
    model, twin = linear_network(), linear_network()
    twin.set_weights(model.get_weights())
    for each in (model, twin):
        each.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=together, run_eagerly=True)
    monitor = BlockNorms(every=3, log_dir=tmp_path)
    given = {"batch_size": 5, "shuffle": False, "verbose": 0}
    history = model.fit(x, -x, epochs=2, callbacks=[monitor], **given).history
    assert list(monitor.measurements) == tags(tmp_path)["norms/tau"] == seen
    # The newest measurement of each epoch of four steps.
    assert history["norms_tau"] == [monitor.measurements[number].tau for number in seen[1:]]
    twin.fit(x[: 5 * seen[1]], -x[: 5 * seen[1]], **given)
    assert monitor.measurements[seen[1]].tau == pytest.approx(linear.tensor_norm(get_weights(twin)[:, 0]), rel=1e-5)


def test_tau_is_known_for_linear_residual_layers_only():
    inputs = keras.Input((5,))
    model = keras.Model(inputs, ShortcutUnit(3, name="unit")(LinearResidual()(inputs)))
    monitor = BlockNorms()
    monitor.set_model(model)
    measured = monitor.measure()
    assert measured.tau is None
    assert set(measured.summary()) == {"mean_frobenius", "largest_spectral"}
    kernel = np.array(model.get_layer("unit").kernels[1])
    assert kernel_norms(model)["unit"][1].frobenius == pytest.approx(np.linalg.norm(kernel))


def test_gains_are_part_of_the_norms():
    images = keras.Input((4, 4, 2))
    block = ScaledResidualConv2D(3, strides=2, last_kernel_size=1, name="block")
    model = keras.Model(images, block(images))
    for convolution in (block.conv1, block.conv2):
        convolution.gains.assign(rng.normal(size=3))
    monitor = BlockNorms(tolerance=1e-6)
    monitor.set_model(model)
    measured = monitor.measure()
    # The dense matrices of the two convolutions, without their biases of zero.
    units = [np.eye(32).reshape(32, 4, 4, 2), np.eye(12).reshape(12, 2, 2, 3)]
    spectral = [
        np.linalg.norm(np.array(convolution(unit)).reshape(len(unit), -1), 2)
        for convolution, unit in zip((block.conv1, block.conv2), units, strict=True)
    ]
    assert measured.blocks["block"]["spectral"] == pytest.approx(max(spectral), rel=1e-5)


def test_invalid_arguments_and_models_without_blocks_raise():
    for every in (0, "3 batches"):
        with pytest.raises(ValueError, match="`every` of BlockNorms must be a positive"):
            BlockNorms(every=every)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="BlockNorms requires residual layers of idmatters_tf.layers, or sums"):
        model.fit(np.zeros((2, 4)), np.zeros(2), verbose=0, callbacks=[BlockNorms()])
