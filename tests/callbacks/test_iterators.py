"""Exact restoration of `tf.data` pipelines in `fit`, and errors for pipelines that TensorFlow cannot save.

The reference is a plain iteration over a new dataset. `test_sources` compares the weights for some of these pipelines.
"""

import contextlib

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ExactResume
from tests.callbacks.test_refusals import fit
from tests.support.stopped_fits import Killed, kill_at

tf = pytest.importorskip("tensorflow")
Dataset = tf.data.Dataset
EPOCHS = 3


def files(count=3):
    """Return pairs of numbers, as if each ten of them were in a file."""
    return (
        Dataset.range(count)
        .shuffle(count, seed=5)
        .interleave(lambda file: Dataset.range(10 * file, 10 * file + 7), cycle_length=2, num_parallel_calls=2)
    )


def random_crops():
    seeds = Dataset.random(seed=4, rerandomize_each_iteration=True).batch(2)
    both = Dataset.zip((Dataset.range(23).shuffle(5, seed=1), seeds))
    return both.map(lambda x, seed: tf.random.stateless_uniform([2], seed=seed)).batch(5)


# Functions of the path of a cache, each of five batches, and of four batches.
FINITE = {
    "same order": lambda path: Dataset.range(23).shuffle(10, seed=1, reshuffle_each_iteration=False).batch(5),
    "global seed": lambda path: Dataset.range(23).shuffle(23).map(lambda x: x, num_parallel_calls=2).batch(5),
    "files": lambda path: (
        files().shuffle(5, seed=3).batch(5).prefetch(tf.data.AUTOTUNE).apply(tf.data.experimental.assert_cardinality(5))
    ),
    "cache": lambda path: Dataset.range(23).cache().shuffle(10, seed=1).batch(5),
    "a complete cache": lambda path: Dataset.range(23).shuffle(23, seed=5).cache(path).batch(5),
    "random": lambda path: random_crops(),
    "strings, ragged": lambda path: (
        Dataset.from_tensor_slices(([b"a", b"bc"] * 5, range(1, 11)))
        .shuffle(8, seed=1)
        .map(lambda text, count: (text, tf.range(count)))
        .ragged_batch(2)
    ),
}
ENDLESS = {
    "two shuffles": lambda: Dataset.range(23).shuffle(23, seed=5).shuffle(9, seed=3).batch(5).repeat().prefetch(3),
    "files": lambda: files().shuffle(5, seed=3).repeat().batch(5).prefetch(2),
}
PERIODS = {"two shuffles": 23, "files": 21, "unknown length": 12}


def contents(batch):
    """Return the contents of a batch as lists, for each of the zipped pipelines."""
    return {
        name: [np.asarray(each).tolist() for each in tf.nest.flatten(part, expand_composites=True)]
        for name, part in batch.items()
    }


SEEN = []


class Recorder(keras.Model):
    """Model that records its batches."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 1))

    def train_step(self, data):
        SEEN.append(contents(data))
        return {"loss": 0.0}


def seen(make, folder, moment=None, steps_per_epoch=None):
    """Return the batches of a `fit` until a moment, and the step at which it has resumed."""
    SEEN.clear()
    keras.utils.set_random_seed(0)
    data, model, resume = make(), Recorder(), ExactResume(folder, every=1)
    model.compile("sgd", run_eagerly=True)
    options = {"epochs": EPOCHS, "steps_per_epoch": steps_per_epoch, "verbose": 0}
    with contextlib.suppress(Killed):
        model.fit(data, callbacks=[resume, kill_at(moment)], **options)
    return list(SEEN), resume.resumed_at


def check_restored(make, folder, steps, expected=None, steps_per_epoch=None):
    """Check the batches of a `fit` that is stopped before and after the first batch of an epoch, and before the last.

    Return the expected ones, by default those of an uninterrupted `fit`.
    """
    whole = expected or seen(make, folder / "whole", None, steps_per_epoch)[0]
    ends = (("batch", 1, 0), ("batch", 1, 1), ("batch", 1, steps - 1), None)
    for moment, at in zip(ends, (0, steps, steps + 1, 2 * steps - 1), strict=True):
        part, resumed_at = seen(make, folder / "stopped", moment, steps_per_epoch)
        assert resumed_at == at
        assert len(part) == (len(whole) - at if moment is None else moment[2] + 1 + steps - at)
        for one, other in zip(part, whole[at:], strict=False):
            assert [name for name in other if one[name] != other[name]] == []
    return whole


def test_restored_between_batches(tmp_path):
    def make():
        return Dataset.zip({name: make(str(tmp_path / "cache")) for name, make in FINITE.items()})

    keras.utils.set_random_seed(0)
    plain = make()
    list(plain)
    check_restored(make, tmp_path, 5, [contents(batch) for _ in range(EPOCHS) for batch in plain])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.zip({name: make() for name, make in ENDLESS.items()}),
        lambda: (
            Dataset.range(24)
            .shuffle(9, seed=3)
            .filter(lambda x: x % 2 == 0)
            .batch(5)
            .map(lambda x: {"unknown length": x})
        ),
    ],
)
def test_epochs_of_one_iteration(make, tmp_path):
    found = check_restored(make, tmp_path, 4, steps_per_epoch=4)
    for name in found[0]:
        numbers = [number for batch in found for number in batch[name][0]]
        passes = [numbers[start : start + PERIODS[name]] for start in (0, PERIODS[name])]
        assert [sorted(each) for each in passes] == [sorted(set(passes[0]))] * 2, name
        assert passes[0] != passes[1], name


def generated():
    return Dataset.from_generator(lambda: iter(range(6)), output_signature=tf.TensorSpec([], tf.int64)).batch(2)


def unordered():
    options = tf.data.Options()
    options.deterministic = False
    return Dataset.range(6).batch(2).with_options(options)


def with_function(function, **options):
    return lambda: Dataset.range(6).map(function, **options).batch(2)


REFUSED = {
    "EagerPyFunc.*FunctionBatches": with_function(lambda x: tf.py_function(lambda y: y, [x], tf.int64)),
    "PyFunc.*FunctionBatches": lambda: generated().apply(tf.data.experimental.assert_cardinality(3)),
    "RandomUniform.*stateless": with_function(lambda x: tf.random.uniform([])),
    "DummySeedGenerator.*with internal state, use `tf.random.stateless": lambda: (
        Dataset.range(2)
        .interleave(lambda x: Dataset.range(3).shuffle(3, seed=1))
        .batch(2)
        .apply(tf.data.experimental.assert_cardinality(3))
    ),
    "Shuffle has no seed. Pass a `seed`": lambda: Dataset.range(6).shuffle(6).batch(2),
    "ParallelMap has `deterministic=False`": with_function(lambda x: x, num_parallel_calls=2, deterministic=False),
    "`options.deterministic` is False": unordered,
    "unknown. Pass `steps_per_epoch` .*, or `.*assert_cardinality.*`from_generator`, pass `FunctionBatches": generated,
    "caches small sets unless .*try_autocache=False": lambda: Dataset.range(6).shuffle(6, seed=1).cache(),
    "are empty": lambda: Dataset.range(0).batch(2),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message, tmp_path):
    tf.random.set_seed(None)
    data = REFUSED[message]()
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, data=data)


def writes(x):
    tf.io.write_file("written", "content")
    return x


WRITING = {
    r"by cache\('.*'\), which .* Fill it before `fit`": lambda path: Dataset.range(6).cache(path).batch(2),
    r"by snapshot, which .* `tf.data.Dataset.load": lambda path: Dataset.range(6).snapshot(path).batch(2).prefetch(2),
    "by WriteFile, which": lambda path: with_function(writes)(),
    "by cache.file. in a function": lambda path: (
        Dataset.range(2)
        .interleave(lambda x: Dataset.range(3).cache(path))
        .batch(2)
        .apply(tf.data.experimental.assert_cardinality(3))
    ),
}


@pytest.mark.parametrize("use", ["training", "replay", "validation"])
@pytest.mark.parametrize("message", WRITING)
def test_pipelines_that_write_files_are_refused_before_they_are_iterated(message, use, tmp_path):
    data = WRITING[message](str(tmp_path / "files"))
    options = {"validation_data": data} if use == "validation" else {"data": data, "replay": use == "replay"}
    with pytest.raises(ValueError, match=f"for {use} writes files .*{message}"):
        fit(tmp_path / "run", **options)
    assert not list(tmp_path.glob("files*"))
