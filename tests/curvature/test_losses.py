"""Losses compared with `fit`: compiled, overridden, weighted, masked and coupled ones."""

import importlib.util
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator
from tests.curvature import cases, loss_cases


@pytest.fixture(autouse=True)
def eager():
    """Run functions eagerly, because tracing them takes longer than their few calls."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def rows(n=7, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype("float32")


def check(results):
    """Check that the values agree, and that errors are raised where they are expected."""
    wrong = {name: result for name, result in results.items() if (result == "agrees") == (name in loss_cases.ERRORS)}
    assert not wrong
    assert not [result for result in results.values() if result.startswith("DIFFERS")]


def test_compiled_losses_equal_evaluate(slow):
    check(loss_cases.results(0, 1 if slow else 3))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_compiled_losses_on_jax_equal_evaluate(tmp_path, program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    done = program("tests.curvature.loss_cases", tmp_path / "results.json", env=env, timeout=900)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["backend"] == "jax"
    check(written["results"])


@pytest.mark.parametrize("kind", [loss_cases.Penalised, loss_cases.WithoutTraining])
def test_loss_of_a_model_that_overrides_compute_loss(kind):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    dense = keras.layers.Dense(2, kernel_regularizer="l2")
    model, x, y = kind(inputs, dense(keras.layers.Dense(3, "tanh")(inputs))), rows(), rows(d=2, seed=1)
    model.compile("sgd", "mse" if kind is loss_cases.Penalised else None)
    # The mean over the batches, weighted by the number of examples.
    parts = [float(model.compute_loss(x[a:b], y[a:b], model(x[a:b]))) for a, b in ((0, 3), (3, 6), (6, 7))]
    before = [np.array(variable) for variable in model.metrics_variables]
    operator = HessianOperator(model, data=(x, y), batch_size=3)
    for old, variable in zip(before, model.metrics_variables, strict=True):
        np.testing.assert_array_equal(old, np.array(variable))
    assert operator.loss() == pytest.approx(np.average(parts, weights=[3, 3, 1]), rel=1e-5)
    assert repr(operator).endswith(f"loss compute_loss of {model.name!r}>")
    with pytest.raises(ValueError, match="requires a loss of the outputs.*Received: a `compute_loss` that"):
        GaussNewtonOperator(model, data=(x, y))
    with pytest.raises(ValueError, match="`regularization` must be True for a model that overrides `compute_loss`"):
        HessianOperator(model, data=(x, y), regularization=False)


def masked():
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(3, activation="tanh")
    model = keras.Sequential(
        [keras.Input((3, 2), dtype="float64"), keras.layers.Masking(), hidden, keras.layers.Dense(2)]
    )
    x = np.random.default_rng(0).normal(size=(4, 3, 2))
    # Sequences of different lengths, so that batches differ in their fraction of padding.
    for row in range(4):
        x[row, 3 - row :] = 0
    return model, x, np.random.default_rng(1).normal(size=(4, 3, 2))


def test_masks_count_as_in_fit():
    model, x, y = masked()
    loss = keras.losses.MeanSquaredError(dtype="float64")

    expected = float(loss(y, model(x)))
    assert abs(expected - float(loss(y, np.array(model(x))))) > 0.01 * expected
    operator = HessianOperator(model, loss, (x, y), batch_size=2)
    assert operator.loss() == pytest.approx(expected, rel=1e-12)
    gradient = cases.plain_gradient(model, loss, x, y)
    np.testing.assert_allclose(operator.gradient(), gradient, atol=1e-12)
    assert cases.relative_error(operator) < 1e-6
    vector = np.random.default_rng(2).normal(size=len(gradient))
    # Near the minimum of a loss of squares, where labels are the outputs, Hessian and Gauss-Newton matrix are equal.
    fitted = (x, np.array(model(x)))
    pair = [
        kind(model, loss, fitted, batch_size=2, check=False) @ vector for kind in (HessianOperator, GaussNewtonOperator)
    ]
    np.testing.assert_allclose(*pair, atol=1e-12)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_ignored_labels_count_as_in_fit(reduction):
    model, x, _ = masked()
    # Ignored labels inside of the sequences, and behind their end.
    labels = np.array([[1, -1, 0], [-1, 1, -1], [0, 1, 1], [1, 0, -1]])
    loss = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-1, reduction=reduction, dtype="float64")
    operator = HessianOperator(model, loss, (x, labels), batch_size=3, check=False)
    assert operator.loss() == pytest.approx(float(loss(labels, model(x))), rel=1e-12)


@pytest.mark.parametrize("from_logits", [True, False])
def test_losses_of_half_precision_outputs_are_computed_in_float32(from_logits):
    keras.utils.set_random_seed(0)
    # Labels that bfloat16 would round, some to a class that does not exist, and sums of rounded probabilities.
    classes, activation = (1000, None) if from_logits else (10, "softmax")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(classes, activation, dtype="mixed_bfloat16")])
    x, y = rows(200), np.arange(800, 1000) % classes
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    operator = HessianOperator(model, loss, (x, y), check=False)
    with tf.GradientTape() as tape:
        value = loss(y, model(x))
    assert operator.loss() == pytest.approx(float(value), rel=1e-6)
    expected = cases.flat(tape.gradient(value, model.trainable_variables))
    np.testing.assert_allclose(operator.gradient(), expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.Circle(gamma=2.0, margin=0.2),
        keras.losses.Dice(),
        "tversky",
        keras.losses.CosineSimilarity(axis=0),
        keras.losses.CosineSimilarity(axis=-2),
    ],
)
def test_losses_that_couple_examples_require_a_single_batch(loss):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")])
    y = np.arange(7) % 3 if isinstance(loss, keras.losses.Circle) else np.eye(3)[np.arange(7) % 3]
    operator = HessianOperator(model, loss, (rows(), y), check=False)
    # `Circle` ignores pairs depending on the outputs.
    for factor in (1, -3):
        model.layers[-1].kernel.assign(factor * model.layers[-1].kernel)
        expected = float(keras.ops.mean(keras.losses.get(loss)(y, model(rows()))))
        assert operator.loss() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match=r"couples the examples of a batch.*data in 3 batches.*batch_size=7"):
        HessianOperator(model, loss, (rows(), y), batch_size=3)
