import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ArrayBatches, FunctionBatches

X = np.arange(10.0)[:, None] * [1, 10]
Y = np.arange(10)


def epoch(batches, number):
    return np.concatenate([batches.arrays(step)[1] for step in range(4 * number, 4 * number + 4)])


def test_the_order_of_an_epoch_is_a_function_of_seed_and_epoch():
    one, same, other = (ArrayBatches(X, Y, batch_size=3, seed=seed) for seed in (5, 5, 6))
    orders = [epoch(one, number) for number in (0, 1, 2)]
    for order in orders:
        assert sorted(order) == list(range(10))
    assert len({tuple(order) for order in [*orders, epoch(other, 0)]}) == 4
    # Steps in any order.
    np.testing.assert_array_equal(epoch(same, 2), orders[2])
    np.testing.assert_array_equal(same.arrays(4)[1], orders[1][:3])
    same.seek(2, 1)
    assert same.num_batches == 3
    np.testing.assert_array_equal(np.concatenate([same[i][1] for i in range(3)]), orders[2][3:])


def test_rows_of_arrays_match_and_are_converted_as_in_fit():
    batches = ArrayBatches({"a": X, "b": [X, Y]}, Y, X[:, 0], batch_size=4)
    x, y, weight = batches.arrays(2)
    assert len(y) == 2
    np.testing.assert_array_equal(x["a"][:, 0], y)
    np.testing.assert_array_equal(x["b"][0][:, 1], 10 * y)
    np.testing.assert_array_equal(weight, y)
    assert (x["a"].dtype, weight.dtype, x["b"][1].dtype) == (keras.config.floatx(), keras.config.floatx(), Y.dtype)
    assert isinstance(x["b"], tuple)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ArrayBatches(X, Y[:9]), r"arrays of lengths \[9, 10\]"),
        (lambda: ArrayBatches(X[:0]), r"at least one.*lengths \[0\]"),
        (lambda: ArrayBatches(X, sample_weight=Y), "`sample_weight` requires targets"),
        (lambda: ArrayBatches(X, seed=-1), "`seed` must be a non-negative integer. Received: seed=-1"),
        (lambda: FunctionBatches(X, 3), "`function` must be a function of the step"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
