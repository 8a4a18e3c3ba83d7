"""Calls of `fit`, `evaluate` and `predict` whose results on several replicas are compared with those on one device.

`python -m tests.support.replicated_fits FOLDER one|mirrored|workers [NAME...]` runs them and saves weights, history and
predictions of each. Fits that raise an error on several replicas are in `REFUSED`.
"""

import contextlib
import json
import os
import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.distribute import chief_only, mirrored_strategy, multi_worker_strategy
from tests.support.fit_sources import aligned
from tests.support.fits import build, case, fit
from tests.support.layer_fits import LAYER_CASES
from tests.support.loss_fits import LOSS_CASES
from tests.support.step_fits import REFUSED, STEP_CASES, statements
from tests.support.type_fits import TYPE_CASES

RANDOM = np.random.default_rng(0)
# The last of the batches of 12 has a row for each of three replicas.
ROWS = 51
X = RANDOM.normal(size=(ROWS, 6)).astype("float32")
Y = np.tanh(X @ RANDOM.normal(size=(6, 2))).astype("float32")
WEIGHTS = RANDOM.uniform(0.5, 2, ROWS).astype("float32")
CLASSES = (np.arange(ROWS) % 2)[:, None].astype("float32")
TOKENS = RANDOM.integers(0, 9, (ROWS, 4))


def dense(units=2, **compiled):
    hidden = keras.layers.Dense(8, "tanh", kernel_regularizer="l2")
    return build((6,), hidden, keras.layers.Dense(units), **{"metrics": ["mae"], **compiled})


def embedding():
    layers = keras.layers.Embedding(9, 3), keras.layers.Flatten(), keras.layers.Dense(2)
    return build((4,), *layers, optimizer=keras.optimizers.Adam(0.05))


def several_outputs():
    a, b = keras.Input((6,), name="a"), keras.Input((4,), name="b")
    hidden = keras.layers.Concatenate()([keras.layers.Dense(5, "tanh")(a), b])
    outputs = {"u": keras.layers.Dense(2)(hidden), "v": keras.layers.Dense(1, "sigmoid")(hidden)}
    model = keras.Model({"a": a, "b": b}, outputs)
    metrics = {"u": ["mae"], "v": ["accuracy", keras.metrics.AUC(num_thresholds=20)]}
    model.compile("adam", {"u": "mse", "v": "binary_crossentropy"}, loss_weights={"u": 2.0, "v": 0.5}, metrics=metrics)
    return model


def unbuilt():
    model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


BATCHES = [[aligned(array[12 * index : 12 * index + 11]) for array in (X, Y)] for index in range(4)]


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


def plain(x=X, y=Y, **arguments):
    return case(dense, x, y, shuffle=True, **arguments)


def stream(x, **arguments):
    """Return a case of data that a function makes, since they can be read once."""
    return case(dense, x, **arguments)


def run_two_fits(model):
    return {**fit(model, X, Y, epochs=2), **{f"again_{name}": value for name, value in fit(model, X, Y).items()}}


def run_callbacks(model):
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0, restore_best_weights=True)
    folder = pathlib.Path(os.environ["REPLICATED_FITS"])
    logger = keras.callbacks.CSVLogger(folder / "log.csv")
    best = keras.callbacks.ModelCheckpoint(folder / "w.weights.h5", save_weights_only=True)
    return fit(model, X, Y, epochs=6, callbacks=[stop, *chief_only(logger, best)])


def run_evaluate(model):
    """Return an evaluation and predictions of three rows after a `fit`."""
    found = fit(model, X, Y)
    evaluated = model.evaluate(X[:3], Y[:3], batch_size=12, verbose=0)
    return {**found, "evaluated": evaluated, "predicted": model.predict(X[:3], verbose=0)}


# Functions that build the model and that run it, by name.
CASES = {
    "arrays": plain(epochs=2),
    "sample weights": plain(sample_weight=WEIGHTS),
    "class weights": case(
        lambda: dense(1, loss=keras.losses.BinaryCrossentropy(from_logits=True)),
        X,
        CLASSES,
        class_weight={0: 0.5, 1: 2.0},
    ),
    "validation split": plain(validation_split=0.0769),
    "a dataset": stream(lambda: dataset(X, Y).batch(12, drop_remainder=True)),
    "a dataset with policy DATA": stream(lambda: dataset(X, Y, policy="DATA").batch(12, drop_remainder=True)),
    "a dataset with weights": stream(lambda: dataset(X[:48], Y[:48], WEIGHTS[:48]).batch(6)),
    "a repeated dataset": stream(lambda: dataset(X[:48], Y[:48]).batch(12).repeat(), steps_per_epoch=3),
    "a generator": case(lambda: dense(metrics=None), rows, steps_per_epoch=3, epochs=4),
    "a PyDataset": stream(Rows, epochs=3, shuffle=True),
    "a generator with None": stream(lambda: rows_with_none(False), steps_per_epoch=4),
    "optional inputs": case(
        optional_input, lambda: rows_with_none(True), steps_per_epoch=3, epochs=4, validation_data=((X, None), Y)
    ),
    "several steps per execution, validation of 1 row": case(
        lambda: dense(steps_per_execution=4), X, Y, shuffle=True, validation_data=(X[:1], Y[:1])
    ),
    "steps per execution of a dataset": case(
        lambda: dense(steps_per_execution=4),
        lambda: dataset(X[:48], Y[:48]).batch(8),
        validation_data=(X[:7], Y[:7]),
    ),
    "dictionaries": case(several_outputs, {"a": X, "b": TOKENS.astype("float32")}, {"u": Y, "v": CLASSES}),
    "sparse gradients": case(embedding, TOKENS, Y),
    "an unbuilt model": case(unbuilt, X, Y),
    "eagerly": case(lambda: dense(run_eagerly=True), X, Y),
    "two calls": (dense, run_two_fits),
    "callbacks": (dense, run_callbacks),
    "evaluate": (dense, run_evaluate),
    **LOSS_CASES,
    **STEP_CASES,
    **LAYER_CASES,
    **TYPE_CASES,
}
# Cases that together need each correction of Keras and each check, for `make test`.
SHORT = {
    "mirrored": (
        "a generator",
        "optional inputs",
        "metrics: that couple, loss with __call__",
        "tokens: all",
        "added: sum, contrastive loss",
        "added: mean, compute_loss, two to one step",
        "guide: GAN, unbuilt",
        "guide: VQ-VAE",
        "guide: SAM",
        "a step",
        "step: a scalar of the part",
        "an added loss",
        "a raw variable",
        "an empty part",
        "guide: SAM, local",
    ),
    "workers": (
        "optional inputs",
        "several steps per execution, validation of 1 row",
        "callbacks",
        "types: bfloat16, uint8 labels",
        "types: float64",
        "types: predicted",
        "optimizer: loss scale, overflow, clipped",
    ),
}


def run_case(make, run, scope):
    """Return the weights of a case, and what it returns."""
    # Names of layers, which logs contain, begin without a number.
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("float32")
    with scope:
        model = make()
    results = run(model)
    # Files of NumPy do not have the type bfloat16.
    weights = [
        weight.astype("float32") if weight.dtype.name == "bfloat16" else weight for weight in model.get_weights()
    ]
    arrays = {f"weight {index}": weight for index, weight in enumerate(weights)}
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
    for name, (make, run) in CASES.items():
        if name in (names or CASES):
            print(name, flush=True)
            np.savez(folder / f"{name}.npz", **run_case(make, run, scope(name)))
    for name, ((make, run), message) in REFUSED.items():
        if chosen is not None and name in (names or REFUSED):
            print(name, flush=True)
            with pytest.raises(ValueError, match=message):
                run_case(make, run, scope(name))
    if kind == "mirrored":
        assert mirror_all_devices() is chosen
        with pytest.raises(ValueError, match="`devices` must be those of the first strategy of this process"):
            mirrored_strategy([f"CPU:{index}" for index in range(chosen.num_replicas_in_sync - 1)] + ["CPU:9"])
        check_dropout(chosen)
    if kind == "workers":
        with scope("dense"):
            model = dense()
        with pytest.raises(ValueError, match="worker 1 does not train as worker 0: epochs was"):
            fit(model, X, Y, epochs=1 + config["task"]["index"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
