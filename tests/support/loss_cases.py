"""Compiled losses in pure Keras, each compared with `model.evaluate`, so that every backend can run them.

As a program: `python -m tests.support.loss_cases OUT [PART PARTS]` writes the results of every PARTS-th case.
"""

import itertools
import json
import sys
import warnings

import keras
import numpy as np
from keras import ops

ROWS, STEPS = 6, 4
OUTPUTS = ("list", "tuple", "dict", "nested")
LOSSES = {
    "one": "mse",
    "list": ["mse", "mae"],
    "tuple": ("mse", "mae"),
    "dict": {"a": "mse", "b": "mae"},
    "reversed": {"b": "mae", "a": "mse"},
    "first": ["mse", None],
    "partial": {"a": "mse"},
    "with None": {"a": None, "b": "mae"},
    "nested": {"c": ["mse", "mae"]},
    "two for one": ["mse", ["mae", "mse"]],
}
WEIGHTS = {
    "list": [0.5, 2.0],
    "tuple": (0.5, 2.0),
    "dict": {"a": 0.5, "b": 2.0},
    "reversed": {"b": 2.0, "a": 0.5},
    "nested": {"c": [0.5, 2.0]},
    "zero": [0.0, 1.0],
    "short": [0.5],
    "number": 3.0,
}
LABELS = ("list", "tuple", "dict", "reversed", "nested", "first", "array", "none")


def squares(y, output):
    """Broadcast to (N, N) where ranks are not aligned."""
    return ops.mean(ops.square(y - output), axis=-1)


def total(y, output):
    return ops.mean(ops.square(y - output))


def by_element(y, output):
    return ops.square(y - output)


class Cubes(keras.losses.Loss):
    """A loss with its own `call`, which Keras gives labels of their own rank."""

    def call(self, y_true, y_pred):
        return ops.sum(ops.abs(y_pred - ops.reshape(y_true, ops.shape(y_pred))) ** 3, axis=-1)


class Reduced(keras.losses.Loss):
    """A loss that weighs and reduces by itself."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        values = ops.sum(ops.square(y_pred - ops.reshape(y_true, ops.shape(y_pred))), axis=-1)
        return 3 * ops.mean(values if sample_weight is None else values * ops.reshape(sample_weight, (-1,)))


def _random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _two_outputs(outputs):
    inputs = keras.Input((3,))
    first, second = keras.layers.Dense(2, name="a")(inputs), keras.layers.Dense(1, name="b")(inputs)
    structure = {
        "list": [first, second],
        "tuple": (first, second),
        "dict": {"b": second, "a": first},
        "nested": {"c": [first, second]},
    }
    return keras.Model(inputs, structure[outputs])


def _labels(form):
    first, second = _random(ROWS, 2, seed=1), _random(ROWS, 1, seed=2)
    return {
        "list": [first, second],
        "tuple": (first, second),
        "dict": {"a": first, "b": second},
        "reversed": {"b": second, "a": first},
        "nested": {"c": [first, second]},
        "first": [first],
        "array": first,
        "none": None,
    }[form]


def containers():
    """Yield (name, model, compile arguments, labels, sample weights): two outputs in all containers."""
    plain = np.linspace(0.5, 2, ROWS)
    by_output = {
        "none": None,
        "array": plain,
        "column": plain[:, None],
        "list": [plain, plain**2],
        "dict": {"b": plain**2, "a": plain},
        "of one": [plain],
    }
    for outputs in OUTPUTS:
        for loss, labels in itertools.product(LOSSES, LABELS):
            if outputs == "tuple" and "tuple" not in (loss, labels):
                continue
            yield f"{outputs} / {loss} / {labels}", (_two_outputs, outputs), (LOSSES[loss], None), _labels(labels), None
        own = {"list": "list", "tuple": "tuple", "dict": "reversed", "nested": "nested"}[outputs]
        for loss, weights in itertools.product(LOSSES, WEIGHTS):
            if outputs == "tuple" and "tuple" not in (loss, weights):
                continue
            arguments = LOSSES[loss], WEIGHTS[weights]
            yield f"{outputs} / {loss} x {weights}", (_two_outputs, outputs), arguments, _labels(own), None
        for (weights, given), labels in itertools.product(by_output.items(), {own, "list", "dict"}):
            name = f"{outputs} / labels {labels} / sample weights {weights}"
            yield name, (_two_outputs, outputs), ("mse", None), _labels(labels), given


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
    """Yield the same: one output, with labels of all ranks and dtypes, masks, reductions and sample weights."""
    plain = np.linspace(0.5, 2, ROWS)
    reals = {
        "": "mse",
        "function": squares,
        "total": total,
        "call": Cubes(),
        "own": Reduced(),
        "sum": Cubes(None, "sum"),
    }
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
    for weights in (3.0, [3.0], {"a": 3.0}, [3.0, 2.0], 2):
        for loss in ("mse", ["mse"], {"a": "mse"}, ["mse", "mae"]):
            yield f"{loss} x {weights}", (_single, 1, None, "float32"), (loss, weights), y[:, :1], None
    classes, softmax = np.arange(ROWS) % 3, (_single, 3, "softmax", "float32")
    for loss in ("crossentropy", "sparse_categorical_crossentropy", "categorical_crossentropy"):
        for labels in (
            classes,
            classes[:, None],
            np.eye(3)[classes],
            classes.astype("float64"),
            classes.astype("uint8"),
        ):
            yield f"{loss} / {labels.shape} {labels.dtype}", softmax, (loss, None), labels, plain
    mask = (_single, 2, None, "float32", True, STEPS)
    y = _random(ROWS, STEPS, 2, seed=1)
    shapes = {None: None} | {
        shape: np.linspace(0.5, 2, int(np.prod(shape))).reshape(shape)
        for shape in ((ROWS,), (ROWS, 1), (ROWS, STEPS), (ROWS, STEPS, 1))
    }
    for reduction in ("sum_over_batch_size", "sum", "mean_with_sample_weight", "none", "mean"):
        for shape, given in shapes.items():
            for masked in (True, False):
                loss = keras.losses.MeanSquaredError(reduction=reduction)
                name = f"{'masked ' if masked else ''}{reduction} / weights {shape}"
                yield name, (*mask[:-2], masked, STEPS), (loss, None), y, given
    dice = keras.losses.Dice
    for name, loss in {"elements": by_element, "total": total, "dice": dice(), "sum": dice(reduction="sum")}.items():
        yield f"masked {name}", mask, (loss, None), y, None


def compared(make, arguments, y, sample_weight):
    """Return "agrees", "raises ..." or "DIFFERS: ..." for a compiled loss on data in batches of two sizes."""
    from idmatters_tf.curvature import GaussNewtonOperator
    from idmatters_tf.curvature.checks import check_value

    keras.utils.set_random_seed(0)
    model = make[0](*make[1:])
    masked = len(model.inputs[0].shape) == 3
    x = _random(ROWS, STEPS, 3) if masked else _random(ROWS, 3)
    if masked:
        for row in range(ROWS):
            x[row, 1 + row % STEPS :] = 0
    loss, weights = arguments
    try:
        model.compile("sgd", loss, loss_weights=weights, run_eagerly=True)
        kwargs = {"sample_weight": sample_weight, "batch_size": ROWS, "verbose": 0}
        expected = float(np.ravel(model.evaluate(x, y, **kwargs))[0])
    except Exception as error:
        expected = f"{type(error).__name__}: {error}"
    data = (x, y) if sample_weight is None else (x, y, sample_weight)
    try:
        # In two batches, which gives the loss of one.
        size = ROWS if isinstance(loss, keras.losses.Dice) else ROWS // 2
        operator = GaussNewtonOperator(model, data=data, batch_size=size, check=False)
        batch = next(iter(operator._objective.batches))
        check_value(operator._products, batch, operator._products.outputs(batch))
        value = operator.loss()
    except ValueError as error:
        return f"raises {error}" if isinstance(expected, str) else f"refuses {error}"
    except Exception as error:
        return f"DIFFERS: {type(error).__name__}: {error}, Keras {expected}"
    if isinstance(expected, str):
        return f"DIFFERS: {value}, Keras raises {expected}"
    rounding = 3e-2 if "bfloat16" in str(make) else 2e-5
    agrees = np.allclose(value, expected, rtol=rounding, atol=1e-6)
    return "agrees" if agrees else f"DIFFERS: {value}, Keras {expected}"


def results(part=0, parts=1):
    """Return the results of `compared` by name, of every `parts`-th case."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, (name, *case) in enumerate(itertools.chain(containers(), single_outputs())):
            assert name not in found, name
            if place % parts == part:
                found[name] = compared(*case)
    return found


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump({"backend": keras.backend.backend(), "results": results(*map(int, sys.argv[2:]))}, out, indent=1)
