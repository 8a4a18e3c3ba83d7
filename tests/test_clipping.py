"""Adaptive clipping compared with loops over the units."""

import keras
import numpy as np
import pytest

from idmatters_tf.clipping import clip_units, precedes_last_layer

rng = np.random.default_rng(0)


def naive(gradient, weight, bound, epsilon):
    """Clip one unit after the other."""
    units = [...] if weight.ndim < 2 else [(..., unit) for unit in range(weight.shape[-1])]
    found = gradient.copy()
    for unit in units:
        largest = bound * max(np.linalg.norm(weight[unit]), epsilon)
        norm = np.linalg.norm(gradient[unit])
        if norm > largest:
            found[unit] *= largest / norm
    return found


@pytest.mark.parametrize("shape", [(3, 3, 4, 5), (4, 6), (7,), ()])
def test_each_unit_is_clipped_by_its_own_norm(shape):
    # Norms of the units from far below epsilon to far above it, gradients on both sides of the bound, and one of 0.
    sizes = 10.0 ** np.linspace(-4, 1, shape[-1]) if len(shape) > 1 else 0.01
    weight, gradient = rng.normal(size=shape) * sizes, np.array(0.05 * rng.normal(size=shape))
    if len(shape) > 1:
        gradient[..., 1] = 0
    gradients, variable = [keras.ops.convert_to_tensor(gradient)] * 2, keras.Variable(weight, dtype="float64")
    found = clip_units(gradients, [variable] * 2, 0.1, 1e-3, which=[True, False])
    np.testing.assert_array_equal(found[1], gradient)
    expected = naive(gradient, weight, 0.1, 1e-3)
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    clipped = (np.abs(expected) < np.abs(gradient)).reshape(-1, *shape[-1:]).any(axis=0)
    assert clipped.any()
    assert len(shape) < 2 or not clipped.all()


def test_the_last_layer_is_excluded():
    layers = [keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(4), keras.layers.ReLU()]
    model = keras.Sequential(layers)
    assert precedes_last_layer(model) == [True, True, False, False]
    layers[2].trainable = False
    assert precedes_last_layer(model) == [True, True]


def test_a_bound_of_zero_raises():
    with pytest.raises(ValueError, match="`bound` must be positive"):
        clip_units([], [], 0.0)
