"""Orthogonalised momentum against the singular value decomposition and against plain NumPy."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf.muon import NEWTON_SCHULZ, Muon, orthogonalize
from idmatters_tf.optimizers import Momentum


def polynomial(s, iterations):
    a, b, c = NEWTON_SCHULZ
    for _ in range(iterations):
        s = a * s + b * s**3 + c * s**5
    return s


def by_svd(matrix, iterations):
    U, s, Vt = np.linalg.svd(matrix, full_matrices=False)
    return U * polynomial(s / np.linalg.norm(s), iterations) @ Vt


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31))
def test_singular_values_follow_the_polynomial_and_singular_vectors_stay(rows, columns, iterations, seed):
    matrix = np.random.default_rng(seed).normal(size=(rows, columns))
    found = np.array(orthogonalize(keras.ops.convert_to_tensor(matrix), iterations))
    np.testing.assert_allclose(found, by_svd(matrix, iterations), atol=1e-6)


def test_five_iterations_bring_singular_values_near_one():
    s = polynomial(np.geomspace(0.004, 1.0, 10_000), 5)
    assert s.min() > 0.68
    assert s.max() < 1.21


def test_zeros_stay_zeros():
    assert not np.array(orthogonalize(keras.ops.zeros((3, 5)), 5)).any()


def numpy_path(kernel, gradients, rates, momentum, nesterov, iterations):
    velocity = np.zeros_like(kernel)
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity + gradient
        step = gradient + momentum * velocity if nesterov else velocity
        matrix = step.reshape(-1, step.shape[-1])
        direction = by_svd(matrix, iterations).reshape(kernel.shape)
        moved = kernel - rate * np.linalg.norm(kernel) / np.sqrt(min(matrix.shape)) * direction
        kernel = moved * np.linalg.norm(kernel) / np.linalg.norm(moved)
    return kernel


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(3, 3, 4, 6), (1, 1, 9, 5), (2, 2, 1, 32)])
def test_kernels_follow_the_formula(shape, nesterov):
    rng = np.random.default_rng(0)
    kernel, gradients = rng.normal(size=shape), rng.normal(size=(4, *shape))
    rates = [0.1, 0.2, 0.05, 0.05]
    variable = keras.Variable(kernel, dtype="float32")
    optimizer = Muon(0.1, momentum=0.8, nesterov=nesterov, iterations=4)
    optimizer.build([variable])
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")], [variable])
    expected = numpy_path(kernel, gradients, rates, 0.8, nesterov, 4)
    np.testing.assert_allclose(variable.numpy(), expected, atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(variable.numpy()), np.linalg.norm(kernel), rtol=1e-5)


def test_the_size_of_the_gradient_does_not_matter_for_kernels():
    rng = np.random.default_rng(1)
    kernel, gradient = rng.normal(size=(3, 3, 2, 4)), rng.normal(size=(3, 3, 2, 4))
    ends = []
    for factor in (1e-4, 1.0, 1e4):
        variable = keras.Variable(kernel, dtype="float32")
        optimizer = Muon(0.1)
        optimizer.build([variable])
        optimizer.apply([keras.ops.convert_to_tensor(factor * gradient, "float32")], [variable])
        ends.append(variable.numpy())
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-5)
    np.testing.assert_allclose(ends[2], ends[1], atol=1e-5)


def test_other_variables_descend_by_momentum_at_their_own_rate():
    gradients = np.random.default_rng(2).normal(size=(5, 3, 4)).astype(np.float32)
    ours, theirs = keras.Variable(np.ones((3, 4))), keras.Variable(np.ones((3, 4)))
    for variable, optimizer in ((ours, Muon(0.1, other_rate=0.25)), (theirs, Momentum(0.025, nesterov=True))):
        optimizer.build([variable])
        for gradient in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_fit_save_and_load(tmp_path):
    inputs = keras.Input((8, 8, 3))
    features = keras.layers.Conv2D(8, 3, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(features)))
    model.compile(Muon(0.05, iterations=5, other_rate=0.3), "mse")
    rng = np.random.default_rng(3)
    x = rng.normal(size=(64, 8, 8, 3)).astype(np.float32)
    y = np.stack([x.mean((1, 2, 3)), x[..., 0].max((1, 2))], 1)
    losses = model.fit(x, y, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_kernels_of_zeros_are_refused():
    zeros = keras.Variable(np.zeros((3, 3, 2, 4)), name="kernel")
    with pytest.raises(ValueError, match="'kernel' is zero: it would never learn. Initialise it otherwise"):
        Muon().build([keras.Variable(np.ones((3, 3, 2, 4))), zeros])
    # Biases and the last layer may start there.
    Muon().build([keras.Variable(np.zeros(4)), keras.Variable(np.zeros((5, 2)))])
    Muon(least_rank=5).build([zeros])
