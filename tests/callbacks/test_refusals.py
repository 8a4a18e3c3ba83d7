# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalSubscript=false
"""Errors of `ExactResume` for state that cannot be restored, and for checkpoints of another run."""

import ast
import collections
import itertools
import re
import threading
import types
from typing import ClassVar

import keras
import numpy as np
import pytest
import scipy.sparse

from idmatters_tf.callbacks import ArrayBatches, ExactResume, FunctionBatches, _encoding, _run_state, _state_callback
from idmatters_tf.checkpointing import FolderInUse, FolderLock, list_steps
from idmatters_tf.optimizers import Muon
from tests.support.adversarial import Adversarial

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def arrays(**options):
    return ArrayBatches(X, Y, **{"batch_size": 2, "seed": 0, **options})


class Scaled(keras.losses.Loss):
    """Loss with an attribute that is not in its configuration."""

    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def call(self, y_true, y_pred):
        return self.factor * keras.ops.mean((y_true - y_pred) ** 2, -1)


class Own(keras.Sequential):
    """Model with attributes of several kinds."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._alpha, self.options, self.seen = 1.0, {"rates": [0.1]}, None

    def call(self, *arguments, **options):
        self.seen = super().call(*arguments, **options)
        return self.seen


RESUME = {"every": 1, "keep": 2, "seed": 0, "ignore": ()}


def fit(folder, *more, callbacks=(), data=None, layer=None, units=1, optimizer="sgd", loss="mse", verbose=0, **options):
    keras.utils.set_random_seed(0)
    model = Own([keras.Input((3,)), *([layer] if layer else []), keras.layers.Dense(units)])
    model.compile(optimizer, loss, run_eagerly=layer is None)
    data = arrays() if data is None else data
    resume = ExactResume(folder, **{name: options.pop(name, default) for name, default in RESUME.items()})
    return model.fit(data, callbacks=[resume, *more, *callbacks], verbose=verbose, **options)


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


@pytest.mark.parametrize(
    ("callbacks", "options", "message"),
    [
        ([], {"data": generator(), "steps_per_epoch": 2}, "position of a generator. Use `FunctionBatches"),
        ([], {"data": scipy.sparse.csr_matrix(X), "y": Y}, "needs dense arrays in `fit`. Received: csr_matrix"),
        ([], {"data": Changing(num_batches=None), "shuffle": False}, "infinite or unknown. Pass `steps_per_epoch` to"),
        ([], {"data": Changing(), "steps_per_epoch": 3}, "Changing changes .* 4 batches. Received: steps_per_epoch=3"),
        ([], {"data": Noisy()}, "batch 0 differs between two calls.*in a PyDataset from"),
        ([keras.callbacks.BackupAndRestore("unused")], {}, "Remove BackupAndRestore"),
        ([ExactResume("unused")], {}, "more than one ExactResume"),
        ([], {"validation_data": generator(), "validation_steps": 1}, "validation data are a generator"),
        ([], {"validation_data": Changing()}, "PyDataset whose batches change between epochs, .* of Changing. Pass"),
        ([], {"data": FunctionBatches(lambda step: [X] * 4, 4)}, "sample_weight.*. Received: 4 parts at step 0"),
        (
            [],
            {"data": ArrayBatches(X, X, batch_size=2), "units": 2},
            "could not create .* batch of the data: Dim.* 3 and 2",
        ),
    ],
)
def test_refused_when_training_begins(tmp_path, callbacks, options, message):
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, *callbacks, **options)
    assert not list(tmp_path.iterdir())


class Others(keras.callbacks.Callback):
    """Callback that changes attributes that are not plain data."""

    of_class: ClassVar = {0}

    def __init__(self):
        super().__init__()
        self.losses, self.lock, self.view = [], threading.Lock(), np.zeros(4)[1:]
        self.nested, self.own, self.count = [({"a": {0}},)], types.SimpleNamespace(steps=0), itertools.count()
        self.batches, self.counts, self.bytes = iter(np.zeros(9)), collections.Counter(), bytearray(1)
        self.unbuilt = keras.layers.Dense(1)

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        self.of_class.add(batch + 1)
        self.nested[0][0]["a"].add(batch + 1)
        self.view[0], self.own.steps = self.view[0] + 1, self.own.steps + 1
        self.counts["batches"] += 1
        self.bytes[0] += 1
        self.unbuilt(X)
        next(self.count)
        next(self.batches)
        self.made, self.layer, self.variable = (lambda: 0), keras.layers.Dense(1), [keras.Variable(0.0)]


class WithMethods(Others):
    def get_state(self):
        return {"losses": self.losses}

    def set_state(self, state):
        self.losses = state["losses"]


CHANGED = ("view", "nested", "own", "count", "batches", "made", "layer", "variable", "of_class", "unbuilt")
CHANGED += ("counts", "bytes")


def test_attributes_that_are_not_plain_data(tmp_path):
    """One error at the first checkpoint names all of them. Both remedies work."""
    with pytest.raises(ValueError, match="Callbacks have changed attributes") as found:
        fit(tmp_path / "refused", Others(), every="epoch", epochs=2)
    assert not list((tmp_path / "refused").glob("step-*"))
    names = ast.literal_eval(re.search(r"ignore=(\[.*\])", str(found.value))[1])
    assert set(names) == {f"Others.{name}" for name in CHANGED}
    assert all(f"Others.{name} (" in str(found.value) for name in CHANGED)
    fit(tmp_path / "ignored", Others(), ignore=names)
    fit(tmp_path / "methods", WithMethods())


def test_a_result_of_get_state_that_is_not_plain_data(tmp_path):
    callback = WithMethods()
    callback.get_state = lambda: {"losses": {1}}
    with pytest.raises(ValueError, match="`get_state` of the callback WithMethods must return plain data.* set"):
        fit(tmp_path, callback)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.data")
def test_validation_that_shuffles(tmp_path):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y))
    with pytest.raises(ValueError, match="tf.data.Dataset that shuffles"):
        fit(tmp_path, validation_data=data.shuffle(8, seed=1).batch(2))
    fit(tmp_path, validation_data=data.shuffle(8, seed=1, reshuffle_each_iteration=False).batch(2))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only there a layer may have state of its own")
@pytest.mark.parametrize("kind", ["variable", "random"])
def test_state_inside_of_tensorflow(tmp_path, kind):
    import tensorflow as tf

    class Own(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.count = tf.Variable(0.0, name="my_count")

        def call(self, x):
            if kind == "random":
                return x + tf.random.normal(tf.shape(x))
            self.count.assign_add(1.0)
            return x * self.count

    message = {"variable": "uses the variable my_count", "random": "operation RandomStandardNormal"}[kind]
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, layer=Own())


class Equal(keras.utils.PyDataset):
    """Dataset of equal batches."""

    def __init__(self, length=4):
        super().__init__()
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return X[:2], Y[:2]


def pipeline(*, shuffles):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return data.shuffle(1, seed=0).batch(2).prefetch(2) if shuffles else data.batch(2)


ONES = {"data": np.ones((8, 3)), "y": np.ones((8, 1)), "batch_size": 2}
RULE = [keras.callbacks.EarlyStopping("loss")]
OTHER_RUNS = [
    ({}, {"data": arrays(seed=1)}, "another run: the checksum of batch 0 was"),
    ({}, {"class_weight": {0: 2.0}}, r"class_weight was None, now \{0: 2.0\}"),
    ({}, {"data": arrays(batch_size=4)}, "steps_per_epoch was 4, now 2"),
    ({}, {"units": 2}, r"another model: .*kernel \(3, 1\) float32 of the model has become .*kernel \(3, 2\)"),
    ({}, {"optimizer": keras.optimizers.SGD(momentum=0.5)}, "of the optimizer is new"),
    ({}, {"initial_epoch": 2, "epochs": 3}, "of epoch 1, but .*initial_epoch=2"),
    ({"callbacks": RULE}, {"callbacks": []}, "contains the state of EarlyStopping, not among the callbacks"),
    (ONES, {"seed": 1}, "another run: seed was 0, now 1. Start"),
    (ONES, {"shuffle": False}, "shuffle was True, now False"),
    (ONES, {"data": np.ones((7, 3)), "y": np.ones((7, 1))}, "the length of the data was 8, now 7"),
    ({"data": Equal()}, {"seed": 1}, "seed was 0, now 1"),
    ({"data": Equal()}, {"shuffle": False}, "shuffle was True, now False"),
    ({"data": Equal(), "steps_per_epoch": 2}, {"data": Equal(5)}, "the length of the data was 4, now 5"),
]
if keras.backend.backend() == "tensorflow":
    pipelines = [{"data": pipeline(shuffles=shuffles)} for shuffles in (False, True)]
    OTHER_RUNS.append((*pipelines, "checkpoint is that of another tf.data.Dataset"))


@pytest.mark.parametrize(("before", "after", "message"), OTHER_RUNS)
def test_a_checkpoint_of_another_run(tmp_path, before, after, message):
    fit(tmp_path, **before)
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, **{"epochs": 2, **before, **after})


def test_fewer_epochs_than_the_checkpoint(tmp_path):
    """A run within its second epoch is not a finished run of one epoch."""

    def stop(epoch, logs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, keras.callbacks.LambdaCallback(on_epoch_end=stop), epochs=2, initial_epoch=1)
    with pytest.raises(ValueError, match="within epoch 2, after 3 batches. Received: epochs=1. Call `fit` with epoch"):
        fit(tmp_path, epochs=1)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="on JAX optimizers are built before `fit`")
def test_an_optimizer_that_the_first_step_builds(tmp_path):
    model = Adversarial()
    model.compile(keras.optimizers.Adam(), keras.optimizers.Adam(), build=False, run_eagerly=True)
    images = np.random.default_rng(0).normal(size=(8, 6, 6, 1))
    with pytest.raises(ValueError, match=r"the first training step created it.*build further optimizers before `fit`"):
        model.fit(images, batch_size=2, callbacks=[ExactResume(tmp_path, every=1)], verbose=0)


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        (lambda model: setattr(model.layers[0], "rate", 0.3), "Dropout.rate", 0.3),
        (lambda model: setattr(model.layers[0], "trainable", False), "Dropout.trainable", False),
        (lambda model: setattr(model.optimizer, "weight_decay", 0.5), "SGD.weight_decay", 0.5),
        (lambda model: setattr(model, "_alpha", 0.5), "Own._alpha", 0.5),
        (lambda model: setattr(model, "added", 0.5), "Own.added", 0.5),
        (lambda model: model.options["rates"].append(0.5), "Own.options['rates'][1]", 0.5),
        (lambda model: setattr(model.loss, "factor", 0.5), "Scaled.factor", 0.5),
    ],
)
def test_an_attribute_that_a_callback_changes(tmp_path, change, name, value):
    def fit_changed(folder, **options):
        callback = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: change(callback.model))
        optimizer = keras.optimizers.SGD(0.1, weight_decay=0.01)
        layer = keras.layers.Dropout(0.5) if name.startswith("Dropout") else None
        fit(folder, callback, layer=layer, optimizer=optimizer, loss=Scaled(), **options)

    with pytest.raises(ValueError, match=rf"{re.escape(name)} was .*, now {value}: a callback or an eager"):
        fit_changed(tmp_path / "refused")
    fit_changed(tmp_path / "ignored", ignore=[name])


class OwnAdam(keras.optimizers.AdamW):
    """Optimizer with an attribute that each step sets."""

    def update_step(self, gradient, variable, learning_rate):
        self.rate = learning_rate
        super().update_step(gradient, variable, learning_rate)


class Stores(keras.layers.Layer):
    """Layer that stores a shape, and counts its calls under a name."""

    def __init__(self, counter):
        super().__init__()
        self.counter, self.calls, self.shapes = counter, 0, set()

    def call(self, x):
        self.shape = x.shape
        setattr(self, self.counter, getattr(self, self.counter, 0) + 1)
        self.shapes.add(str(x.shape))
        return x


@pytest.mark.parametrize("data", [arrays(), ArrayBatches(X[:7], Y[:7], batch_size=2)], ids=["equal", "smaller"])
def test_attributes_that_a_compiled_step_assigns(tmp_path, data):
    fit(tmp_path, layer=Stores("calls"), data=data)


def test_attributes_that_an_eager_step_changes(tmp_path):
    def fit_eagerly(folder, data, **options):
        layer = Stores("calls")
        model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        layer.shapes.clear()
        model.fit(data, callbacks=[ExactResume(folder, every=1, **options)], verbose=0)

    with pytest.raises(
        ValueError, match=r"Stores.calls was \d, now \d: .* eager training step.*ignore=\['Stores.calls'\]"
    ):
        fit_eagerly(tmp_path / "refused", arrays())
    with pytest.raises(ValueError, match=r"^Stores.shapes: a callback or an eager") as found:
        fit_eagerly(tmp_path / "set", ArrayBatches(X[:7], Y[:7], batch_size=2), ignore=["Stores.calls", "Stores.shape"])
    assert "SHA" not in str(found.value)
    fit_eagerly(tmp_path / "ignored", arrays(), ignore=["Stores.calls", "Stores.shapes"])


@pytest.mark.parametrize("optimizer", [lambda: Muon(norm="free", weight_decay=0.1), OwnAdam])
def test_attributes_that_training_changes(tmp_path, optimizer):
    assert fit(tmp_path, optimizer=optimizer(), epochs=2).epoch == [0, 1]


def test_a_dataset_that_changes_differently(tmp_path):
    fit(tmp_path, data=Changing(seed=1), epochs=2)
    fit(tmp_path, data=Changing(seed=1), epochs=3)
    with pytest.raises(ValueError, match="first batch of Changing in epoch 2 differs"):
        fit(tmp_path, data=Changing(seed=2), epochs=4)


def test_another_environment(tmp_path, monkeypatch):
    fit(tmp_path)
    monkeypatch.setattr(_run_state, "describe_numerics", lambda backend: {"oneDNN": "another"})
    with pytest.warns(UserWarning, match="oneDNN was .*, now 'another': results will differ by rounding"):
        fit(tmp_path, epochs=2)


def test_a_damaged_checkpoint_is_renamed_and_the_previous_one_is_used(tmp_path):
    whole = fit(tmp_path, epochs=2)
    (tmp_path / "step-00000008" / "arrays.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match="step-00000008 is damaged .*arrays.npz has another checksum"):
        again = fit(tmp_path, epochs=2)
    assert again.history == whole.history
    names = sorted(path.name.rpartition("-")[0] for path in tmp_path.iterdir())
    assert names == ["damaged-step-00000008", "step", "step"]


def test_no_other_process_while_it_trains(tmp_path):
    def seen(batch, logs):
        with pytest.raises(FolderInUse):
            FolderLock(tmp_path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, keras.callbacks.LambdaCallback(on_train_batch_end=seen))
    # The same process may continue, and the lock is released at the end of `fit`.
    fit(tmp_path)
    FolderLock(tmp_path).release()


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (3, [3, 6, 9, 12]),
        ("3 steps", [3, 6, 9, 12]),
        ("epoch", [4, 8, 12]),
        ("2 epochs", [8, 12]),
        ("5 minutes", [5, 10, 12]),
        ("1 hour", [12]),
    ],
)
def test_interval(tmp_path, monkeypatch, every, steps):
    clock = {"now": 0}
    monkeypatch.setattr(_state_callback.time, "monotonic", lambda: clock["now"])
    minute = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: clock.update(now=clock["now"] + 60))
    fit(tmp_path, minute, every=every, keep=9, epochs=3)
    assert list_steps(tmp_path) == steps


@pytest.mark.parametrize("every", [0, True, 1.5, "5", "0 steps", "3 batches", "1.5 hours"])
def test_invalid_interval(every):
    with pytest.raises(ValueError, match='ExactResume must be a positive integer, or a text such as "10 minutes"'):
        ExactResume("unused", every=every)


def test_folders(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for name, reason in (("file", "File exists"), ("file/folder", "Not a directory"), ("x" * 300, "name too long")):
        with pytest.raises(ValueError, match=rf"a writable folder. Received: .*{name} \(.*{reason}\)"):
            fit(tmp_path / name)
    # The lock of an interrupted `fit` is found by a link as well.
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "folder", keras.callbacks.LambdaCallback(on_epoch_end=_interrupt), epochs=2)
    fit(tmp_path / "link", epochs=2)


def _interrupt(*_):
    raise KeyboardInterrupt


def test_another_format(tmp_path, monkeypatch):
    fit(tmp_path)
    now = _encoding.FORMAT
    monkeypatch.setattr(_encoding, "FORMAT", now + 1)
    with pytest.raises(ValueError, match=rf"4 has format {now} of idmatters_tf \d\S*, not format {now + 1}"):
        fit(tmp_path)


def test_one_line_says_where_training_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for epochs, verbose, line in ((1, 2, ""), (2, 2, "Resuming from step 4 of runs/fit\n"), (3, 0, "")):
        fit("runs/fit", epochs=epochs, verbose=verbose)
        assert capsys.readouterr().err == line
