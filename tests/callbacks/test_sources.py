"""Batches of each kind of data in `fit`, also after a resume, compared with those computed from the data directly.

The learning rate of step s is 2^s, and the gradient of the loss is the sum of the batch's weighted rows. The weights of
the model are therefore integers whose binary digits are the steps at which each example was used. `test_backends` runs
the tests on JAX. `test_killed_fit` trains with compiled steps on such data.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ArrayBatches, ExactResume, FunctionBatches
from tests.support.stopped_fits import Killed, kill_at

EXAMPLES, BATCH, EPOCHS, SEED = 10, 4, 4, 7
X = np.eye(EXAMPLES, dtype="float32")
Y = np.arange(EXAMPLES) % 2
WEIGHT = 1.0 + np.arange(EXAMPLES) % 3


class Powers(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return keras.ops.take(keras.ops.convert_to_tensor(2.0 ** np.arange(24), "float32"), step)

    def get_config(self):
        return {}


class Output(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return y_pred[:, 0]


def rows(indices):
    return X[indices], Y[indices]


def chunks(indices):
    return [indices[start : start + BATCH] for start in range(0, len(indices), BATCH)]


def shuffled(count, epoch):
    return np.random.default_rng((SEED, epoch)).permutation(count)


class Chunks(keras.utils.PyDataset):
    """Dataset whose order may change between epochs."""

    def __init__(self, **options):
        super().__init__(**options)
        self.indices, self.rng = np.arange(EXAMPLES), np.random.default_rng(1)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return rows(self.indices[index * BATCH : (index + 1) * BATCH])


class OwnGenerator(Chunks):
    def on_epoch_end(self):
        self.rng.shuffle(self.indices)


class GlobalGenerators(Chunks):
    shuffles = True

    def on_epoch_begin(self):
        if self.shuffles:
            np.random.shuffle(self.indices)  # noqa: NPY002

    def on_epoch_end(self):
        self.indices = np.arange(EXAMPLES)
        if self.shuffles:
            random.shuffle(self.indices)


class InOrder(GlobalGenerators):
    shuffles = False


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, index):
        return rows(np.random.default_rng((3, index)).permutation(EXAMPLES)[:BATCH])


def endless(batches) -> Iterator[Any]:
    return (each for epoch in itertools.count() for each in batches(epoch))


def orders_of_own_generator():
    """Yield the expected batches. Keras calls `on_epoch_end` once before training."""
    data = OwnGenerator()
    while True:
        data.on_epoch_end()
        yield from chunks(data.indices.copy())


def map_dataset():
    import grain

    data = grain.MapDataset.source(range(EXAMPLES)).seed(5).shuffle()
    data = data.random_map(lambda index, rng: (X[index], Y[index], np.float32(rng.integers(1, 3))))
    return data.batch(BATCH)


def batches_of_grain():
    data = map_dataset()
    return (data[step] for step in itertools.count())


def tensors():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y))


def shuffled_twice():
    return tensors().shuffle(EXAMPLES).shuffle(3, seed=4).batch(BATCH).prefetch(2)


def iterated(make) -> Iterator[Any]:
    """Return the batches of a `tf.data.Dataset` after one iteration, as in ExactResume and in Keras on JAX."""
    keras.utils.set_random_seed(0)
    data = make()
    for _ in range(1 + (keras.backend.backend() == "jax")):
        list(data)
    return (tuple(part.numpy() for part in each) for _ in itertools.count() for each in data)


@dataclasses.dataclass
class Case:
    """Arguments of `fit`, the expected batches by step, and the number of batches in an epoch."""

    fit: Callable[[], dict[str, Any]]
    batches: Callable[[], Iterator[Any]] | None
    steps: int = 3
    steps_per_execution: int = 1


CASES = {
    "arrays": Case(
        lambda: {"x": X, "y": Y, "sample_weight": WEIGHT, "batch_size": BATCH},
        lambda: endless(lambda epoch: [(*rows(each), WEIGHT[each]) for each in chunks(shuffled(EXAMPLES, epoch))]),
    ),
    "tensors, class weights, part for validation": Case(
        lambda: {
            "x": keras.ops.convert_to_tensor(X),
            "y": keras.ops.convert_to_tensor(Y),
            "batch_size": BATCH,
            "class_weight": {0: 1.0, 1: 3.0},
            "validation_split": 0.2,
        },
        lambda: endless(lambda epoch: [(*rows(each), 1 + 2 * Y[each]) for each in chunks(shuffled(8, epoch))]),
        steps=2,
    ),
    "ArrayBatches, epochs of other lengths, several steps per execution": Case(
        lambda: {"x": ArrayBatches(X, Y, batch_size=BATCH, seed=SEED), "steps_per_epoch": 5},
        lambda: endless(lambda epoch: map(rows, chunks(shuffled(EXAMPLES, epoch)))),
        steps=5,
        steps_per_execution=2,
    ),
    "PyDataset": Case(
        lambda: {"x": Chunks(), "class_weight": {1: 3.0}},
        lambda: endless(
            lambda epoch: [
                (*rows(each), 1 + 2 * Y[each])
                for index in shuffled(3, epoch)
                for each in [chunks(np.arange(EXAMPLES))[index]]
            ]
        ),
    ),
    "PyDataset with a generator, workers": Case(
        lambda: {"x": OwnGenerator(workers=2), "shuffle": False}, lambda: map(rows, orders_of_own_generator())
    ),
    "PyDataset with the global generators": Case(lambda: {"x": GlobalGenerators(), "validation_data": InOrder()}, None),
    "infinite PyDataset": Case(
        lambda: {"x": Endless(), "steps_per_epoch": 3}, lambda: (Endless()[step] for step in itertools.count())
    ),
    "Grain MapDataset": Case(lambda: {"x": map_dataset()}, batches_of_grain),
    "Grain IterDataset, several steps per execution": Case(
        lambda: {"x": map_dataset().to_iter_dataset(), "steps_per_epoch": 4},
        lambda: (each for _ in itertools.count() for each in map_dataset().to_iter_dataset()),
        steps=4,
        steps_per_execution=2,
    ),
    "tf.data, two shuffles, class weights": Case(
        lambda: {"x": shuffled_twice(), "class_weight": {0: 1.0, 1: 3.0}},
        lambda: ((x, y, 1 + 2 * y) for x, y in iterated(shuffled_twice)),
    ),
}


def train(case, folder, kill):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((EXAMPLES,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(
        keras.optimizers.SGD(Powers()),
        Output(reduction="sum"),
        steps_per_execution=case.steps_per_execution,
        run_eagerly=case.steps_per_execution == 1,
        jit_compile=False,
    )
    resume = ExactResume(folder, every=2, seed=SEED)
    # Hooks of the data must not depend on other random numbers.
    draw = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: np.random.random())  # noqa: NPY002
    model.fit(**case.fit(), epochs=EPOCHS, callbacks=[resume, draw, kill], verbose=0)
    return -keras.ops.convert_to_numpy(model.layers[0].kernel)[:, 0], resume.resumed_at


@pytest.mark.parametrize("name", CASES)
def test_batches_of_the_data(name, tmp_path):
    if "Grain" in name:
        pytest.importorskip("grain")
    case = CASES[name]
    # Three batches after two epochs, or the last batch of an execution after that.
    stop = -(-3 // case.steps_per_execution) * case.steps_per_execution
    epoch, batch = divmod(2 * case.steps + stop - 1, case.steps)
    with pytest.raises(Killed):
        train(case, tmp_path, kill_at(("batch", epoch, batch)))
    weights, resumed_at = train(case, tmp_path, kill_at(None))
    # The checkpoint is within an epoch if an epoch has more than two batches.
    assert resumed_at == 2 * case.steps + 2
    total = case.steps * EPOCHS
    if case.batches is None:
        np.testing.assert_array_equal(weights, train(case, tmp_path / "whole", kill_at(None))[0])
        order = (weights.astype(int)[None] >> np.arange(total)[:, None]) & 1
        epochs = order.reshape(EPOCHS, case.steps, EXAMPLES)
        assert (epochs.sum(1) == 1).all()
        assert len({epoch.tobytes() for epoch in epochs}) == EPOCHS
        return
    expected = np.zeros(EXAMPLES)
    for step, (x, _, *weight) in zip(range(total), case.batches(), strict=False):
        expected += 2.0**step * (x * (weight[0][:, None] if weight else 1)).sum(0)
    np.testing.assert_array_equal(weights, expected)


PAIRS = np.arange(10.0)[:, None] * [1, 10]
NUMBERS = np.arange(10)


def order_of(batches, number):
    return np.concatenate([batches.arrays(step)[1] for step in range(4 * number, 4 * number + 4)])


def test_the_order_of_an_epoch_is_a_function_of_seed_and_epoch():
    one, same, other = (ArrayBatches(PAIRS, NUMBERS, batch_size=3, seed=seed) for seed in (5, 5, 6))
    orders = [order_of(one, number) for number in (0, 1, 2)]
    for order in orders:
        assert sorted(order) == list(range(10))
    assert len({tuple(order) for order in [*orders, order_of(other, 0)]}) == 4
    # Steps in any order.
    np.testing.assert_array_equal(order_of(same, 2), orders[2])
    np.testing.assert_array_equal(same.arrays(4)[1], orders[1][:3])
    same.seek(2, 1)
    assert same.num_batches == 3
    np.testing.assert_array_equal(np.concatenate([same[i][1] for i in range(3)]), orders[2][3:])


def test_rows_of_arrays_match_and_are_converted_as_in_fit():
    batches = ArrayBatches({"a": PAIRS, "b": [PAIRS, NUMBERS]}, NUMBERS, PAIRS[:, 0], batch_size=4)
    x, y, weight = batches.arrays(2)
    assert len(y) == 2
    np.testing.assert_array_equal(x["a"][:, 0], y)
    np.testing.assert_array_equal(x["b"][0][:, 1], 10 * y)
    np.testing.assert_array_equal(weight, y)
    assert x["a"].dtype == weight.dtype == keras.config.floatx()
    assert x["b"][1].dtype == NUMBERS.dtype
    assert isinstance(x["b"], tuple)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ArrayBatches(PAIRS, NUMBERS[:9]), r"arrays of lengths \[9, 10\]"),
        (lambda: ArrayBatches(PAIRS[:0]), r"at least one.*lengths \[0\]"),
        (lambda: ArrayBatches(PAIRS, sample_weight=NUMBERS), "`sample_weight` requires targets"),
        (lambda: ArrayBatches(PAIRS, seed=-1), "`seed` must be a non-negative integer. Received: seed=-1"),
        (lambda: FunctionBatches(PAIRS, 3), "`function` must be a function of the step"),
    ],
)
def test_errors_of_batches(make, message):
    with pytest.raises(ValueError, match=message):
        make()
