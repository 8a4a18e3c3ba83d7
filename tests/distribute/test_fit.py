"""`fit`, `evaluate` and `predict` on two replicas and on two workers, compared with one device."""

import copy
import inspect
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf._keras_internals.replicas import changes
from idmatters_tf.distribute import ClusterDescription, checks, chief_only, order, tasks
from tests.conftest import ROOT
from tests.support.processes import Cluster, run_forked
from tests.support.replicated_fits import CASES, X, Y, dense

# Cases that each need a correction of Keras, or a check.
SHORT = [
    "validation of 1 row",
    "a generator",
    "optional inputs",
    "guide: VQ-VAE",
    "two steps per execution",
    "mixed precision, clipped",
    "callbacks",
    "loss: contrastive",
    "tokens: mask, mean of weights",
    "tokens: ignore_class, mask, weights",
    "added: mean, uneven",
    "an added loss",
    "uneven: compute_loss",
    "step: as in the guide, with losses",
    "metrics: of the user",
    "metrics: that couple",
    "types: uint8 labels",
    "types: float64",
    "types: predicted",
    "evaluation of empty parts",
    "optimizer: accumulation, clipped, averages",
    "optimizer: loss scale, overflow",
    "a step",
    "a raw variable",
    "an empty part",
    "step: a scalar of the part",
    "guide: GAN",
    "guide: SAM",
    "guide: SAM, local",
]


def results(folder):
    return {int(path.stem): np.load(path) for path in folder.glob("*.npz")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, slow):
    folder = tmp_path_factory.mktemp("fits")
    names = [] if slow else SHORT
    with Cluster(2) as cluster:
        cluster.start("tests.support.replicated_fits", folder / "2", "workers", *names)
        for kind, devices in [("one", 1), *([("mirrored", 2)] if slow else []), ("mirrored", 3)]:
            arguments = (folder / str(devices), kind, *names)
            done = run_forked("tests.support.replicated_fits", *arguments, devices=devices)
            assert done.returncode == 0, done.stderr
        check_ends(cluster)
    if slow:
        with Cluster(3) as cluster:
            cluster.start("tests.support.replicated_fits", folder / "3", "workers")
            check_ends(cluster)
    return folder


def check_ends(cluster):
    for code, output in cluster.finish(timeout=3600).values():
        assert code == 0, output


KINDS = ["2/workers 0", "2/workers 1", "3/mirrored 0"]
SLOW_KINDS = ["2/mirrored 0", "3/workers 0", "3/workers 1", "3/workers 2"]


@pytest.mark.parametrize("kind", KINDS + [pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_KINDS])
def test_replicas_end_where_one_device_ends(folder, kind):
    expected, found = results(folder / "1/one 0"), results(folder / kind)
    assert expected
    assert set(expected) == set(found)
    for number, values in expected.items():
        name = list(CASES)[number]
        assert set(values) == set(found[number]), name
        # float16 rounds the gradients of parts of a batch.
        tolerance = 2e-3 if "mixed" in name or "scale" in name else 2e-2 if "bfloat16" in name else 3e-6
        for key, value in values.items():
            # The loss of a step whose gradients overflow is not finite.
            assert np.isfinite(value).all() or ("overflow" in name and key == "history loss"), f"{name}: {key}"
            size = np.abs(value[np.isfinite(value)]).max(initial=0.3)
            np.testing.assert_allclose(found[number][key], value, 0, tolerance * size, err_msg=f"{name}: {key}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["1/one 0", *KINDS, *SLOW_KINDS])
def test_accumulated_steps_equal_one_large_batch(folder, kind):
    accumulated, expected = (
        results(folder / kind)[list(CASES).index(name)] for name in ("accumulated steps", "one large batch")
    )
    for key, value in expected.items():
        np.testing.assert_allclose(accumulated[key], value, 0, 3e-6, err_msg=key)


def test_only_the_chief_writes_files(folder):
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.suffix in (".csv", ".h5")]
    assert not [path for path in files if "workers" in str(path) and "workers 0" not in str(path)]
    assert {"1/one 0", "2/workers 0", "3/mirrored 0"} <= {str(path.parent) for path in files}


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
    "trainable of sequential/dense/kernel": False,
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
