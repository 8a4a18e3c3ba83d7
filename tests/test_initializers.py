import keras
import numpy as np
import pytest

from idmatters_tf.initializers import IdentityNormal, ScaledGlorot, StandardNormal

EXPECTED = [
    (IdentityNormal(seed=1), lambda k, i, c: 1 / (k**2 * c)),
    (StandardNormal(seed=1), lambda k, i, c: 1 / (k * np.sqrt(c))),
    (ScaledGlorot(seed=1), lambda k, i, c: 0.01 * np.sqrt(2 / (k**2 * (i + c)))),
    (ScaledGlorot(scale=1, seed=1), lambda k, i, c: np.sqrt(2 / (k**2 * (i + c)))),
]


@pytest.mark.parametrize(("initializer", "formula"), EXPECTED)
@pytest.mark.parametrize(("k", "i", "c"), [(3, 64, 128), (1, 100, 300), (5, 20, 64)])
def test_sample_has_the_stated_standard_deviation(initializer, formula, k, i, c):
    values = np.array(initializer((k, k, i, c)))
    n = values.size
    std = formula(k, i, c)
    # Five standard errors of the mean and of the standard deviation of n normal numbers.
    assert abs(values.mean()) < 5 * std / np.sqrt(n)
    assert abs(values.std() / std - 1) < 5 / np.sqrt(2 * n)
    assert 0.2 < np.mean(np.abs(values) > std) / 0.3173 < 1.2, "a normal distribution"


@pytest.mark.parametrize("initializer", [entry[0] for entry in EXPECTED])
def test_config_round_trip_and_repeatability(initializer):
    config = keras.initializers.serialize(initializer)
    copy = keras.initializers.deserialize(config)
    assert copy.get_config() == initializer.get_config()
    np.testing.assert_array_equal(copy((3, 3, 4, 5)), initializer((3, 3, 4, 5)))
    assert initializer((2, 3), dtype="float64").dtype == "float64"


def test_without_a_seed_instances_differ_and_the_global_seed_rules():
    assert not np.array_equal(IdentityNormal()((3, 4)), IdentityNormal()((3, 4)))
    values = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        values.append(np.array(IdentityNormal()((3, 4))))
    np.testing.assert_array_equal(*values)


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"rank 2 or more.*\(5,\)"):
        IdentityNormal()((5,))
    with pytest.raises(ValueError, match="`seed` of IdentityNormal must be a non-negative.*-1"):
        IdentityNormal(seed=-1)
    with pytest.raises(ValueError, match="`scale`.*positive"):
        ScaledGlorot(scale=0)
