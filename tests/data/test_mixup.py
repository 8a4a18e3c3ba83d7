"""mixup: the proportion against its distribution, and the neighbors against plain loops."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from idmatters_tf.data import mixup


@pytest.mark.parametrize("alpha", [0.2, 3.0])
def test_proportions_are_folded_beta_numbers_and_functions_of_seed_and_step(alpha):
    many = tf.function(lambda seed: tf.map_fn(lambda step: mixup.share(alpha, seed, step), steps, tf.float32))
    steps = tf.range(2000, dtype=tf.int64)
    drawn = many(3).numpy()
    assert drawn.min() >= 0.5
    # P(max(p, 1 - p) <= x) = F(x) - F(1 - x), which is 2 F(x) - 1.
    assert stats.kstest(drawn, lambda x: 2 * stats.beta(alpha, alpha).cdf(x) - 1).pvalue > 0.01
    assert mixup.share(alpha, 3, 7).numpy() == drawn[7]
    assert mixup.share(alpha, 4, 7).numpy() != drawn[7]


def test_a_tiny_alpha_leaves_images_as_they_are():
    assert [float(mixup.share(1e-5, seed, 0)) for seed in range(20)] == [1.0] * 20


def test_neighbours_change_places():
    images = np.random.default_rng(0).normal(size=(6, 2, 3, 1)).astype(np.float32)
    expected = [0.75 * image + 0.25 * images[i + (-1) ** i] for i, image in enumerate(images)]
    np.testing.assert_allclose(mixup.mix(tf.constant(images), tf.constant(0.75)), expected, rtol=1e-6)
    np.testing.assert_array_equal(mixup.swap_neighbors(tf.constant([5, 1, 8, 2])), [1, 5, 2, 8])
