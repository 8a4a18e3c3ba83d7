"""Tests of memorizers as Keras models and of `ResidualDenseStack`."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.expressivity import ResidualDenseStack, memorize, verify
from idmatters_tf.expressivity import memorizer as module
from tests.support.checks import check_layer


def sample(n, d, classes, seed=0):
    """Draw normal points (n, d) and random labels."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.integers(0, classes, n)


@pytest.mark.parametrize(
    ("n", "dim", "classes", "width"),
    [(50, 3, 4, 1), (47, 5, 6, 9), (1, 4, 1, 3), (33, 40, 2, 64)],
)
def test_every_row_becomes_its_one_hot_vector(n, dim, classes, width):
    x, labels = sample(n, dim, classes)
    model = memorize(x, labels, classes, width=width)
    np.testing.assert_allclose(model(x), np.eye(classes)[labels], atol=1e-6)
    report = model.report
    assert report.parameters == sum(np.size(weight) for weight in model.weights)
    assert report.parameters == -(-n // width) * width * (2 * width + 1) + width * (dim + classes) + classes * (
        classes + 1
    )
    assert report.blocks == -(-n // width) == model.get_layer("blocks").blocks
    assert report.verified["float64"].accuracy == 1
    assert verify(model, x, labels) == report.verified["float64"]


def test_saved_and_exported_models_keep_float64(tmp_path):
    x, labels = sample(300, 12, 4)
    model, expected = memorize(x, labels, width=16), np.eye(4)[labels]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert verify(loaded, x, labels) == model.report.verified["float64"]
    model.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(served.serve(tf.constant(x)), expected, atol=1e-6)
    # Keras rounds the arrays of other models to float32.
    outputs = loaded.predict(x, verbose=0)
    assert outputs.dtype == np.float64
    np.testing.assert_allclose(outputs, expected, atol=1e-11)
    loaded.compile(loss="mae", run_eagerly=True)
    assert loaded.evaluate(x, expected, batch_size=300, verbose=0) < 1e-11
    assert keras.config.floatx() == "float32"


@pytest.mark.parametrize(("lookahead", "shape"), [(1, (5, 6)), (3, (2, 3, 6)), (20, (5, 6))])
def test_stack_is_a_chain_of_blocks_for_any_lookahead(lookahead, shape):
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal(shape).astype("float32")
    stack = ResidualDenseStack(7, 4, lookahead)
    stack.build(inputs.shape)
    # Some blocks fire and some do not.
    for weight, shift in ((stack.U, 0), (stack.V, 0), (stack.s, -1)):
        weight.assign(
            0.5 * rng.standard_normal(weight.shape) + shift * rng.integers(0, 9, (7, *[1] * (weight.ndim - 1)))
        )
    expected = inputs
    for number in range(7):
        expected = stack.block(number)(expected)
    np.testing.assert_allclose(stack(inputs), expected, atol=1e-5)
    np.testing.assert_allclose(stack(inputs, training=True), expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"must be in 0\.\.6"):
        stack.block(7)


def test_stack_follows_the_conventions_of_keras_layers():
    inputs = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
    check_layer(ResidualDenseStack(5, 3, lookahead=2, kernel_initializer="ones"), inputs)


def test_equal_rows_count_once_and_a_zero_row_gets_a_bias():
    x = np.random.default_rng(0).integers(0, 256, (40, 9)).astype(np.uint8)
    x[5] = 0
    labels = np.arange(40) % 5
    model = memorize(np.concatenate([x, x[:7]]), np.concatenate([labels, labels[:7]]), width=8)
    assert (model.report.rows, model.report.distinct_rows, model.report.blocks) == (47, 40, 5)
    assert len(model.get_layer("projection").weights) == 2
    assert model.report.verified["float64"].accuracy == 1
    np.testing.assert_allclose(model(x.astype("float64")), np.eye(5)[labels], atol=1e-6)


def test_verify_finds_wrong_rows():
    x, labels = sample(50, 4, 3)
    model = memorize(x, labels, width=8, check=())
    wrong = labels.copy()
    wrong[[3, 17]] = (wrong[[3, 17]] + 1) % 3
    done = []
    for batch_size in (50, 16):
        checked = verify(
            model, x, wrong, batch_size=batch_size, progress=lambda rows, total: done.append((rows, total))
        )
        assert (checked.rows, checked.correct, checked.wrong_rows) == (50, 48, (3, 17))
        assert checked.largest_error == pytest.approx(1)
    assert done == [(50, 50), (13, 50), (26, 50), (39, 50), (50, 50)]
    assert verify(model, x, (labels + 1) % 3, batch_size=16).wrong_rows == tuple(range(10))


def test_jax_without_float64_is_named(monkeypatch):
    pytest.importorskip("jax")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for changes in ({}, {"dtype": "float32", "check": ("float64",)}, {"dtype": "float64", "check": ()}):
        with pytest.raises(ValueError, match="JAX replaces by float32. Set the environment variable JAX_ENABLE_X64=1"):
            memorize(*sample(20, 3, 2), **changes)


def test_wrong_network_raises(monkeypatch):
    construct = module.construct
    monkeypatch.setattr(module, "construct", lambda *a: dataclasses.replace(construct(*a), V=-construct(*a).V))
    with pytest.raises(ValueError, match="The network is wrong on .* rows, the first is"):
        memorize(*sample(50, 4, 3), width=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.ones((4, 2, 2))}, "Flatten each point: x.reshape(len(x), -1)"),
        ({"x": np.array([[1.0], [np.nan], [2], [3]])}, "Received: NaN or infinite entries in row 1"),
        ({"labels": [0, -1, 0, 1]}, "must have shape (4,) and contain class indices"),
        ({"labels": [0, 1, 2, 10**9]}, "must be at most 32,768, because the last block has classes^2 weights"),
        (
            {"x": 1e160 * np.arange(8.0).reshape(4, 2), "dtype": "float32"},
            "from 1e-32 to 8e+31 for float32. Received: 7e+160. Scale x, or",
        ),
        ({"classes": 1}, "must be above the largest label, 1. Received: classes=1"),
        ({"order": "random"}, "must be one of 'norm', 'ridge'. Received: order='random'"),
        ({"x": np.array([[1.0], [2], [1], [3]]), "labels": [0, 1, 1, 0]}, "rows 0 and 2 are equal, but their labels"),
        ({"x": np.array([[1.0], [2], [2 + 1e-15], [2]]), "labels": [0, 1, 0, 1]}, "in float64: 2 and 1 have"),
    ],
)
def test_invalid_input_raises(changes, message):
    arguments = {"x": np.arange(1.0, 9).reshape(4, 2), "labels": [0, 1, 0, 1], "width": 2, **changes}
    with pytest.raises(ValueError, match=re.escape(message)):
        memorize(**arguments)


@pytest.mark.parametrize("width", [64, 128])
def test_wide_networks_for_norms_over_many_orders_of_magnitude(width):
    """A block would compute the labels of small points as differences of much larger numbers."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(40, 3)) * 10.0 ** -np.linspace(0, 16, 40)[:, None]
        report = memorize(x, rng.integers(0, 4, 40), width=width, check=("float64",)).report
        assert report.verified["float64"].correct == 40
        assert report.blocks > 1
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert memorize(x, rng.integers(0, 4, 40), width=width, check=()).report.blocks == 1
