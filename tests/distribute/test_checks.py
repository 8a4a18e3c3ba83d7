"""Checks of a `fit` on several replicas, and the table of functions of Keras that are replaced."""

import copy
import inspect
import types
from typing import Any

import keras
import pytest
import tensorflow as tf

from idmatters_tf._keras_internals.replicas import changes
from idmatters_tf._keras_internals.replicas.metrics import metrics_within
from idmatters_tf.distribute import ClusterDescription, checks, chief_only, order, tasks
from tests.conftest import ROOT
from tests.support.replicated_fits import X, Y, dense


def test_functions_without_the_defect_are_kept(monkeypatch):
    """A repair is made in the versions of Keras with the defect only, and once."""
    owner = types.ModuleType("owner")
    vars(owner).update(old=lambda: "old", sound=lambda: "sound", hooked=lambda: "hooked")
    monkeypatch.setattr(changes, "CHANGES", [])
    for name, versions in {"old": ("3.13", "3.99"), "sound": ("3.1", "3.12")}.items():
        changes.repairs(owner, name, "a defect", versions=versions)(lambda original: f"{original()}, repaired")
    changes.hook(owner, "hooked", "a purpose")(lambda original: f"{original()}, too")
    for _ in range(2):
        changes.make_changes()
    assert (owner.old(), owner.sound(), owner.hooked()) == ("old, repaired", "sound", "hooked, too")


def test_a_page_lists_the_functions_that_are_replaced():
    from idmatters_tf._keras_internals.replicas import steps  # noqa: F401 - registers the changes

    assert changes.describe_changes() in (ROOT / "docs/explanation/distributed.md").read_text()
    assert len(changes.CHANGES) <= 12


def test_each_compiled_metric_counts_its_part():
    """The list of Keras is not a metric of its own, for which the outputs would be gathered."""
    model = dense(metrics=["mae", keras.metrics.AUC()])
    model.test_on_batch(X[:4], Y[:4] > 0)
    found = sorted(type(metric).__name__ for metric in metrics_within(model))
    assert found == ["AUC", "Mean", "MeanAbsoluteError"]


def arguments(x: Any = X, y: Any = Y, **others):
    names = inspect.signature(keras.Model.fit).parameters
    defaults = {name: parameter.default for name, parameter in names.items() if name != "self"}
    return {**defaults, "x": x, "y": y, "batch_size": 12, **others}


@pytest.fixture
def two_workers(monkeypatch):
    """A strategy of two workers, without TensorFlow, that compares this worker with itself."""
    strategy = type("Strategy", (), {"num_replicas_in_sync": 2})()
    jobs = {"worker": ["one:5000", "other:5000"]}
    cluster = ClusterDescription(jobs, "worker", 0, "TF_CONFIG")
    for module in (checks, tasks):
        monkeypatch.setattr(module, "describe_cluster", lambda strategy: cluster)
    for module in (order, tasks):
        monkeypatch.setattr(module, "gather", lambda strategy, value: [value, copy.deepcopy(value)])
    monkeypatch.setattr(keras.Model, "distribute_strategy", strategy, raising=False)


def rows(count=51):
    return tf.data.Dataset.from_tensor_slices((X[:count], Y[:count]))


def shuffle_rows(x, y):
    return tf.random.shuffle(x), y


@pytest.mark.parametrize(
    ("build", "changes", "message"),
    [
        (lambda: dense(jit_compile=True), {}, "jit_compile=False"),
        (dense, {"callbacks": [keras.callbacks.CSVLogger("x.csv")]}, r"\*chief_only\(CSVLogger\(...\)\)"),
        (dense, {"callbacks": [keras.callbacks.BackupAndRestore("x")]}, "one worker.*ExactResume on all workers"),
        (dense, {"x": rows().shuffle(8).batch(4), "y": None}, "Shuffle has no seed.*after `multi_worker_strategy"),
        (dense, {"x": rows().batch(4).map(shuffle_rows), "y": None}, "Map calls `tf.random.shuffle` without a seed"),
        (dense, {"x": rows().map(lambda *row: row, 2, False).batch(4), "y": None}, "Map is not deterministic"),
        (dense, {"x": X[:49], "y": Y[:49]}, "A training batch has 1 examples.*would receive none"),
    ],
)
def test_arguments_that_fail_on_several_replicas_raise(two_workers, build, changes, message):
    with pytest.raises(ValueError, match=message):
        checks.check_fit(build(), arguments(**changes))


# Values of a worker that are refused if those of the chief differ.
OTHERS = {
    "callbacks": ["EarlyStopping"],
    "class_weight": {"0": 1.0, "1": 3.0},
    "shuffle": False,
    "the checksum of x": 0,
    "the checksum of sample_weight": 1,
    "the checksum of sgd/learning_rate": 0,
    "trainable of dense/kernel": False,
    "the checksum of validation y": 0,
    "validation_freq": 2,
}


def test_workers_with_other_arguments_are_named(two_workers, monkeypatch):
    for name, other in OTHERS.items():
        # Names of layers and optimizers begin without a number.
        keras.utils.clear_session()
        changes = {name: other}
        monkeypatch.setattr(
            tasks, "gather", lambda strategy, value, changes=changes: [value, [{**value[0], **changes}]]
        )
        with pytest.raises(ValueError, match=f"worker 1 does not train as worker 0: {name} was .*, now "):
            checks.check_fit(dense(), arguments(validation_data=(X[:4], Y[:4]), class_weight={0: 1.0, 1: 2.0}))
    monkeypatch.setattr(tasks, "gather", lambda strategy, value: [value, [0, "`epochs` is wrong."]])
    with pytest.raises(ValueError, match="^worker 1: `epochs` is wrong"):
        checks.check_fit(dense(), arguments())
    with pytest.raises(ValueError, match="EarlyStopping changes training and must run on all workers"):
        chief_only(keras.callbacks.EarlyStopping())
    with pytest.raises(ValueError, match="BackupAndRestore restores the epoch of one worker"):
        chief_only(keras.callbacks.BackupAndRestore("folder"))
