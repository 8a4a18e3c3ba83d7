"""NorMuon's normalization, compared with its formula in NumPy."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from idmatters_tf.optimizers import Muon
from idmatters_tf.surgery import deepen

# Keras keeps the learning rate in float32.
RATE, BETA, NEURON_BETA, DECAY = 1 / 128, 0.9, 0.95, 0.125


@pytest.fixture(autouse=True)
def precision(default_policy):
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)


def orthogonalized(matrix, iterations=5):
    """Return Newton-Schulz iterations of Jordan et al. (2024), as published."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / np.linalg.norm(matrix)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class NorMuon:
    """Algorithm 1 of Li et al. (2025) for a matrix with one row for each neuron."""

    def __init__(self):
        self.momentum = self.squares = 0.0

    def direction(self, gradient):
        self.momentum = BETA * self.momentum + (1 - BETA) * gradient
        o = orthogonalized(self.momentum)
        self.squares = NEURON_BETA * self.squares + (1 - NEURON_BETA) * (o * o).mean(1, keepdims=True)
        return o / (np.sqrt(self.squares) + 1e-8)

    def step(self, weights, gradient):
        direction = self.direction(gradient)
        rate = 0.2 * RATE * np.sqrt(direction.size) / np.linalg.norm(direction)
        return weights - RATE * DECAY * weights - rate * direction


def optimizer(norm="free", **options: Any):
    settings: dict[str, Any] = {"iterations": 5, "orthogonalize_dtype": "float64", "neuron_beta": NEURON_BETA}
    return Muon(RATE, BETA, nesterov=False, norm=norm, **settings | options)


def network(*hidden):
    model: Any = keras.Sequential([keras.Input((hidden[0].units,)), *hidden, layers.Dense(2)])
    return model


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 3), (3, 5)])
def test_steps_are_those_of_the_algorithm(inputs, outputs):
    model = network(layers.Dense(inputs, name="first"), layers.Dense(outputs, name="hidden"))
    muon = optimizer(scale="rms", weight_decay=DECAY).build_for(model)
    kernel, reference = model.get_layer("hidden").kernel, NorMuon()
    expected = np.array(kernel).T
    rng = np.random.default_rng(0)
    for _ in range(6):
        gradients = [rng.normal(size=variable.shape) for variable in model.trainable_variables]
        index = next(i for i, variable in enumerate(model.trainable_variables) if variable is kernel)
        expected = reference.step(expected, gradients[index].T)
        muon.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], model.trainable_variables)
        np.testing.assert_allclose(np.array(kernel).T, expected, rtol=1e-10, atol=1e-12)


def test_kept_norms_turn_by_the_rate():
    model = network(layers.Dense(4, name="hidden"))
    muon = optimizer("keep").build_for(model)
    kernel, reference = model.get_layer("hidden").kernel, NorMuon()
    rng = np.random.default_rng(0)
    for _ in range(4):
        before = np.array(kernel)
        gradients = [rng.normal(size=variable.shape) for variable in model.trainable_variables]
        direction = reference.direction(gradients[0].T).T
        norm = np.linalg.norm(before)
        moved = before - RATE * norm * direction / np.linalg.norm(direction)
        muon.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], model.trainable_variables)
        np.testing.assert_allclose(kernel, moved * norm / np.linalg.norm(moved), rtol=1e-10, atol=1e-12)


def test_neurons_have_equal_first_steps_in_each_matrix():
    inputs = keras.Input((5, 6))
    attention = layers.MultiHeadAttention(2, 3, name="attention")
    model: Any = keras.Model(inputs, layers.Dense(2)(attention(inputs, inputs)))
    muon = optimizer(per_head=True).build_for(model)
    kernel = attention.query_dense.kernel
    before = np.array(kernel)
    rng = np.random.default_rng(0)
    gradients = [keras.ops.convert_to_tensor(rng.normal(size=v.shape)) for v in model.trainable_variables]
    muon.apply(gradients, model.trainable_variables)
    norms = np.linalg.norm(np.array(kernel) - before, axis=0)
    np.testing.assert_allclose(norms, norms[0, 0], rtol=1e-6)
    # Zero gradients give no steps.
    zeros = optimizer().build_for(model)
    before = np.array(kernel)
    zeros.apply([keras.ops.zeros_like(gradient) for gradient in gradients], model.trainable_variables)
    np.testing.assert_array_equal(kernel, before)


def test_state_is_saved_and_carried(tmp_path):
    model = network(layers.Dense(4, name="one"), layers.Dense(4, name="hidden"))
    x, y = np.random.default_rng(0).normal(size=(2, 16, 4))
    model.compile(optimizer().build_for(model), "mse")
    model.fit(x, y[:, :2], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    deeper: Any = deepen(model, "hidden", layers.Dense(4, kernel_initializer="identity"), optimizer=model.optimizer)
    assert loaded.optimizer.neuron_beta == NEURON_BETA
    for other in (loaded, deeper):
        for old, new in zip(model.optimizer._neuron_squares, other.optimizer._neuron_squares, strict=False):
            if old is not None and old.path == new.path:
                np.testing.assert_array_equal(old, new)
                assert np.any(old)
    for each in (model, loaded):
        each.fit(x, y[:, :2], shuffle=False, verbose=0)
    for old, new in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("value", [1.0, -0.1])
def test_wrong_decay_rates(value):
    with pytest.raises(ValueError, match=rf"`neuron_beta` must be None or in \[0, 1\). Received: neuron_beta={value}"):
        Muon(neuron_beta=value)
