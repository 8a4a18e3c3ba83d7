"""Orthogonalized momentum compared with the singular value decomposition and with NumPy."""

import importlib.util

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from idmatters_tf import layers as our_layers
from idmatters_tf.expressivity import ResidualDenseStack
from idmatters_tf.optimizers import KernelMatrices, Muon, layer_matrices
from idmatters_tf.optimizers.building import build_optimizer
from idmatters_tf.optimizers.orthogonalization import orthogonalize
from tests.support import muon_fits, two_devices
from tests.support.muon_fits import by_svd, moved, polynomial
from tests.support.processes import run_forked


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


@pytest.mark.parametrize(
    ("dtype", "iterations"), [("float32", 10), ("float32", 20), ("float16", 10), ("bfloat16", 5), ("bfloat16", 10)]
)
@pytest.mark.parametrize("exponent", [3, 8, 300])
def test_small_singular_values_do_not_grow_past_the_largest_by_rounding(dtype, iterations, exponent):
    left, _, right = np.linalg.svd(np.random.default_rng(0).normal(size=(90, 40)), full_matrices=False)
    matrix = left * np.logspace(0, -exponent, 40) @ right
    orthogonal = orthogonalize(keras.ops.convert_to_tensor(matrix, "float32"), iterations, dtype)
    assert np.linalg.norm(keras.ops.cast(orthogonal, "float32"), 2) < 1.25


class Parts(keras.Model):
    """A model of layers and a last layer, which the optimizer treats differently."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = list(parts)
        self.head = layers.Dense(2, name="head")
        self.head.build((None, 2))


@pytest.mark.parametrize("nesterov", [False, True])
def test_kernels_follow_the_formula_also_if_some_have_equal_shapes(nesterov):
    rng = np.random.default_rng(5)
    units, rates = [6, 5, 6, 32, 6], [0.1, 0.2, 0.05]
    dense = [layers.Dense(columns, use_bias=False) for columns in units]
    for layer in dense:
        layer.build((None, 9))
    variables = [layer.kernel for layer in dense]
    expected = [np.array(variable) for variable in variables]
    velocities = [np.zeros_like(kernel) for kernel in expected]
    optimizer = Muon(0.1, momentum=0.8, nesterov=nesterov, iterations=4).build_for(Parts(*dense), variables)
    for rate in rates:
        optimizer.learning_rate = rate
        gradients = [rng.normal(size=kernel.shape).astype("float32") for kernel in expected]
        optimizer.apply(gradients, variables)
        for index, gradient in enumerate(gradients):
            velocities[index] = 0.8 * velocities[index] + gradient
            step = gradient + 0.8 * velocities[index] if nesterov else velocities[index]
            expected[index] = moved(expected[index], step, rate, "keep", iterations=4)
    for variable, kernel in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable, kernel, atol=2e-5)


def test_kernels_of_zeros_raise():
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.Conv2D(2, 3)])
    first, last = (layer.kernel for layer in model.layers)
    # Biases and the last layer may start at zero.
    last.assign(keras.ops.zeros_like(last))
    Muon().build(model.trainable_variables)
    first.assign(keras.ops.zeros_like(first))
    with pytest.raises(ValueError, match="conv2d.*/kernel' is zero and would never learn. Initialize it otherwise"):
        Muon().build(model.trainable_variables)
    with pytest.raises(ValueError, match="conv2d.*/kernel' is zero"):
        Muon().build_for(model)
    Muon(matrices=lambda *_: None).build_for(model)
    Muon(norm="free").build(model.trainable_variables)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "kept"}, "norm"),
        ({"weight_decay": 0.1}, "`weight_decay` must be left out with norm='keep'.*weight_decay=0.1. Use norm='free'"),
        ({"scale": "rms"}, "`scale` must be left out with norm='keep'"),
        ({"iterations": 0}, "`iterations` must be a positive integer"),
        ({"other": "adamw", "momentum": 0.0}, "`momentum` must be positive"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Muon(**arguments)


def test_fit_follows_the_formula_in_every_mode():
    muon_fits.on_one_device()


def test_fit_follows_the_formula_on_two_devices():
    done = run_forked("tests.support.muon_fits", devices=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_fit_follows_the_formula_on_jax(program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", two_devices.VARIABLE: "2"}
    done = program("tests.support.muon_fits", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal"


IMAGES, SEQUENCES, VECTORS, PAIR = (5, 5, 4), (6, 4), (4,), ((6, 4), (6, 4))


def flat(kernel):
    """Return the matrix of (all axes but the last) x (last axis)."""
    return [kernel.reshape(-1, kernel.shape[-1])]


def wide(kernel):
    """Return the matrix of (first axis) x (all other axes)."""
    return [kernel.reshape(len(kernel), -1)]


def turned(kernel):
    """Return the matrix of (last axis) x (all other axes)."""
    return [kernel.reshape(-1, kernel.shape[-1]).T]


def gates(count, cell):
    return {f"{cell}/{name}": lambda kernel: np.split(kernel, count, 1) for name in ("kernel", "recurrent_kernel")}


class Gated(layers.Layer):
    """A layer of another kind with weights of its own."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 5))
        self.gate = self.add_weight(name="gate", shape=(shape[-1], 5))
        self.tokens = self.add_weight(name="tokens", shape=(1, 3, 4))
        self.positions = self.add_weight(name="positions", shape=(1, 7, 4))

    def call(self, x):
        return x @ self.kernel * keras.ops.sigmoid(x @ self.gate)


PROJECTIONS = ("query/kernel", "key/kernel", "value/kernel")
# Layer, shape of its input, and the matrices of each orthogonalized kernel as views of a NumPy array.
LAYERS = [
    (lambda: layers.Dense(5), VECTORS, {"kernel": flat}),
    (lambda: layers.EinsumDense("...x,xy->...y", 5), SEQUENCES, {"kernel": flat}),
    (lambda: layers.EinsumDense("abc,dec->abde", (None, 5, 6)), SEQUENCES, {"kernel": turned}),
    (lambda: layers.EinsumDense("abc,bcd->abd", (6, 5)), SEQUENCES, {"kernel": list}),
    (lambda: layers.EinsumDense("abc,c->abc", (None, 4)), SEQUENCES, {}),
    # The query of KerasHub's Gemma.
    (
        lambda: layers.EinsumDense("btd,ndh->btnh", (None, 2, 5)),
        SEQUENCES,
        {"kernel": lambda k: [k.swapaxes(0, 1).reshape(4, 10)]},
    ),
    (lambda: layers.Dense(5, lora_rank=2), VECTORS, {}),
    (lambda: layers.EinsumDense("abc,cd->abd", (None, 5), lora_rank=2), SEQUENCES, {}),
    (
        lambda: layers.MultiHeadAttention(2, 3),
        PAIR,
        {**dict.fromkeys(PROJECTIONS, wide), "attention_output/kernel": flat},
    ),
    (
        lambda: layers.GroupQueryAttention(3, 4, 2, use_bias=False),
        PAIR,
        {**dict.fromkeys(PROJECTIONS, wide), "attention_output/kernel": flat},
    ),
    (lambda: layers.Conv1D(5, 3), SEQUENCES, {"kernel": flat}),
    (lambda: layers.Conv2D(6, 3, groups=2), IMAGES, {"kernel": lambda k: [*flat(k[..., :3]), *flat(k[..., 3:])]}),
    (lambda: layers.Conv2DTranspose(5, 3, use_bias=False), IMAGES, {"kernel": turned}),
    (lambda: layers.SeparableConv2D(5, 3, depth_multiplier=2), IMAGES, {"pointwise_kernel": flat}),
    (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, name="spatial"), IMAGES, {}),
    (lambda: layers.Embedding(5, 3), VECTORS, {}),
    (lambda: layers.LayerNormalization(axis=(1, 2)), IMAGES, {}),
    (lambda: layers.TimeDistributed(layers.Dense(5, name="inner")), SEQUENCES, {"inner/kernel": flat}),
    (lambda: layers.LSTM(3), SEQUENCES, gates(4, "lstm_cell")),
    (lambda: layers.GRU(3), SEQUENCES, gates(3, "gru_cell")),
    (lambda: layers.SimpleRNN(3), SEQUENCES, gates(1, "simple_rnn_cell")),
    (lambda: our_layers.LinearResidual(), VECTORS, {"kernel": flat}),
    (lambda: our_layers.ScaledResidualConv2D(5), IMAGES, {"conv1/kernel": flat, "conv2/kernel": flat}),
    (lambda: our_layers.ResidualDense(3), VECTORS, {"U": flat, "V": flat}),
    (lambda: ResidualDenseStack(2, 3), VECTORS, {}),
    (lambda: Gated(), VECTORS, {}),
    (lambda: our_layers.ShortcutUnit(2), VECTORS, {"kernel1": flat, "kernel2": flat}),
]


def check_matrices(norm, build, shapes, expected, **options):
    layer = build()
    layer(*map(keras.Input, shapes if isinstance(shapes[0], tuple) else (shapes,)))
    variables, rng = layer.trainable_variables, np.random.default_rng(0)
    gradients = [rng.normal(size=variable.shape).astype("float32") for variable in variables]
    for variable in variables:
        variable.assign(rng.normal(size=variable.shape))
    before = [np.array(variable) for variable in variables]
    optimizer = Muon(0.5, norm=norm, other_rate=1.0, momentum=0.0, **options)
    optimizer.build_for(Parts(layer), variables)
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], variables)
    found = set()
    for variable, start, gradient in zip(variables, before, gradients, strict=True):
        name, end = variable.path.removeprefix(f"{layer.name}/"), np.array(variable)
        if name not in expected:
            np.testing.assert_allclose(end, start - 0.5 * gradient, atol=1e-5)
            continue
        found.add(name)
        for matrices in zip(*map(expected[name], (start, gradient, end)), strict=True):
            np.testing.assert_allclose(moved(*matrices[:2], 0.5, norm), matrices[2], atol=1e-5)
    assert found == set(expected)


@pytest.mark.parametrize("norm", ["free", "keep"])
@pytest.mark.parametrize("case", LAYERS, ids=[type(build()).__name__ for build, *_ in LAYERS])
def test_the_matrices_of_kernels_follow_from_their_layer(case, norm):
    check_matrices(norm, *case)


def own_rule(layer, variable):
    """Divide fused projections and heads, and use a gate."""
    if isinstance(layer, Gated):
        return KernelMatrices(tuple(variable.shape), (0,), (1,)) if variable is layer.gate else None
    if layer.name == "qkv" and variable is layer.kernel:
        return KernelMatrices((variable.shape[0], 3, variable.shape[1] // 3), (0,), (2,), (1,))
    if layer.name in ("query", "key", "value") and len(variable.shape) == 3:
        return KernelMatrices(tuple(variable.shape), (0,), (2,), (1,))
    return layer_matrices(layer, variable)


@pytest.mark.parametrize("norm", ["free", "keep"])
@pytest.mark.parametrize(
    ("build", "shapes", "expected"),
    [
        (
            lambda: layers.MultiHeadAttention(2, 3),
            PAIR,
            {**dict.fromkeys(PROJECTIONS, lambda k: list(k.swapaxes(0, 1))), "attention_output/kernel": flat},
        ),
        (
            lambda: layers.TimeDistributed(layers.Dense(6, name="qkv")),
            SEQUENCES,
            {"qkv/kernel": lambda kernel: np.split(kernel, 3, 1)},
        ),
        (Gated, VECTORS, {"gate": flat}),
    ],
)
def test_a_function_of_the_layer_decides(norm, build, shapes, expected):
    check_matrices(norm, build, shapes, expected, matrices=own_rule)


@pytest.mark.parametrize(
    "axes", [((4, 5), (0,), (1,)), ((4, 6), (0,), ()), ((4, 6), (0,), (0, 1)), ((4, 6), (0,), (2,))]
)
def test_a_function_must_return_all_axes(axes):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(6, use_bias=False), layers.Dense(3)])
    with pytest.raises(ValueError, match=r"`matrices` must return each axis of a shape with 24 entries for .*/kernel'"):
        Muon(matrices=lambda *_: KernelMatrices(*axes)).build_for(model)


@pytest.mark.parametrize("clipping", [{}, {"global_clipnorm": 0.02}, {"clipnorm": 0.01}])
def test_other_variables_descend_as_by_adamw_of_keras(clipping):
    """The gradients of embeddings are sparse, with several rows for a repeated token. Those of Dense are dense."""
    tokens = np.random.default_rng(0).integers(0, 9, (8, 4))
    embedding = layers.Embedding(12, 6, embeddings_initializer=keras.initializers.RandomNormal(seed=0))
    ours = keras.Sequential([keras.Input((4,), dtype="int32"), embedding, layers.LayerNormalization(), layers.Dense(9)])
    one_hot = layers.Lambda(lambda tokens: keras.ops.one_hot(tokens, 12))
    theirs = keras.Sequential([keras.Input((4,), dtype="int32"), one_hot, layers.Dense(6, use_bias=False)])
    theirs.add(layers.LayerNormalization())
    theirs.add(layers.Dense(9))
    theirs.set_weights(ours.get_weights())
    # The weight decay is that of the learning rate, without `other_rate`.
    muon = Muon(0.2, norm="free", other="adamw", other_rate=0.5, weight_decay=0.15, **clipping)
    adamw = keras.optimizers.AdamW(0.1, 0.3, beta_1=0.9, beta_2=0.95, **clipping)
    start = ours.get_weights()
    for model, optimizer in ((ours, muon), (theirs, adamw)):
        optimizer.exclude_from_weight_decay(var_names=["gamma", "bias"])
        build_optimizer(optimizer, model)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        model.fit(tokens, tokens, batch_size=8, epochs=4, verbose=0)
    for before, own, expected in zip(start, ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=2e-6)
        assert np.abs(own - before).max() > 0.01


def test_steps_of_scale_rms_are_as_long_as_those_of_adamw():
    dense = layers.Dense(40, use_bias=False, kernel_initializer="zeros")
    dense.build((None, 60))
    optimizer = Muon(0.1, norm="free", scale="rms", weight_decay=0.5, iterations=5)
    optimizer.build_for(Parts(dense), dense.trainable_variables)
    gradient = np.random.default_rng(0).normal(size=(60, 40)).astype("float32")
    optimizer.apply([gradient], dense.trainable_variables)
    # Singular values of D are 0.68 to 1.21; with 1, the root mean square is exactly 0.2 lr.
    assert 0.68 * 0.02 < np.sqrt(np.mean(np.square(dense.kernel))) < 1.21 * 0.02
