"""Errors of `ExactResume` for state that cannot be restored, and for checkpoints of another run."""

import contextlib
import functools
import re
import types
from typing import Any

import keras
import numpy as np
import pytest
import scipy.sparse

from idmatters_tf.callbacks import ArrayBatches, ExactResume, FunctionBatches, _encoding
from idmatters_tf.checkpointing import list_steps
from idmatters_tf.optimizers import Muon
from tests.callbacks.test_configuration import Subclassed, functional
from tests.callbacks.test_exact_resume import TwoOptimizers
from tests.callbacks.test_reached import Stores

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def arrays(rows=8, **options):
    return ArrayBatches(X[:rows], Y[:rows], **{"batch_size": 2, "seed": 0, **options})


class Own(keras.Sequential):
    """Model with attributes of several kinds."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._alpha, self.options, self.seen = 1.0, {"rates": [0.1]}, None

    def call(self, *arguments, **options):
        self.seen = super().call(*arguments, **options)
        return self.seen


def network(*layers, **options):
    return Own([keras.Input((3,)), *layers, keras.layers.Dense(**{"units": 1, **options})])


RESUME = {"every": 1, "keep": 2, "seed": 0, "ignore": (), "identity": None, "replay": False, "pause_on": None}
COMPILE = {"optimizer": "sgd", "loss": "mse", "run_eagerly": True, "metrics": None, "weighted_metrics": None}


def fit(folder, *callbacks, data=arrays, model=network, verbose=0, **options):
    """Train a new model. Functions return a new model and data."""
    keras.utils.set_random_seed(0)
    made = model()
    made.compile(**{name: options.pop(name, default) for name, default in COMPILE.items()})
    resume = ExactResume(folder, **{name: options.pop(name, default) for name, default in RESUME.items()})
    callbacks = [resume, *callbacks, *options.pop("callbacks", ())]
    data = data() if isinstance(data, (type, types.FunctionType)) else data
    return made.fit(data, callbacks=callbacks, verbose=verbose, **options)


def generator():
    while True:
        yield X, Y


class Changing(keras.utils.PyDataset):
    """Dataset that draws a number in each `on_epoch_end` except the one before training."""

    num_batches: int | None = 4

    def __init__(self, seed=0, **attributes):
        super().__init__()
        self.rng, self.ended, self.shift = np.random.default_rng(seed), 0, 0.0
        vars(self).update(attributes)

    def __getitem__(self, index):
        return X[2 * index : 2 * index + 2] + self.shift, Y[2 * index : 2 * index + 2]

    def on_epoch_end(self):
        self.ended += 1
        if self.ended > 1:
            self.shift = self.rng.normal()


class Noisy(Changing):
    def __getitem__(self, index):
        return self.rng.normal(size=(2, 3)), Y[:2]


class Equal(keras.utils.PyDataset):
    """Dataset of equal batches."""

    def __init__(self, length=4):
        super().__init__()
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return X[:2], Y[:2]


def pipeline(*, shuffles=None, **options):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return data.batch(2) if shuffles is None else data.shuffle(shuffles, **options).batch(2).prefetch(2)


class NotPlain(keras.callbacks.Callback):
    def get_state(self):
        return {"losses": lambda: 1}

    def set_state(self, state):
        pass


class Probe(keras.callbacks.Callback):
    """Callback with a compiled model whose metrics are not built."""

    def __init__(self):
        super().__init__()
        self.probe = network()
        self.probe.compile("sgd", "mse", metrics=["mae"])

    def on_train_batch_end(self, batch, logs=None):
        self.probe.fit(X, Y, verbose=0)


class Scaled(keras.losses.Loss):
    """Loss with an attribute that is not in its configuration."""

    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def call(self, y_true, y_pred):
        return self.factor * keras.ops.mean((y_true - y_pred) ** 2, -1)


def storing():
    model = network(Stores())
    model.layers[0].shapes.clear()
    return model


GLOBAL = {}


class InTensorFlow(keras.layers.Layer):
    """Layer whose state is not Keras'."""

    def __init__(self, kind):
        import tensorflow as tf

        super().__init__()
        self.kind = kind
        if GLOBAL.get("count") is None:
            GLOBAL["count"] = tf.Variable(0.0, name="my_count")

    def call(self, x):
        import tensorflow as tf

        if self.kind == "random":
            return x + tf.random.normal(tf.shape(x))
        GLOBAL["count"].assign_add(1.0)
        return x * GLOBAL["count"]


class OwnAdam(keras.optimizers.AdamW):
    """Optimizer with an attribute that each step sets."""

    def update_step(self, gradient, variable, learning_rate):
        self.rate = learning_rate
        super().update_step(gradient, variable, learning_rate)


def interrupt(*_):
    raise KeyboardInterrupt


def decay(steps=8):
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, steps))


def top(k):
    return keras.metrics.SparseTopKCategoricalAccuracy(k)


# Change of the model by a callback, name of the attribute, and its new value if it is in the message.
CHANGES = [
    (lambda model: setattr(model.layers[0], "rate", 0.3), "Dropout.rate", 0.3),
    (lambda model: setattr(model.layers[0], "trainable", False), "Dropout.trainable", False),
    (lambda model: setattr(model, "_alpha", 0.5), "Own._alpha", 0.5),
    (lambda model: model.options["rates"].append(0.5), "Own.options['rates']", None),
    (lambda model: setattr(model.loss, "factor", 0.5), "Scaled.factor", 0.5),
]


class Changes(keras.callbacks.Callback):
    def __init__(self, *changes):
        super().__init__()
        self.apply = lambda model: [change(model) for change, *_ in changes]

    def on_epoch_begin(self, epoch, logs=None):
        self.apply(self.model)


def changed(*changes, **options):
    """Return a `fit` with changes by a callback."""
    model = lambda: network(keras.layers.Dropout(0.5))  # noqa: E731
    return {"model": model, "loss": Scaled(), "callbacks": [Changes(*changes)], **options}


# Arguments of runs by name. "new" has no checkpoint.
RUNS: dict[str, dict[str, Any]] = {
    "new": {},
    "ArrayBatches": {},
    "arrays": {"data": np.ones((8, 3)), "y": np.ones((8, 1)), "batch_size": 2},
    "half of a PyDataset": {"data": Equal, "steps_per_epoch": 2},
    "tf.data": {"data": lambda: pipeline()},
    "EarlyStopping": {"callbacks": [keras.callbacks.EarlyStopping("loss")]},
    "within epoch 2": {
        "ignore": "LambdaCallback",
        "callbacks": [keras.callbacks.LambdaCallback(on_epoch_end=interrupt)],
        "epochs": 2,
        "initial_epoch": 1,
    },
    "schedule": {"optimizer": decay()},
    "Huber": {"loss": keras.losses.Huber(1.0)},
    "metrics": {"weighted_metrics": [top(1)]},
    "functional": {"model": functional},
    "subclassed": {"model": lambda: Subclassed("relu")},
}
COMPILED = "a callback has changed it, but the compiled training step may contain its value"
# Name of the run, changed arguments, message.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("new", {"data": generator(), "steps_per_epoch": 2}, "position of a generator. Use `FunctionBatches.*replay=True"),
    ("new", {"data": scipy.sparse.csr_matrix(X), "y": Y}, "needs dense arrays in `fit`. Received: csr_matrix"),
    ("new", {"data": Changing(num_batches=None), "shuffle": False}, "infinite or unknown. Pass `steps_per_epoch` to"),
    ("new", {"data": Changing(), "steps_per_epoch": 3}, "Changing changes .* 4 batches. Received: steps_per_epoch=3"),
    ("new", {"data": Noisy()}, "batch 0 differs between two calls.*in a PyDataset from"),
    ("new", {"callbacks": [keras.callbacks.BackupAndRestore("unused")]}, "Remove BackupAndRestore"),
    ("new", {"callbacks": [ExactResume("unused")]}, "more than one ExactResume"),
    ("new", {"validation_data": generator(), "validation_steps": 1}, "validation data are a generator"),
    ("new", {"callbacks": [keras.callbacks.CSVLogger("/dev/null", append=True)]}, "repeat rows .* Pass append=False"),
    ("new", {"data": FunctionBatches(lambda step: [X] * 4, 4)}, "sample_weight.*. Received: 4 parts at step 0"),
    ("new", {"data": FunctionBatches(lambda step: ([X[:2], None], Y[:2]), 4)}, "must consist of arrays of numbers"),
    (
        "new",
        {"data": ArrayBatches(X, X, batch_size=2), "model": lambda: network(units=2)},
        "could not create .* batch of the data: (?s:.*)Dim.* 3 and 2",
    ),
    (
        "new",
        {"data": FunctionBatches(lambda step: np.array([["a"]], object), 4)},
        "arrays of numbers.*Pass strings in a",
    ),
    ("new", {"callbacks": [Probe()]}, r"Probe.probe \(created during training\).*metrics \(one call of `evaluate`\)"),
    ("new", {"callbacks": [NotPlain()]}, "`get_state` of the callback NotPlain must return plain data.* function"),
    *(
        (
            "new",
            changed(each, run_eagerly=False),
            rf"{re.escape(each[1])}{'' if each[2] is None else f' was .*, now {each[2]}'}: {COMPILED}",
        )
        for each in CHANGES
    ),
    ("ArrayBatches", {"data": lambda: arrays(seed=1)}, "another run: the checksum of batch 0 was"),
    (
        "ArrayBatches",
        {"callbacks": [keras.callbacks.EarlyStopping("loss")]},
        r"with the callbacks none. Received: EarlyStopping. .* ignore=\[CLASS\]",
    ),
    ("ArrayBatches", {"class_weight": {0: 2.0}}, r"class_weight was None, now \{0: 2.0\}"),
    ("ArrayBatches", {"data": lambda: arrays(batch_size=4)}, "steps_per_epoch was 4, now 2"),
    (
        "ArrayBatches",
        {"model": lambda: network(units=2)},
        r"another model: .*kernel \(3, 1\) float32 of the model has become .*kernel \(3, 2\).* another folder to Exact",
    ),
    ("ArrayBatches", {"optimizer": keras.optimizers.SGD(momentum=0.5)}, "of the optimizer is new"),
    ("ArrayBatches", {"optimizer": keras.optimizers.SGD(0.1)}, "the optimizer: learning_rate was 0.00999.*, now 0.1"),
    ("ArrayBatches", {"optimizer": decay()}, "learning_rate .* of the optimizer is missing"),
    ("ArrayBatches", {"loss": "mae"}, "another run: the loss: loss was 'mse', now 'mae'"),
    ("ArrayBatches", {"initial_epoch": 2, "epochs": 3}, "of epoch 1, but .*initial_epoch=2"),
    (
        "within epoch 2",
        {"ignore": "LambdaCallback", "callbacks": (), "epochs": 1, "initial_epoch": 0},
        "within epoch 2, after 3 .* with epochs=2",
    ),
    ("EarlyStopping", {"callbacks": []}, "a run with the callbacks EarlyStopping. Received: none. For one"),
    ("arrays", {"seed": 1}, "another run: seed was 0, now 1. Start"),
    ("arrays", {"shuffle": False}, "shuffle was True, now False"),
    ("arrays", {"data": np.ones((7, 3)), "y": np.ones((7, 1))}, "the length of the data was 8, now 7"),
    ("half of a PyDataset", {"data": Equal(5)}, "the length of the data was 4, now 5"),
    (
        "schedule",
        {"optimizer": decay(9)},
        "the optimizer: learning_rate.decay_steps was 8, now 9. To train on .*load_weights",
    ),
    ("Huber", {"loss": keras.losses.Huber(2.0)}, "the loss: loss.delta was 1.0, now 2.0"),
    ("metrics", {"weighted_metrics": [top(2)]}, r"weighted_metrics.0.\S*k was 1, now 2"),
    ("functional", {"model": lambda: functional("tanh")}, "the model: Dense.activation was 'relu', now 'tanh'"),
    ("functional", {"model": lambda: functional(trainable=False)}, "Dense.trainable was True, now False"),
    ("functional", {"model": lambda: functional(skip=1)}, r"the model: Functional\.graph\.\d.*layer 1"),
    ("subclassed", {"model": lambda: Subclassed("tanh")}, "Dense.activation was 'relu', now 'tanh'"),
]
# Fits that are not refused, among them the remedies of messages.
ACCEPTED: dict[str, dict[str, Any]] = {
    "changes that are ignored": changed(*CHANGES, run_eagerly=False, ignore=[name for _, name, _ in CHANGES]),
    "changes with eager steps": changed(*CHANGES),
    "changes by eager steps": {"model": storing},
    "an added observer": {"callbacks": [keras.callbacks.CSVLogger("/dev/null")]},
    "Muon": {"optimizer": Muon(norm="free", weight_decay=0.1), "epochs": 2},
    "own optimizer": {"optimizer": OwnAdam(), "epochs": 2},
}
if keras.backend.backend() == "tensorflow":
    inside = {kind: {"model": lambda kind=kind: network(InTensorFlow(kind))} for kind in ("variable", "random")}
    REFUSED += [
        ("tf.data", {"data": lambda: pipeline(shuffles=1, seed=0)}, "checkpoint is that of another tf.data.Dataset"),
        (
            "new",
            {"validation_data": pipeline(shuffles=8)},
            "for validation differs in each process: Shuffle has no seed",
        ),
        ("new", {**inside["variable"], "run_eagerly": False}, "uses the variable my_count"),
        ("new", {**inside["random"], "run_eagerly": False}, "operation RandomStandardNormal"),
    ]
    ACCEPTED["validation in a fixed random order"] = {
        "validation_data": pipeline(shuffles=8, seed=1, reshuffle_each_iteration=False)
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that trains a run once and returns its folder."""

    @functools.cache
    def train(name):
        folder = tmp_path_factory.mktemp("run")
        with contextlib.suppress(KeyboardInterrupt):
            fit(folder, **RUNS[name])
        return folder

    return train


def saved(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.mark.parametrize(("name", "change", "message"), REFUSED)
def test_refused(tmp_path, trained, name, change, message):
    """The folder is unchanged."""
    folder = tmp_path if name == "new" else trained(name)
    before = saved(folder)
    with pytest.raises(ValueError, match=message):
        fit(folder, **{"epochs": 2, **RUNS[name], **change})
    assert saved(folder) == before


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name, tmp_path):
    assert fit(tmp_path, **ACCEPTED[name]).epoch
    assert list_steps(tmp_path)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="on JAX optimizers are built before `fit`")
def test_an_optimizer_that_the_first_step_builds(tmp_path):
    model = TwoOptimizers()
    model.compile(keras.optimizers.Adam(), keras.optimizers.Adam(), build=False, run_eagerly=True)
    images = np.random.default_rng(0).normal(size=(8, 6, 6, 1))
    with pytest.raises(
        ValueError,
        match=r"the first training step created it.*call `model.optimizer.build.variables.`, also of further",
    ):
        model.fit(images, batch_size=2, callbacks=[ExactResume(tmp_path, every=1)], verbose=0)


def test_another_format(tmp_path, monkeypatch):
    fit(tmp_path)
    now = _encoding.FORMAT
    monkeypatch.setattr(_encoding, "FORMAT", now + 1)
    with pytest.raises(ValueError, match=rf"4 has format {now} of idmatters_tf \d\S*, not format {now + 1}"):
        fit(tmp_path)
