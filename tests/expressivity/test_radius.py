"""Tests of certified radii: the network is affine in the ball, and the radius is tight."""

import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.expressivity import certified_radii, memorize


def sample(n, d, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.integers(0, classes, n)


@pytest.mark.parametrize(("n", "d", "classes", "width"), [(60, 5, 4, 8), (47, 3, 6, 5), (30, 4, 3, 1)])
def test_inside_the_ball_the_network_is_affine_and_keeps_its_answer(n, d, classes, width):
    x, labels = sample(n, d, classes)
    model = memorize(x, labels, classes, width=width, check=())
    radii = certified_radii(model, x)
    assert (radii > 0).all()
    rng = np.random.default_rng(1)
    outputs = np.array(model(x))
    for _ in range(20):
        step = rng.standard_normal(x.shape)
        step *= 0.999 * radii[:, None] / np.linalg.norm(step, axis=1, keepdims=True)
        ahead, back = np.array(model(x + step)), np.array(model(x - step))
        assert (ahead.argmax(axis=1) == labels).all()
        np.testing.assert_allclose(ahead + back, 2 * outputs, atol=1e-7)


def test_the_radius_is_where_the_first_activation_changes_or_the_answer_does():
    x, labels = sample(40, 4, 3, seed=5)
    model = memorize(x, labels, 3, width=8, check=())
    radii = certified_radii(model, x)

    points = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(points)
        outputs = model(points)
    jacobians, outputs = tape.batch_jacobian(outputs, points).numpy(), outputs.numpy()
    run = tf.function(model)
    # On a larger sphere the network differs somewhere from its affine function at the center.
    changed, rng = np.zeros(len(x), bool), np.random.default_rng(2)
    for _ in range(300):
        step = rng.standard_normal(x.shape)
        step *= 2 * radii[:, None] / np.linalg.norm(step, axis=1, keepdims=True)
        found, affine = run(tf.constant(x + step)).numpy(), outputs + np.einsum("ncd,nd->nc", jacobians, step)
        changed |= np.abs(found - affine).max(axis=1) > 1e-6
        changed |= affine.argmax(axis=1) != labels
    assert changed.mean() > 0.9


def test_other_constructions_raise():
    x, labels = sample(20, 3, 3)
    with pytest.raises(ValueError, match="must be of construction='hardt-ma'"):
        certified_radii(memorize(x, labels, construction="yun"), x)
