"""Compiled losses in pure Keras, compared with `model.evaluate` on every backend.

`python -m tests.curvature.loss_cases OUT [PART PARTS]` writes the results of every PARTS-th case.
"""

import itertools
import json
import sys
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

ROWS, STEPS = 6, 4
LOSSES = {
    "one": "mse",
    "list": ["mse", "mae"],
    "dict": {"a": "mse", "b": "mae"},
    "first": ["mse", None],
    "partial": {"a": "mse"},
    "nested": {"c": ["mse", "mae"]},
    "two for one": ["mse", ["mae", "mse"]],
}
FORMS = ("list", "dict", "nested", "first", "array", "none")


def pack(form, first, second):
    """Return outputs, labels or weights of two outputs in a container."""
    return {
        "list": [first, second],
        "dict": {"b": second, "a": first},
        "nested": {"c": [first, second]},
        "first": [first],
        "array": first,
        "none": None,
    }[form]


def squares(y, output):
    """Return a loss for each example, which broadcasts to (N, N) if the ranks are not aligned."""
    return ops.mean(ops.square(y - output), axis=-1)


def total(y, output):
    return ops.mean(ops.square(y - output))


def by_element(y, output):
    return ops.square(y - output)


class Cubes(keras.losses.Loss):
    """A loss with a custom `call`, which receives labels of their original rank from Keras."""

    def call(self, y_true, y_pred):
        return ops.sum(ops.abs(y_pred - ops.reshape(y_true, ops.shape(y_pred))) ** 3, axis=-1)


def _random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _two_outputs(form):
    inputs = keras.Input((3,))
    first, second = keras.layers.Dense(2, name="a")(inputs), keras.layers.Dense(1, name="b")(inputs)
    return keras.Model(inputs, pack(form, first, second))


def containers():
    """Yield (name, model, compile arguments, labels, sample weights): two outputs in all containers."""
    y, plain = (_random(ROWS, 2, seed=1), _random(ROWS, 1, seed=2)), np.linspace(0.5, 2, ROWS)
    for outputs in FORMS[:3]:
        model = _two_outputs, outputs
        for (loss, given), form in itertools.product(LOSSES.items(), FORMS):
            yield f"{outputs} / {loss} / {form}", model, (given, None), pack(form, *y), None
            weights = 3.0 if form == "none" else pack(form, 0.5, 2.0)
            yield f"{outputs} / {loss} x {form}", model, (given, weights), pack(outputs, *y), None
        for form, labels in itertools.product(("none", "array", "list", "dict", "first"), {outputs, "list", "dict"}):
            name = f"{outputs} / labels {labels} / sample weights {form}"
            yield name, model, ("mse", None), pack(labels, *y), pack(form, plain, plain**2)


def _single(units, activation, policy, masked=False, steps=None):
    keras.config.set_dtype_policy(policy)
    try:
        shape = (steps, 3) if steps else (3,)
        layers = [keras.layers.Masking()] if masked else []
        # Keras cannot add a penalty in float64 to a loss in float32.
        penalty = "l2" if policy == "float32" and steps is None else None
        dense = keras.layers.Dense(units, activation=activation, kernel_regularizer=penalty, name="a")
        return keras.Sequential([keras.Input(shape), *layers, dense])
    finally:
        keras.config.set_dtype_policy("float32")


def single_outputs():
    """Yield cases of one output, with labels of all ranks and dtypes, masks, reductions and sample weights."""
    plain = np.linspace(0.5, 2, ROWS)
    reals = {"": "mse", "function": squares, "total": total, "call": Cubes(), "sum": Cubes(None, "sum")}
    for units, policy in itertools.product((1, 3), ("float32", "mixed_bfloat16", "float64")):
        y = _random(ROWS, units, seed=1)
        exact = policy == "float32"
        ranks = {"same": y, "expanded": y[..., None]} | ({"flat": y[:, 0]} if units == 1 else {})
        for (loss, given), (rank, labels), dtype in itertools.product(
            reals.items(), ranks.items(), ("float32", "float64", "int64", "bool") if exact else ("float64", "int64")
        ):
            if not exact and loss not in ("", "function"):
                continue
            cast = np.abs(labels * 2).astype(dtype)
            name = f"{units} {policy} / {loss or 'mse'} / {rank} {dtype}"
            weighted = plain if dtype == "float64" else None
            yield name, (_single, units, None, policy), (given, None), cast, weighted
    for weights in (3.0, [3.0], {"a": 3.0}, [3.0, 2.0]):
        for loss in ("mse", {"a": "mse"}, ["mse", "mae"]):
            yield f"{loss} x {weights}", (_single, 1, None, "float32"), (loss, weights), y[:, :1], None
    classes, softmax = np.arange(ROWS) % 3, (_single, 3, "softmax", "float32")
    for loss in ("crossentropy", "sparse_categorical_crossentropy", "categorical_crossentropy"):
        for labels in (classes, classes[:, None], np.eye(3)[classes], classes.astype("float64")):
            yield f"{loss} / {labels.shape} {labels.dtype}", softmax, (loss, None), labels, plain
    mask = (_single, 2, None, "float32", True, STEPS)
    y = _random(ROWS, STEPS, 2, seed=1)
    shapes = {None: None} | {
        shape: np.linspace(0.5, 2, int(np.prod(shape))).reshape(shape)
        for shape in ((ROWS,), (ROWS, 1), (ROWS, STEPS), (ROWS, STEPS, 1))
    }
    for reduction in ("sum_over_batch_size", "sum", "mean_with_sample_weight", "none"):
        for shape, given in shapes.items():
            for masked in (True, False):
                loss = keras.losses.MeanSquaredError(reduction=reduction)
                name = f"{'masked ' if masked else ''}{reduction} / weights {shape}"
                yield name, (*mask[:-2], masked, STEPS), (loss, None), y, given
    yield "masked mixed_bfloat16", (_single, 2, None, "mixed_bfloat16", True, STEPS), ("mse", None), y, None
    dice = keras.losses.Dice
    for name, loss in {"elements": by_element, "total": total, "dice": dice(), "sum": dice(reduction="sum")}.items():
        yield f"masked {name}", mask, (loss, None), y, None


class Penalised(keras.Model):
    """A model with a custom `compute_loss` and a custom metric."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="tracked")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = 0.0 if y is None else super().compute_loss(x, y, y_pred, sample_weight, training)
        for output in keras.tree.flatten(y_pred):
            loss += 0.5 * ops.mean(ops.square(output)) * ops.mean(x**2)
        self.tracker.update_state(loss)
        return loss


class WithoutTraining(keras.Model):
    def compute_loss(self, x, y, y_pred, sample_weight=None):
        del x, sample_weight
        return ops.mean(ops.square(y_pred - y) ** 2)


def _overridden(kind):
    inputs = keras.Input((3,))
    dense = keras.layers.Dense(2, "tanh", kernel_regularizer="l2", activity_regularizer="l2")
    return kind(inputs, keras.layers.Dense(2)(dense(inputs)))


def overridden():
    """Yield cases of models that override `compute_loss`."""
    y = _random(ROWS, 2, seed=1)
    yield "penalised", (_overridden, Penalised), ("mse", None), y, np.linspace(0.5, 2, ROWS)
    yield "penalised, without labels", (_overridden, Penalised), (None, None), None, None
    yield "without training", (_overridden, WithoutTraining), (None, None), y, None


def compared(make, arguments, y, sample_weight):
    """Return "agrees", "raises ...", "refuses ..." or "DIFFERS: ..." for a compiled loss on data.

    Args:
        make: a function and its arguments, which build the model.
        arguments: losses and their weights for `model.compile`.
        y, sample_weight: labels and weights of the data.
    """
    keras.utils.set_random_seed(0)
    model = make[0](*make[1:])
    masked = len(model.inputs[0].shape) == 3
    x = _random(ROWS, STEPS, 3) if masked else _random(ROWS, 3)
    if masked:
        for row in range(ROWS):
            x[row, 1 + row % STEPS :] = 0
    data = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    model.compile("sgd", arguments[0], loss_weights=arguments[1], run_eagerly=True)
    values: list[Any] = []
    # On JAX, an evaluation that fails leaves the variables without values.
    for function in (_operator_loss, _evaluate):
        try:
            values.append(function(model, data))
        except Exception as error:
            values.append(error)
    value, expected = values
    if isinstance(value, ValueError):
        return f"raises {value}" if isinstance(expected, Exception) else f"refuses {value}"
    rounding = 3e-2 if "bfloat16" in str(make) else 2e-5
    failed = isinstance(expected, Exception) or isinstance(value, Exception)
    if not failed and np.allclose(value, expected, rtol=rounding, atol=1e-6):
        return "agrees"
    return f"DIFFERS: {value!r}, Keras {expected!r}"


def _evaluate(model, data):
    x, y, weights = (*data, None, None)[:3]
    return float(np.ravel(model.evaluate(x, y, sample_weight=weights, batch_size=ROWS, verbose=0))[0])


def _operator_loss(model, data):
    from idmatters_tf.curvature import HessianOperator

    # Two batches, whose mean is the loss of one batch.
    whole = isinstance(model.loss, keras.losses.Dice) or isinstance(model, (Penalised, WithoutTraining))
    return HessianOperator(model, data=data, batch_size=ROWS if whole else ROWS // 2, check=False).loss()


def results(part=0, parts=1):
    """Return the results of `compared` for every `parts`-th case, by name."""
    cases = itertools.chain(overridden(), containers(), single_outputs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: compared(*case) for name, *case in itertools.islice(cases, part, None, parts)}


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump({"backend": keras.backend.backend(), "results": results(*map(int, sys.argv[2:]))}, out, indent=1)
