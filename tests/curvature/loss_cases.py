"""Compiled losses in pure Keras, compared with `model.evaluate` on every backend.

`python -m tests.curvature.loss_cases OUT` writes the results of all cases.
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
# Cases that Keras, or the operators, cannot compute.
ERRORS = {f"masked {name} / weights (6,)" for name in ("sum_over_batch_size", "sum", "mean_with_sample_weight")}
ERRORS |= {f"masked none / weights {shape}" for shape in (None, "(6,)", "(6, 1)", "(6, 4)")}
ERRORS |= {"masked elements", "masked dice, sum"}
PLAIN = np.linspace(0.5, 2, ROWS)


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


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


FORMS = {
    "list": lambda first, second: [first, second],
    "dict": lambda first, second: {"b": second, "a": first},
    "nested": lambda first, second: {"c": [first, second]},
}


def two_outputs(form):
    inputs = keras.Input((3,))
    first, second = keras.layers.Dense(2, name="a")(inputs), keras.layers.Dense(1, name="b")(inputs)
    return keras.Model(inputs, FORMS[form](first, second))


def containers():
    """Yield (name, model, compile arguments, labels, sample weights): two outputs, whose losses Keras assigns."""
    labels = random(ROWS, 2, seed=1), random(ROWS, 1, seed=2)
    for form, pack in FORMS.items():
        for name, losses, weights, given in (
            ("losses", pack("mse", "mae"), pack(0.5, 2.0), None),
            ("sample weights", pack("mse", "mae"), None, pack(PLAIN, PLAIN**2)),
            ("common sample weights", "mse", None, PLAIN),
            ("first", pack("mse", None), None, None),
            ("zero", pack("mse", "mae"), pack(0.0, 2.0), None),
        ):
            yield f"{form}, {name}", (two_outputs, form), (losses, weights), pack(*labels), given
    yield "two for one", (two_outputs, "list"), (["mse", ["mae", "mse"]], None), list(labels), None
    yield "wrong weights", (two_outputs, "list"), ("mse", [1.0]), list(labels), None


def single(units, activation=None, policy="float32", masked=False, steps=None):
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
    y, dtypes = np.abs(random(ROWS, 1, seed=1)), itertools.cycle(("float32", "float64", "int64", "bool"))
    ranks = {"same": y, "expanded": y[..., None], "flat": y[:, 0]}
    for (rank, labels), loss in itertools.product(ranks.items(), ("mse", squares, total, Cubes(), Cubes(None, "sum"))):
        name = getattr(loss, "__name__", str(loss))
        yield f"{name} / {rank}", (single, 1), (loss, None), (2 * labels).astype(next(dtypes)), None
    for policy, loss in itertools.product(("mixed_bfloat16", "float64"), ("mse", squares)):
        yield f"{policy} / {loss}", (single, 3, None, policy), (loss, None), random(ROWS, 3, seed=1), PLAIN
    for loss, weights in (("mse", 3.0), (["mse", "mae"], [3.0, 2.0])):
        yield f"{loss} x {weights}", (single, 1), (loss, weights), y, None
    classes, softmax = np.arange(ROWS) % 3, (single, 3, "softmax")
    for labels in (classes, classes[:, None], classes.astype("float64")):
        yield (
            f"sparse / {labels.shape} {labels.dtype}",
            softmax,
            ("sparse_categorical_crossentropy", None),
            labels,
            PLAIN,
        )
    yield "one-hot", softmax, ("categorical_crossentropy", None), np.eye(3)[classes], PLAIN
    mask, y = (single, 2, None, "float32", True, STEPS), random(ROWS, STEPS, 2, seed=1)
    for reduction, shape in itertools.product(
        ("sum_over_batch_size", "sum", "mean_with_sample_weight", "none"), (None, (ROWS,), (ROWS, 1), (ROWS, STEPS))
    ):
        given = None if shape is None else np.linspace(0.5, 2, int(np.prod(shape))).reshape(shape)
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        yield f"masked {reduction} / weights {shape}", mask, (loss, None), y, given
    yield "masked mixed_bfloat16", (single, 2, None, "mixed_bfloat16", True, STEPS), ("mse", None), y, None
    dice = keras.losses.Dice
    for name, loss in {
        "elements": by_element,
        "total": total,
        "dice": dice(),
        "dice, sum": dice(reduction="sum"),
    }.items():
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


def overridden(kind):
    inputs = keras.Input((3,))
    dense = keras.layers.Dense(2, "tanh", kernel_regularizer="l2", activity_regularizer="l2")
    return kind(inputs, keras.layers.Dense(2)(dense(inputs)))


def overriding_models():
    """Yield cases of models that override `compute_loss`."""
    y = random(ROWS, 2, seed=1)
    yield "penalised", (overridden, Penalised), ("mse", None), y, PLAIN
    yield "penalised, without labels", (overridden, Penalised), (None, None), None, None
    yield "without training", (overridden, WithoutTraining), (None, None), y, None


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
    x = random(ROWS, STEPS, 3) if masked else random(ROWS, 3)
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
    cases = itertools.chain(overriding_models(), containers(), single_outputs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: compared(*case) for name, *case in itertools.islice(cases, part, None, parts)}


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump({"backend": keras.backend.backend(), "results": results()}, out, indent=1)
