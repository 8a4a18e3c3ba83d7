"""Exact restoration of `tf.data` pipelines, and errors for pipelines that TensorFlow cannot save.

The reference is a plain iteration over a new dataset. `test_sources` trains on some of these pipelines.
"""

import types

import keras
import numpy as np
import pytest

from idmatters_tf._keras_internals.fit import RunningFit
from idmatters_tf.callbacks._sources import make_source
from idmatters_tf.callbacks._sources.tf_data import ValidationOrder

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
    both = Dataset.zip((Dataset.range(13).shuffle(5, seed=1), seeds))
    return both.map(lambda x, seed: tf.random.stateless_uniform([2], seed=seed)).batch(5)


FINITE = {
    "same order": lambda: Dataset.range(23).shuffle(10, seed=1, reshuffle_each_iteration=False).batch(5),
    "global seed": lambda: Dataset.range(23).shuffle(23).map(lambda x: x, num_parallel_calls=2).batch(5),
    "files": lambda: (
        files().shuffle(5, seed=3).batch(5).prefetch(tf.data.AUTOTUNE).apply(tf.data.experimental.assert_cardinality(5))
    ),
    "cache": lambda: Dataset.range(23).cache().shuffle(10, seed=1).batch(5),
    "random": random_crops,
    "strings, ragged": lambda: (
        Dataset.from_tensor_slices(([b"a", b"bc"] * 4, range(1, 9)))
        .shuffle(8, seed=1)
        .map(lambda text, count: (text, tf.range(count)))
        .ragged_batch(3)
    ),
}
ENDLESS = {
    "two shuffles": lambda: Dataset.range(23).shuffle(23, seed=5).shuffle(9, seed=3).batch(5).repeat().prefetch(3),
    "files": lambda: files().shuffle(5, seed=3).repeat().batch(5).prefetch(2),
    "unknown length": lambda: Dataset.range(24).shuffle(9, seed=3).filter(lambda x: x % 2 == 0).batch(5),
}


def running(dataset, steps_per_epoch=None, class_weight=None):
    """Return a stand-in for a running `fit` with data only."""
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    adapter = TFDatasetAdapter(dataset, class_weight)
    return RunningFit(
        callbacks=[],
        kind="a tf.data.Dataset",
        adapter=adapter,
        data=dataset,
        shuffle=False,
        class_weight=class_weight,
        initial_epoch=0,
        epochs=EPOCHS,
        steps_per_epoch=steps_per_epoch,
        steps_per_execution=1,
        validation_data=None,
        validation_freq=1,
        _list=None,
        _iterator=types.SimpleNamespace(data_adapter=adapter, _distribute_strategy=None),
    )


def contents(batch):
    parts = tf.nest.flatten(batch, expand_composites=True)
    return [np.asarray(part).tolist() for part in parts]


class Taken:
    """Batches that a `fit` reads from a source, with the state after each."""

    def __init__(self, fit, state=None, start=(0, 0)):
        self.source = make_source(fit, seed=0)
        self.source.attach(fit)
        if state is not None:
            self.source.restore(state)
        self.batches, self.states = [], {}
        epoch, offset = start
        steps = self.source.steps_per_epoch
        for epoch in range(start[0], EPOCHS):
            first = offset if epoch == start[0] else 0
            self.source.seek(epoch, first)
            *_, batches = next(fit._iterator._enumerate_iterator())
            for step in range(first, steps):
                self.batches.append(contents(next(batches)))
                following = (epoch, step + 1) if step + 1 < steps else (epoch + 1, 0)
                if state is None and epoch < 2:
                    self.states[following] = self.source.state(following[1])
        self.source.close()


def check_restored(make, steps_per_epoch=None):
    """Check that restored states are followed by the remaining batches of a run. Return all batches.

    The states are those before, after the first and before the last batch of the second epoch.
    """
    keras.utils.set_random_seed(0)
    whole = Taken(running(make(), steps_per_epoch))
    steps = whole.source.steps_per_epoch
    for epoch, offset in ((1, 0), (1, 1), (1, steps - 1)):
        state = whole.states[epoch, offset]
        keras.utils.set_random_seed(0)
        data = make()
        resumed = Taken(running(data, steps_per_epoch), state, (epoch, offset))
        assert resumed.batches == whole.batches[epoch * steps + offset :], (epoch, offset)
    return whole.batches


@pytest.mark.parametrize("name", FINITE)
def test_restored_between_batches(name):
    keras.utils.set_random_seed(0)
    plain = FINITE[name]()
    list(plain)
    expected = [contents(batch) for _ in range(EPOCHS) for batch in plain]
    assert check_restored(FINITE[name]) == expected


@pytest.mark.parametrize("name", ENDLESS)
def test_epochs_of_one_iteration(name):
    found = check_restored(ENDLESS[name], steps_per_epoch=4)
    numbers = [number for batch in found for number in batch[0]]
    period = {"two shuffles": 23, "files": 21, "unknown length": 12}[name]
    passes = [numbers[start : start + period] for start in range(0, len(numbers) - period + 1, period)]
    assert len(passes) > 1
    assert all(sorted(each) == sorted(passes[0]) and len(set(each)) == period for each in passes)
    assert passes[0] != passes[1]


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
def test_refused(message):
    tf.random.set_seed(None)
    try:
        with pytest.raises(ValueError, match=message):
            make_source(running(REFUSED[message]()), seed=0)
    finally:
        keras.utils.set_random_seed(0)


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


USES = {
    "training": lambda data: make_source(running(data), seed=0),
    "replay": lambda data: make_source(running(data), seed=0, replay=True),
    "validation": ValidationOrder,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("message", WRITING)
def test_pipelines_that_write_files_are_refused_before_they_are_iterated(message, use, tmp_path):
    data = WRITING[message](str(tmp_path / "files"))
    with pytest.raises(ValueError, match=f"for {use} writes files .*{message}"):
        USES[use](data)
    assert not list(tmp_path.iterdir())


def test_a_complete_cache_is_restored(tmp_path):
    def make():
        return Dataset.range(23).shuffle(23, seed=5).cache(str(tmp_path / "files")).batch(5)

    keras.utils.set_random_seed(0)
    list(make())
    check_restored(make)
