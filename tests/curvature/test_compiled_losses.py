"""Compiled losses compared with Keras: names, weights, ranks, `compute_loss`, and data that cannot be used."""

import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from idmatters_tf.curvature import FisherOperator, GaussNewtonOperator, HessianOperator
from idmatters_tf.curvature._losses import Term
from tests.conftest import ROOT
from tests.support import curvature_cases as cases
from tests.support import loss_cases
from tests.support.loss_cases import Penalised, WithoutTraining

ROWS = 7


def rows(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(ROWS, *shape))


def two_outputs():
    """Return a model with two outputs of equal shape, which accepts labels in either order."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, activation="tanh")(inputs)
    return keras.Model(inputs, [keras.layers.Dense(2, name=name)(hidden) for name in "ba"])


def one_output(units=1):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(units, name="a")(hidden))


def evaluated(model, *data):
    return float(np.ravel(model.evaluate(*data[:2], sample_weight=dict(enumerate(data)).get(2), verbose=0))[0])


def wrong(results):
    return {name: found for name, found in results.items() if not found.startswith(("agrees", "raises", "refuses"))}


def test_compiled_losses_equal_evaluate(slow):
    results = loss_cases.results(3, 1 if slow else 61)
    assert not wrong(results)
    assert sum(found == "agrees" for found in results.values()) > 0.3 * len(results)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_compiled_losses_on_jax_equal_evaluate(tmp_path):
    command = [sys.executable, "-m", "tests.support.loss_cases", str(tmp_path / "results.json"), "0", "1"]
    env = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["backend"] == "jax"
    assert not wrong(found["results"])
    assert sum(one == "agrees" for one in found["results"].values()) > 0.3 * len(found["results"])


@pytest.mark.parametrize(
    ("make", "loss", "weights"),
    [
        (two_outputs, {"b": "mae", "a": "mse"}, [3.0, 0.5]),
        (two_outputs, ["mae", "mse"], {"a": 3.0, "b": 0.5}),
        (two_outputs, "mse", None),
        (one_output, "mse", [3.0]),
        (one_output, ["mse", "mae"], None),
    ],
)
def test_losses_and_weights_in_other_containers(make, loss, weights):
    model, x = make(), rows(4)
    # Labels in a dict belong to outputs in a list by name.
    y = {"a": rows(2, seed=1), "b": 3 * rows(2, seed=2)} if make is two_outputs else rows(1, seed=1)
    model.compile("sgd", loss, loss_weights=weights)
    operator = HessianOperator(model, data=(x, y), batch_size=3, check=False)
    assert operator.loss() == pytest.approx(evaluated(model, x, y), rel=1e-5)
    if weights is None:
        assert HessianOperator(model, loss, (x, y), check=False).loss() == pytest.approx(operator.loss())
    elif make is two_outputs:
        gauss_newton = GaussNewtonOperator(model, data=(x, y), batch_size=3, check=False)
        assert np.isfinite(gauss_newton @ np.ones(operator.shape[0])).all()


def test_a_dict_of_outputs_and_of_sample_weights():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"a": keras.layers.Dense(2)(inputs), "b": keras.layers.Dense(1)(inputs)})
    model.compile("sgd", {"a": "mse", "b": "mae"})
    x, y = rows(4), {"a": rows(2, seed=1), "b": rows(1, seed=2)}
    weights = {"a": np.linspace(0.5, 2, ROWS), "b": np.linspace(1, 3, ROWS)}
    operator = HessianOperator(model, data=[(x, y, weights)], check=False)
    assert operator.loss() == pytest.approx(evaluated(model, x, y, weights), rel=1e-5)
    with pytest.raises(
        ValueError, match=r"Keras cannot compute the loss .*\('c',\) in the `loss` argument, can't be found"
    ):
        HessianOperator(model, {"c": "mse"}, (x, y))
    with pytest.raises(ValueError, match="`loss` is required: the model .* was not compiled with a loss"):
        HessianOperator(two_outputs(), data=(x, y))


def test_two_weights_of_one_loss_are_refused():
    model = one_output()
    model.compile("sgd", "mse", loss_weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="`loss_weights` must match the number of losses, got 1 losses and 2 weights"):
        HessianOperator(model, data=(rows(4), rows(1)))


@pytest.mark.parametrize(("dtype", "compiled"), [("int64", True), ("float64", False)])
def test_labels_of_a_function_are_cast_and_aligned_as_in_fit(dtype, compiled):
    model, x, y = one_output(), rows(4).astype("float32"), (3 * rows(seed=1)).astype(dtype)
    model.compile("sgd", loss_cases.squares)
    operator = HessianOperator(model, None if compiled else loss_cases.squares, (x, y), batch_size=3, check=False)
    assert operator.loss() == pytest.approx(evaluated(model, x, y), rel=1e-5)
    with tf.GradientTape() as tape:
        value = tf.reduce_mean((tf.constant(y[:, None].astype("float32")) - model(x)) ** 2)
    gradient = cases.flat(tape.gradient(value, [variable.value for variable in model.trainable_variables]))
    np.testing.assert_allclose(operator.gradient(), gradient, atol=1e-5)


@pytest.mark.parametrize("kind", [Penalised, WithoutTraining])
def test_an_overridden_compute_loss_is_used(kind):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    dense = keras.layers.Dense(2, kernel_regularizer="l2")
    model, x, y = kind(inputs, dense(keras.layers.Dense(3, "tanh")(inputs))), rows(4), rows(2, seed=1)
    model.compile("sgd", "mse" if kind is Penalised else None)
    with_weights = (x, y, np.linspace(0.5, 2, ROWS)) if kind is Penalised else (x, y)
    operator = HessianOperator(model, data=with_weights, check=False)
    assert operator.loss() == pytest.approx(evaluated(model, *with_weights), rel=1e-5)
    # In batches: the mean weighted by the number of examples, as in `evaluate`.
    x32, y32 = x.astype("float32"), y.astype("float32")
    parts = [float(model.compute_loss(x32[a:b], y32[a:b], model(x32[a:b]))) for a, b in ((0, 3), (3, 6), (6, 7))]
    before = [np.array(variable) for variable in model.metrics_variables]
    in_batches = HessianOperator(model, data=(x, y), batch_size=3)
    for old, variable in zip(before, model.metrics_variables, strict=True):
        np.testing.assert_array_equal(old, np.array(variable))
    assert in_batches.loss() == pytest.approx(np.average(parts, weights=[3, 3, 1]), rel=1e-5)
    # The check compares H v with differences of the gradient.
    assert in_batches.difference.status == "agrees"
    assert repr(operator).endswith(f"loss compute_loss of {model.name!r}>")
    assert HessianOperator(model, "mse", (x, y), check=False).loss() != pytest.approx(operator.loss(), rel=1e-2)
    for other in (GaussNewtonOperator, FisherOperator):
        with pytest.raises(
            ValueError, match="requires a loss of the outputs.*Received: a `compute_loss` that the model"
        ):
            other(model, data=(x, y))
    with pytest.raises(ValueError, match="`regularization` must be True for a model that overrides `compute_loss`"):
        HessianOperator(model, data=(x, y), regularization=False)


def test_the_check_compares_with_the_value_by_keras(monkeypatch):
    model = one_output()
    model.compile("sgd", "mse")
    monkeypatch.setattr(Term, "reduction", "sum")
    with pytest.raises(ValueError, match=r"on the first batch is \S+ here and \S+ in Keras"):
        HessianOperator(model, data=(rows(4), rows(1)))


X, Y = rows(4).astype("float32"), rows(2, seed=1).astype("float32")
SPARSE = tf.sparse.from_dense(X)
VECTORS = tf.data.Dataset.from_tensor_slices((X, Y))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([X, Y], "`data` must be a tuple of arrays.*Received: a list of 2 arrays"),
        ([X, X], "Received: batches without labels. Pass arrays as a tuple"),
        ((VECTORS.batch(3),), r"`data`, if a tuple, must contain arrays.*Received: \w*Dataset. Pass a data set"),
        ((X, list(Y[:, 0])), "if a tuple, must contain arrays.*np.asarray"),
        (VECTORS, "must contain batches. Received: single examples. Use data.batch"),
        (tf.data.Dataset.from_tensor_slices((X, X)), "Received: single examples"),
        (tf.data.Dataset.from_tensor_slices((X[:, :, None], Y[:, 0])), "Received: single examples"),
        (tf.data.Dataset.from_tensor_slices((X[:, 0], Y[:, 0])), "Received: single examples"),
        ((SPARSE, Y), "must contain dense tensors. Received: a sparse tensor"),
        ((scipy.sparse.csr_matrix(X), Y), "must contain dense tensors. Received: a sparse tensor"),
        ([(SPARSE, Y)], "must contain dense tensors. Received: a sparse tensor"),
        ((tf.ragged.constant([[1.0], [1.0, 2.0]]), Y[:2]), "must contain dense tensors. Received: a ragged tensor"),
        ([(X[:2], tf.ragged.constant([[1.0], [1.0, 2.0]]))], "must contain dense tensors. Received: a ragged tensor"),
        ((np.array([X[0], X[1, :2]], dtype=object), Y[:2]), "Received: a ragged tensor"),
    ],
)
def test_data_that_cannot_be_used(data, message):
    with pytest.raises(ValueError, match=message):
        HessianOperator(one_output(2), "mse", data)


def test_labels_for_one_of_two_outputs():
    model = two_outputs()
    model.compile("sgd", ["mse", "mse"])
    for labels in ([Y], Y, {"a": Y}, None, {"a": Y, "c": Y}):
        message = "without labels" if labels is None else "Keras cannot compute the loss .* Received: outputs .* labels"
        with pytest.raises(ValueError, match=message):
            HessianOperator(model, data=[(X, labels)])
    model.compile("sgd", ["mse", None])
    operator = HessianOperator(model, data=[(X, [Y])], check=False)
    assert operator.loss() == pytest.approx(evaluated(model, X, [Y]), rel=1e-5)
