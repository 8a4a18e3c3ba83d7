"""Calls of `fit`, `evaluate` and `predict` whose results on several replicas are compared with those on one device.

`python -m tests.support.replicated_fits FOLDER one|mirrored|workers [NAME...]` runs them and saves weights, history and
predictions of each. Fits that raise an error on several replicas are in `REFUSED`.
"""

# pyright: reportArgumentType=false
import contextlib
import json
import os
import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf import scale_depth
from idmatters_tf.distribute import chief_only, mirrored_strategy, multi_worker_strategy
from idmatters_tf.layers import ResidualDense
from idmatters_tf.optimizers import Momentum, Muon
from tests.support.fit_sources import aligned
from tests.support.guide_fits import GUIDE_CASES, GUIDE_REFUSED
from tests.support.layer_fits import LAYER_CASES
from tests.support.loss_fits import LOSS_CASES, REFUSED, statements
from tests.support.type_fits import TYPE_CASES

RANDOM = np.random.default_rng(0)
# The last of the batches of 12 has a row for each of three replicas.
ROWS = 51
X = RANDOM.normal(size=(ROWS, 6)).astype("float32")
Y = np.tanh(X @ RANDOM.normal(size=(6, 2))).astype("float32")
WEIGHTS = RANDOM.uniform(0.5, 2, ROWS).astype("float32")
CLASSES = (np.arange(ROWS) % 2)[:, None].astype("float32")
TOKENS = RANDOM.integers(0, 9, (ROWS, 4))


def dense(optimizer="sgd", units=2, activation="tanh", **compiled):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, activation, kernel_regularizer="l2"), keras.layers.Dense(units)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(optimizer, compiled.pop("loss", "mse"), metrics=["mae"], **compiled)
    return model


def embedding():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(9, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def several_outputs():
    keras.utils.set_random_seed(1)
    a, b = keras.Input((6,), name="a"), keras.Input((4,), name="b")
    hidden = keras.layers.Concatenate()([keras.layers.Dense(5, "tanh")(a), b])
    outputs = {"u": keras.layers.Dense(2)(hidden), "v": keras.layers.Dense(1, "sigmoid")(hidden)}
    model = keras.Model({"a": a, "b": b}, outputs)
    metrics = {"u": ["mae"], "v": ["accuracy", keras.metrics.AUC(num_thresholds=20)]}
    model.compile("adam", {"u": "mse", "v": "binary_crossentropy"}, loss_weights={"u": 2.0, "v": 0.5}, metrics=metrics)
    return model


def normalized():
    keras.utils.set_random_seed(1)
    norm = keras.layers.BatchNormalization(synchronized=True)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), norm, keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def mixed(**clipping):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        inner = keras.optimizers.SGD(0.1, momentum=0.9, **clipping)
        return dense(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0))
    finally:
        keras.config.set_dtype_policy("float32")


def scaled():
    keras.utils.set_random_seed(1)
    blocks = [ResidualDense(8, kernel_regularizer="l2") for _ in range(3)]
    model = keras.Sequential([keras.Input((6,)), *blocks, keras.layers.Dense(2)])
    model.compile(scale_depth(model, 1, keras.optimizers.SGD(0.1, 0.9, global_clipnorm=0.5)), "mse")
    return model


def unbuilt():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


BATCHES = [[aligned(array[12 * index : 12 * index + 12]) for array in (X, Y)] for index in range(4)]


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return tuple(BATCHES[index])


def rows():
    while True:
        yield from map(tuple, BATCHES)


class Both(keras.layers.Layer):
    """Layer with an optional input."""

    def call(self, x, other=None):
        return x if other is None else x + other


def optional_input():
    keras.utils.set_random_seed(1)
    inputs = [keras.Input((6,)), keras.Input((6,), optional=True)]
    model = keras.Model(inputs, keras.layers.Dense(2)(Both()(*inputs)))
    model.compile("sgd", "mse")
    return model


def rows_with_none(nested):
    while True:
        yield from (((x, None), y) if nested else (x, y, None) for x, y in BATCHES)


def dataset(*arrays, policy=None):
    data = tf.data.Dataset.from_tensor_slices(arrays)
    if policy is not None:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
        data = data.with_options(options)
    return data


def fit(model, x=X, y=Y, **arguments):
    """Return the history of two epochs."""
    arguments = {"epochs": 2, "verbose": 0, "batch_size": 12 if y is not None else None, **arguments}
    return model.fit(x, y, **arguments).history


def plain(x=X, **arguments):
    """Return a case; functions make data that can be read once."""
    return dense, lambda model: fit(model, x() if callable(x) else x, **arguments)


def with_optimizer(make, **compiled):
    return lambda: dense(make(), **compiled), fit


def run_two_fits(model):
    return {**fit(model), **{f"again_{name}": value for name, value in fit(model, shuffle=False).items()}}


def run_callbacks(model):
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0, restore_best_weights=True)
    folder = pathlib.Path(os.environ["REPLICATED_FITS"])
    logger, best = (
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.ModelCheckpoint(folder / "w.weights.h5", save_weights_only=True),
    )
    return fit(model, epochs=6, callbacks=[stop, *chief_only(logger, best)])


def run_48_rows(batch_size):
    return lambda model: fit(model, X[:48], Y[:48], batch_size=batch_size, shuffle=False)


def run_evaluate(model):
    """Return an evaluation and predictions of three rows after a `fit`."""
    fit(model)
    result = model.evaluate(X[:3], Y[:3], batch_size=12, verbose=0, return_dict=True)
    return {**{name: [value] for name, value in result.items()}, "predicted": model.predict(X[:3], verbose=0)}


# Functions that build the model and that run it, by name.
CASES = {
    "arrays": plain(),
    "sample weights": plain(sample_weight=WEIGHTS),
    "class weights": (
        lambda: dense(units=1, loss=keras.losses.BinaryCrossentropy(from_logits=True)),
        lambda model: fit(model, y=CLASSES, class_weight={0: 0.5, 1: 2.0}),
    ),
    "validation split": plain(validation_split=0.0769),
    "validation of 1 row": plain(validation_data=(X[:1], Y[:1])),
    "a dataset": plain(x=lambda: dataset(X, Y).batch(12, drop_remainder=True), y=None),
    "a dataset with policy DATA": plain(x=lambda: dataset(X, Y, policy="DATA").batch(12, drop_remainder=True), y=None),
    "a dataset with weights": plain(x=lambda: dataset(X[:48], Y[:48], WEIGHTS[:48]).batch(6), y=None),
    "a repeated dataset": plain(x=lambda: dataset(X[:48], Y[:48]).batch(12).repeat(), y=None, steps_per_epoch=3),
    "a generator": plain(x=lambda: rows(), y=None, steps_per_epoch=3, epochs=4),
    "a PyDataset": plain(x=Rows, y=None, epochs=3),
    "a generator with None": plain(x=lambda: rows_with_none(False), y=None, steps_per_epoch=4),
    "optional inputs": (
        optional_input,
        lambda model: fit(model, rows_with_none(True), None, steps_per_epoch=4, validation_data=((X, None), Y)),
    ),
    "two steps per execution": (lambda: dense(steps_per_execution=4), fit),
    "steps per execution of a dataset": (
        lambda: dense(steps_per_execution=4),
        lambda model: fit(model, dataset(X[:48], Y[:48]).batch(8), None, validation_data=(X[:7], Y[:7])),
    ),
    "dictionaries": (
        several_outputs,
        lambda model: fit(model, {"a": X, "b": TOKENS.astype("float32")}, {"u": Y, "v": CLASSES}),
    ),
    "sparse gradients": (embedding, lambda model: fit(model, TOKENS)),
    "momentum": with_optimizer(lambda: Momentum(0.05, 0.9, nesterov=True)),
    "Muon": with_optimizer(lambda: Muon(0.05)),
    "Muon and AdamW": with_optimizer(lambda: Muon(0.02, norm="free", other="adamw", weight_decay=0.01)),
    "averages of weights": with_optimizer(lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)),
    "a schedule": with_optimizer(
        lambda: keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.02, 8), weight_decay=0.1)
    ),
    "clipped global norm": with_optimizer(lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05)),
    "clipped values": with_optimizer(lambda: keras.optimizers.Adam(0.1, clipvalue=0.01)),
    "clipped Muon": with_optimizer(lambda: Muon(0.05, norm="free", global_clipnorm=0.05)),
    "mixed precision, clipped": (lambda: mixed(global_clipnorm=0.05), fit),
    "scaled branches": (scaled, fit),
    "batch normalization": (normalized, fit),
    "an unbuilt model": (unbuilt, fit),
    "eagerly": (lambda: dense(run_eagerly=True), fit),
    "two calls": (dense, run_two_fits),
    "callbacks": (dense, run_callbacks),
    "evaluate": (dense, run_evaluate),
    "accumulated steps": (
        lambda: dense(keras.optimizers.SGD(0.2, momentum=0.5, gradient_accumulation_steps=2)),
        run_48_rows(12),
    ),
    "one large batch": (lambda: dense(keras.optimizers.SGD(0.2, momentum=0.5)), run_48_rows(24)),
    **LOSS_CASES,
    **LAYER_CASES,
    **GUIDE_CASES,
    **TYPE_CASES,
}


def run_case(name, scope):
    """Return the weights and the history of a case by name."""
    build, run = CASES[name]
    with scope():
        model = build()
    results = run(model)
    arrays = {f"weight {index}": np.asarray(weight) for index, weight in enumerate(model.get_weights())}
    arrays |= {f"history {key}": np.asarray(value) for key, value in results.items()}
    if getattr(model.optimizer, "use_ema", False):
        arrays["averages"] = np.concatenate([np.ravel(v) for v in model.optimizer._model_variables_moving_average])
    return arrays


def draw_masks(strategy):
    """Return the dropout masks of two steps on each replica."""
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=3)
    step = tf.function(lambda: strategy.run(lambda: layer(tf.ones((4, 50)), training=True)))
    return [[np.array(part) for part in strategy.experimental_local_results(step())] for _ in range(2)]


def check_dropout(strategy):
    """Check that masks are functions of seed, step and replica, and those of the first replica those of one device."""
    masks = draw_masks(strategy)
    np.testing.assert_array_equal(masks, draw_masks(strategy))
    np.testing.assert_array_equal([step[:1] for step in masks], draw_masks(tf.distribute.get_strategy()))
    several = [mask for step in masks for mask in step]
    for number, mask in enumerate(several):
        assert 0.3 < (mask == 0).mean() < 0.7
        assert all(0.3 < (mask != other).mean() < 0.7 for other in several[:number])


def check_rows_with_none(strategy):
    """Check that a `PyDataset` may return None, which Keras refuses on one device."""

    class RowsWithNone(Rows):
        def __getitem__(self, index):
            return (*super().__getitem__(index), None)

    histories = []
    for data in (Rows(), RowsWithNone()):
        with strategy.scope():
            model = dense()
        histories.append(fit(model, data, None))
    assert histories[0] == histories[1]


def mirror_all_devices(**given):
    devices = tf.config.list_logical_devices("CPU")
    return mirrored_strategy([device.name.removeprefix("/device:") for device in devices], **given)


def main(argv):
    folder, kind, *names = argv
    strategies = {"one": lambda: None, "mirrored": mirror_all_devices, "workers": multi_worker_strategy}
    chosen = strategies[kind]()

    def scope(name):
        # The strategy is the same, with other statements about models.
        return contextlib.nullcontext() if chosen is None else strategies[kind](**statements(name)).scope()

    # Optimization of the graphs takes longer than these fits.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    config = json.loads(os.environ.get("TF_CONFIG") or '{"task": {"index": 0}}')
    folder = pathlib.Path(folder, f"{kind} {config['task']['index']}")
    os.environ["REPLICATED_FITS"] = str(folder)
    folder.mkdir(parents=True)
    for number, name in enumerate(CASES):
        if names and name not in names:
            continue
        print(name, flush=True)
        np.savez(folder / f"{number}.npz", **run_case(name, lambda name=name: scope(name)))
    for name, (build, run, message) in {**REFUSED, **GUIDE_REFUSED}.items():
        if chosen is None or (names and name not in names):
            continue
        print(name, flush=True)
        with scope(name):
            model = build()
        with pytest.raises(ValueError, match=message):
            run(model)
    if kind == "mirrored":
        assert mirror_all_devices() is chosen
        with pytest.raises(ValueError, match="`devices` must be those of the first strategy of this process"):
            mirrored_strategy([f"CPU:{index}" for index in range(chosen.num_replicas_in_sync - 1)] + ["CPU:9"])
        check_dropout(chosen)
        check_rows_with_none(chosen)
    if kind == "workers":
        with scope("dense"):
            model = dense()
        with pytest.raises(ValueError, match="worker 1 does not train as worker 0: epochs was"):
            fit(model, epochs=1 + config["task"]["index"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
