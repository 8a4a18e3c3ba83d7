"""Orthogonalized momentum compared with the singular value decomposition and with NumPy."""

import importlib.util
import json

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from idmatters_tf.layers import ResidualConv2D, ResidualDenseStack, ScaledConv2D, ScaledResidualConv2D
from idmatters_tf.optimizers.muon import Muon, orthogonalize
from tests.support.muon_fits import by_svd, polynomial


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31))
def test_singular_values_follow_the_polynomial_and_singular_vectors_stay(rows, columns, iterations, seed):
    matrix = np.random.default_rng(seed).normal(size=(rows, columns))
    orthogonal = np.array(orthogonalize(keras.ops.convert_to_tensor(matrix), iterations))
    np.testing.assert_allclose(orthogonal, by_svd(matrix, iterations), atol=1e-6)


def test_five_iterations_bring_singular_values_near_one_and_zeros_stay_zeros():
    s = polynomial(np.geomspace(0.004, 1.0, 10_000), 5)
    assert s.min() > 0.68
    assert s.max() < 1.21
    assert not np.array(orthogonalize(keras.ops.zeros((3, 5)), 5)).any()


@pytest.mark.parametrize(("dtype", "atol"), [("float16", 0.01), ("bfloat16", 0.1)])
def test_16_bits_are_enough_for_matrices_of_any_norm(dtype, atol):
    matrix = np.random.default_rng(1).normal(size=(7, 5))
    for factor in (1e-9, 1.0, 1e6):
        orthogonal = orthogonalize(keras.ops.convert_to_tensor(factor * matrix, "float32"), 3, dtype)
        assert keras.backend.standardize_dtype(orthogonal.dtype) == dtype
        np.testing.assert_allclose(keras.ops.cast(orthogonal, "float32"), by_svd(matrix, 3), atol=atol)
    assert not np.any(orthogonalize(keras.ops.zeros((3, 5), dtype)))


def numpy_path(kernel, gradients, rates, momentum, nesterov, iterations, norm="keep"):
    velocity = np.zeros_like(kernel)
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity + gradient
        step = gradient + momentum * velocity if nesterov else velocity
        matrix = step.reshape(-1, step.shape[-1])
        direction = by_svd(matrix, iterations).reshape(kernel.shape)
        if norm == "free":
            kernel = kernel - rate * np.sqrt(matrix.shape[1] / matrix.shape[0]) * direction
        else:
            moved = kernel - rate * np.linalg.norm(kernel) / np.sqrt(min(matrix.shape)) * direction
            kernel = moved * np.linalg.norm(kernel) / np.linalg.norm(moved)
    return kernel


SHAPES = [(3, 3, 4, 6), (1, 1, 9, 5), (2, 2, 1, 32)]


@pytest.mark.parametrize(("norm", "nesterov"), [("keep", False), ("keep", True), ("free", True)])
def test_kernels_follow_the_formula_also_if_some_have_equal_shapes(norm, nesterov):
    rng = np.random.default_rng(5)
    shapes = [SHAPES[0], SHAPES[1], SHAPES[0], SHAPES[2], SHAPES[0]]
    starts, rates = [rng.normal(size=shape) for shape in shapes], [0.1, 0.2, 0.05]
    gradients = [[rng.normal(size=shape) for shape in shapes] for _ in rates]
    variables = [keras.Variable(start, dtype="float32", name="kernel") for start in starts]
    optimizer = Muon(0.1, momentum=0.8, nesterov=nesterov, norm=norm, iterations=4)
    optimizer.build(variables)
    for step, rate in zip(gradients, rates, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32") for gradient in step], variables)
    for place, (variable, start) in enumerate(zip(variables, starts, strict=True)):
        expected = numpy_path(start, [step[place] for step in gradients], rates, 0.8, nesterov, 4, norm)
        np.testing.assert_allclose(variable.numpy(), expected, atol=2e-5)


def test_save_and_load(tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(2)])
    model.compile(Muon(0.05, iterations=5, other_rate=0.3, norm="free", weight_decay=0.1), "mse")
    rng = np.random.default_rng(3)
    model.fit(rng.normal(size=(4, 8, 8, 3)), rng.normal(size=(4, 2)), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for ours, theirs in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_kernels_of_zeros_are_refused():
    zeros = keras.Variable(np.zeros((3, 3, 2, 4)), name="kernel")
    with pytest.raises(ValueError, match="'kernel' is zero and would never learn. Initialize it otherwise"):
        Muon().build([keras.Variable(np.ones((3, 3, 2, 4)), name="kernel"), zeros])
    # Biases and the last layer may start at zero.
    Muon().build([keras.Variable(np.zeros(4), name="bias"), keras.Variable(np.zeros((5, 2)), name="kernel")])
    Muon(least_rank=5).build([zeros])
    Muon(norm="free").build([zeros])
    with pytest.raises(ValueError, match="must be None with norm='keep'.*weight_decay=0.1. Use norm='free'"):
        Muon(weight_decay=0.1)


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
def test_fit_follows_the_formula_in_every_mode(backend, program):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = program("tests.support.muon_fits", env={"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert len(results) == (6 if backend == "tensorflow" else 5)
    for name, (kernel, bias, expected_kernel, expected_bias) in results.items():
        np.testing.assert_allclose(kernel, expected_kernel, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(bias, expected_bias, atol=2e-5, err_msg=name)


IMAGES, SEQUENCES, VECTORS = (8, 8, 4), (8, 4), (4,)
LAYERS = [
    (layers.Dense(5), VECTORS, ["kernel"]),
    (layers.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"), SEQUENCES, ["kernel"]),
    (layers.EinsumDense("abc,cde->abde", (None, 5, 6), bias_axes="de"), SEQUENCES, []),
    (layers.MultiHeadAttention(2, 3), (SEQUENCES, SEQUENCES), ["attention_output/kernel"]),
    (layers.MultiHeadAttention(2, 3, use_bias=False), (SEQUENCES, SEQUENCES), []),
    (layers.Conv2D(5, 3), IMAGES, ["kernel"]),
    (layers.Conv2D(4, 3, use_bias=False, groups=2), IMAGES, ["kernel"]),
    (layers.Conv2DTranspose(4, 3, use_bias=False), IMAGES, []),
    (layers.SeparableConv2D(5, 3, depth_multiplier=2), IMAGES, ["pointwise_kernel"]),
    (layers.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False), IMAGES, []),
    (layers.DepthwiseConv2D(3, depth_multiplier=2, name="spatial"), IMAGES, []),
    (layers.Embedding(5, 3), VECTORS, []),
    (layers.LSTM(3), SEQUENCES, ["lstm_cell/kernel", "lstm_cell/recurrent_kernel"]),
    (layers.LayerNormalization(axis=(1, 2, 3)), IMAGES, []),
    (ScaledConv2D(5, 3), IMAGES, ["kernel"]),
    (ScaledResidualConv2D(5), IMAGES, ["conv1/kernel", "conv2/kernel"]),
    (ResidualConv2D(5, shortcut="projection"), IMAGES, ["skip/kernel", "conv1/kernel", "conv2/kernel"]),
    (ResidualDenseStack(2, 3), VECTORS, []),
]


@pytest.mark.parametrize(("layer", "shapes", "expected"), LAYERS, ids=[type(layer).__name__ for layer, *_ in LAYERS])
def test_only_kernels_whose_axes_are_known_are_orthogonalized(layer, shapes, expected):
    layer(*map(keras.Input, shapes if isinstance(shapes[0], tuple) else (shapes,)))
    variables = layer.trainable_variables
    selected = [variable.path for variable in Muon(least_rank=2).select_kernels(variables)]
    assert sorted(selected) == sorted(f"{layer.name}/{name}" for name in expected)
    # Other variables descend by momentum, without a gradient that is orthogonalized.
    optimizer = Muon(0.5, norm="free", other_rate=1.0, momentum=0.0, least_rank=2)
    before = [np.array(variable) for variable in variables]
    optimizer.apply([keras.ops.ones(variable.shape) for variable in variables], variables)
    for old, variable in zip(before, variables, strict=True):
        descended = np.allclose(old - variable, 0.5, atol=1e-6)
        assert descended == (variable.path not in selected)
