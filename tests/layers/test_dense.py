import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf.expressivity import ResidualDenseStack, memorize
from idmatters_tf.initializers import IdentityNormal, ScaledGlorot
from idmatters_tf.layers import LinearResidual, RandomProjection, ResidualConv2D, ResidualDense, ShortcutUnit
from tests.support.checks import check_layer, check_saving

rng = np.random.default_rng(1)


def filled(layer, shape):
    layer.build(shape)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.get_weights()])
    return layer


def test_linear_residual_is_h_plus_a_h():
    h = rng.normal(size=(4, 5)).astype("float32")
    layer = filled(LinearResidual(kernel_regularizer="l2"), h.shape)
    a = np.array(layer.kernel).T
    check_layer(layer, h, np.stack([x + a @ x for x in h]))
    np.testing.assert_array_equal(LinearResidual()(h), h)


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_residual_dense_is_h_plus_v_relu(dim, units, skip):
    h = rng.normal(size=(3, dim)).astype("float32")
    layer = filled(ResidualDense(units, skip=skip), h.shape)
    u, s, v = np.array(layer.U).T, np.array(layer.s), np.array(layer.V).T
    expected = np.stack([(x if skip else 0) + v @ np.maximum(u @ x + s, 0) for x in h])
    np.testing.assert_allclose(layer(h), expected, atol=1e-4)


def test_inputs_of_rank_3_and_unknown_last_dimension():
    h = rng.normal(size=(2, 7, 5)).astype("float32")
    for layer in (ResidualDense(3), RandomProjection(3)):
        check_layer(layer, h)
    with pytest.raises(ValueError, match="known last dimension"):
        LinearResidual().build((None, None))


@pytest.mark.parametrize(("depth", "shortcut"), [(1, True), (3, True), (3, False)])
def test_shortcut_unit_places_its_activations(depth, shortcut):
    h = rng.normal(size=(4, 3)).astype("float32")
    layer = filled(ShortcutUnit(depth, pre="relu", mid="tanh", post="sigmoid", shortcut=shortcut), h.shape)
    path = np.maximum(h, 0).T
    for number, kernel in enumerate(layer.kernels):
        path = np.array(kernel).T @ (np.tanh(path) if number else path)
    expected = 1 / (1 + np.exp(-path.T)) + (h if shortcut else 0)
    check_layer(layer, h, expected)


def test_random_projection_is_frozen_and_has_variance_one_over_fan_in():
    layer = RandomProjection(400, seed=3)
    layer.build((None, 256))
    kernel = np.array(layer.kernel)
    assert not layer.trainable_variables
    assert abs(kernel.std() * 16 - 1) < 5 / np.sqrt(2 * kernel.size)
    assert abs(kernel.mean()) * 16 < 5 / np.sqrt(kernel.size)
    h = rng.normal(size=(2, 256)).astype("float32")
    check_layer(layer, h, h @ kernel, atol=1e-4)


def test_random_projection_follows_from_its_seed_and_is_saved(tmp_path):
    first, other = (RandomProjection(3, seed=seed) for seed in (0, 1))
    for layer in (first, other):
        layer.build((None, 4))
    assert not np.array_equal(first.kernel, other.kernel)
    # Fixed numbers of NumPy's generator, equal on every backend.
    np.testing.assert_allclose(first.kernel[0], np.array([0.1257302, -0.1321049, 0.6404227]) / 2, rtol=1e-6)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, RandomProjection(3, seed=9)(inputs))
    model.layers[-1].kernel.assign(np.ones((4, 3)))
    reloaded = check_saving(model, np.eye(4), tmp_path / "model.keras")
    np.testing.assert_array_equal(reloaded.layers[-1].kernel, np.ones((4, 3)))


def test_a_memorizer_in_float32():
    points, labels = rng.normal(size=(60, 5)), rng.integers(0, 4, 60)
    memorizer = memorize(points, labels, width=8, dtype="float32")
    assert memorizer.report.verified["float32"].correct == 60
    assert memorizer.report.verified["float32"].largest_error < 1e-3


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda dtype: LinearResidual(keras.initializers.RandomNormal(stddev=1e-3, seed=0), dtype=dtype), (16,)),
        (lambda dtype: ResidualDense(16, kernel_initializer=ScaledGlorot(seed=0), dtype=dtype), (16,)),
        (lambda dtype: ShortcutUnit(2, mid="relu", kernel_initializer=ScaledGlorot(seed=0), dtype=dtype), (16,)),
        (lambda dtype: ResidualDenseStack(3, 8, 2, keras.initializers.RandomNormal(0, 0.01, 0), dtype=dtype), (16,)),
        (lambda dtype: ResidualConv2D(64, kernel_initializer=IdentityNormal(seed=2), dtype=dtype), (8, 8, 64)),
    ],
)
def test_small_branches_survive_16_bits(make, shape):
    vectors = rng.normal(size=(4, *shape)).astype("float32")
    exact, half = make("float32"), make("mixed_bfloat16")
    branch = np.array(exact(vectors)) - vectors
    inputs = keras.Input(shape)
    model = keras.Model(inputs, half(inputs))
    assert model.output.dtype == keras.backend.standardize_dtype(half(vectors).dtype) == "float32"
    error = np.linalg.norm(np.array(half(vectors)) - vectors - branch)
    assert 0 < error < 0.02 * np.linalg.norm(branch)
