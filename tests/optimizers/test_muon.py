"""Orthogonalized momentum compared with the singular value decomposition and with NumPy."""

import importlib.util
import json

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from idmatters_tf import layers as our_layers
from idmatters_tf.optimizers.muon import Muon, orthogonalize
from tests.support import two_devices
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


def convolution(kernel):
    """Return a convolution without a bias that has the given kernel."""
    layer = keras.layers.Conv2D(kernel.shape[-1], kernel.shape[:2], use_bias=False)
    layer.build((None, 8, 8, kernel.shape[2]))
    layer.kernel.assign(kernel)
    return layer


@pytest.mark.parametrize(("norm", "nesterov"), [("keep", False), ("keep", True), ("free", True)])
def test_kernels_follow_the_formula_also_if_some_have_equal_shapes(norm, nesterov):
    rng = np.random.default_rng(5)
    shapes = [SHAPES[0], SHAPES[1], SHAPES[0], SHAPES[2], SHAPES[0]]
    starts, rates = [rng.normal(size=shape) for shape in shapes], [0.1, 0.2, 0.05]
    gradients = [[rng.normal(size=shape) for shape in shapes] for _ in rates]
    convolutions = [convolution(start) for start in starts]
    variables = [layer.kernel for layer in convolutions]
    optimizer = Muon(0.1, momentum=0.8, nesterov=nesterov, norm=norm, iterations=4)
    optimizer.build(variables)
    for step, rate in zip(gradients, rates, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32") for gradient in step], variables)
    for place, (variable, start) in enumerate(zip(variables, starts, strict=True)):
        expected = numpy_path(start, [step[place] for step in gradients], rates, 0.8, nesterov, 4, norm)
        np.testing.assert_allclose(variable.numpy(), expected, atol=2e-5)


def test_save_load_and_continue(tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(2)])
    decays = {"weight_decay": 0.1, "other_weight_decay": 0.2}
    muon = Muon(0.05, iterations=5, other="adamw", other_rate=0.3, betas=(0.8, 0.9), norm="free", **decays)
    model.compile(muon, "mse", jit_compile=False)
    rng = np.random.default_rng(3)
    data = rng.normal(size=(4, 8, 8, 3)), rng.normal(size=(4, 2))
    model.fit(*data, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, again):
        each.fit(*data, shuffle=False, verbose=0)
    ours, theirs = (each.variables + each.optimizer.variables for each in (again, model))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_kernels_of_zeros_are_refused():
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.Conv2D(2, 3)])
    first, last = (layer.kernel for layer in model.layers)
    # Biases and the last layer may start at zero.
    last.assign(keras.ops.zeros_like(last))
    Muon().build(model.trainable_variables)
    first.assign(keras.ops.zeros_like(first))
    with pytest.raises(ValueError, match="conv2d.*/kernel' is zero and would never learn. Initialize it otherwise"):
        Muon().build(model.trainable_variables)
    Muon(exclude=[model.layers[0]]).build(model.trainable_variables)
    Muon(norm="free").build(model.trainable_variables)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "kept"}, "norm"),
        ({"weight_decay": 0.1}, "`weight_decay` must be left out with norm='keep'.*weight_decay=0.1. Use norm='free'"),
        ({"scale": "rms"}, "`scale` must be left out with norm='keep'"),
        ({"other_weight_decay": 0.1}, "`other_weight_decay` requires other='adamw'"),
        ({"other": "adamw", "momentum": 0.0}, "`momentum` must be positive"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Muon(**arguments)


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
def test_fit_follows_the_formula_in_every_mode(backend, program):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    env = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", two_devices.VARIABLE: "2"}
    done = program("tests.support.muon_fits", env=env)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert len(results) == 11
    for name, (kernel, bias, expected_kernel, expected_bias) in results.items():
        atol = 2e-3 if name.startswith("float16") else 2e-5
        np.testing.assert_allclose(kernel, expected_kernel, atol=atol, err_msg=name)
        np.testing.assert_allclose(bias, expected_bias, atol=atol, err_msg=name)


IMAGES, SEQUENCES, VECTORS = (5, 5, 4), (6, 4), (4,)


def flat(kernel):
    """Return the matrix of (all axes but the last) x (last axis)."""
    return [kernel.reshape(-1, kernel.shape[-1])]


# Layer, shape of its input, and the matrices of each orthogonalized kernel as views of a NumPy array.
LAYERS = [
    (lambda: layers.Dense(5), VECTORS, {"kernel": flat}),
    (lambda: layers.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"), SEQUENCES, {"kernel": flat}),
    (lambda: layers.EinsumDense("...x,xy->...y", 5), SEQUENCES, {"kernel": flat}),
    (lambda: layers.EinsumDense("abc,dec->abde", (None, 5, 6)), SEQUENCES, {"kernel": lambda k: [k.reshape(30, 4).T]}),
    (lambda: layers.EinsumDense("abc,bcd->abd", (6, 5)), SEQUENCES, {"kernel": list}),
    (lambda: layers.EinsumDense("abc,c->abc", (None, 4)), SEQUENCES, {}),
    # Query and output of KerasHub's Gemma.
    (
        lambda: layers.EinsumDense("btd,ndh->btnh", (None, 2, 5)),
        SEQUENCES,
        {"kernel": lambda k: [k.swapaxes(0, 1).reshape(4, 10)]},
    ),
    (lambda: layers.EinsumDense("btnh,nhd->btd", (None, 5)), (6, 2, 3), {"kernel": flat}),
    (lambda: layers.Dense(5, lora_rank=2), VECTORS, {}),
    (lambda: layers.EinsumDense("abc,cd->abd", (None, 5), lora_rank=2), SEQUENCES, {}),
    (
        lambda: layers.MultiHeadAttention(2, 3),
        (SEQUENCES, SEQUENCES),
        {
            **{f"{name}/kernel": lambda k: [k.reshape(4, 6)] for name in ("query", "key", "value")},
            "attention_output/kernel": lambda k: [k.reshape(6, 4)],
        },
    ),
    (
        lambda: layers.GroupQueryAttention(3, 4, 2, use_bias=False),
        (SEQUENCES, SEQUENCES),
        {
            "query/kernel": lambda k: [k.reshape(4, 12)],
            **{f"{name}/kernel": lambda k: [k.reshape(4, 6)] for name in ("key", "value")},
            "attention_output/kernel": lambda k: [k.reshape(12, 4)],
        },
    ),
    (lambda: layers.Conv1D(5, 3), SEQUENCES, {"kernel": flat}),
    (lambda: layers.Conv1D(5, 3, lora_rank=2), SEQUENCES, {}),
    (lambda: layers.Conv2D(6, 3, groups=2), IMAGES, {"kernel": lambda k: [*flat(k[..., :3]), *flat(k[..., 3:])]}),
    (lambda: layers.Conv3D(5, 3), (5, *IMAGES), {"kernel": flat}),
    (lambda: layers.Conv1DTranspose(5, 3), SEQUENCES, {"kernel": lambda k: [k.reshape(15, 4).T]}),
    (lambda: layers.Conv2DTranspose(5, 3, use_bias=False), IMAGES, {"kernel": lambda k: [k.reshape(45, 4).T]}),
    (lambda: layers.Conv3DTranspose(5, 2), (5, *IMAGES), {"kernel": lambda k: [k.reshape(40, 4).T]}),
    (lambda: layers.SeparableConv1D(5, 3), SEQUENCES, {"pointwise_kernel": flat}),
    (lambda: layers.SeparableConv2D(5, 3, depth_multiplier=2), IMAGES, {"pointwise_kernel": flat}),
    (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, name="spatial"), IMAGES, {}),
    (lambda: layers.Embedding(5, 3), VECTORS, {}),
    (lambda: layers.ReversibleEmbedding(5, 3, tie_weights=False), VECTORS, {}),
    (lambda: layers.LayerNormalization(axis=(1, 2)), IMAGES, {}),
    (lambda: layers.TimeDistributed(layers.Dense(5, name="inner")), SEQUENCES, {"inner/kernel": flat}),
    (
        lambda: layers.LSTM(3),
        SEQUENCES,
        {f"lstm_cell/{name}": lambda k: np.split(k, 4, 1) for name in ("kernel", "recurrent_kernel")},
    ),
    (
        lambda: layers.GRU(3),
        SEQUENCES,
        {f"gru_cell/{name}": lambda k: np.split(k, 3, 1) for name in ("kernel", "recurrent_kernel")},
    ),
    (lambda: layers.SimpleRNN(3), SEQUENCES, {f"simple_rnn_cell/{n}": flat for n in ("kernel", "recurrent_kernel")}),
    (lambda: our_layers.LinearResidual(), VECTORS, {"kernel": flat}),
    (lambda: our_layers.ScaledResidualConv2D(5), IMAGES, {"conv1/kernel": flat, "conv2/kernel": flat}),
    (lambda: our_layers.ResidualDense(3), VECTORS, {"U": flat, "V": flat}),
    (lambda: our_layers.ResidualDenseStack(2, 3), VECTORS, {"U": list, "V": list}),
    (lambda: our_layers.ShortcutUnit(2), VECTORS, {"kernel1": flat, "kernel2": flat}),
]


@pytest.mark.parametrize(("build", "shapes", "expected"), LAYERS, ids=[type(build()).__name__ for build, *_ in LAYERS])
def test_the_matrices_of_kernels_follow_from_their_layer(build, shapes, expected):
    layer = build()
    layer(*map(keras.Input, shapes if isinstance(shapes[0], tuple) else (shapes,)))
    variables, rng = layer.trainable_variables, np.random.default_rng(0)
    expected = {f"{layer.name}/{name}": matrices for name, matrices in expected.items()}
    before = {variable.path: np.array(variable) for variable in variables}
    gradients = [rng.normal(size=variable.shape).astype("float32") for variable in variables]
    optimizer = Muon(0.5, norm="free", other_rate=1.0, momentum=0.0)
    assert {variable.path for variable in optimizer.select_kernels(variables)} == set(expected)
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], variables)
    for variable, gradient in zip(variables, gradients, strict=True):
        step = before[variable.path] - np.array(variable)
        if variable.path not in expected:
            np.testing.assert_allclose(step, 0.5 * gradient, atol=1e-5)
            continue
        view = expected[variable.path]
        for taken, matrix in zip(view(step), view(gradient), strict=True):
            scale = np.sqrt(matrix.shape[1] / matrix.shape[0])
            np.testing.assert_allclose(taken, 0.5 * scale * by_svd(matrix, 3), atol=1e-5)


def test_heads_are_orthogonalized_alone_with_per_head():
    layer = layers.MultiHeadAttention(2, 3)
    layer(keras.Input(SEQUENCES), keras.Input(SEQUENCES))
    rng = np.random.default_rng(0)
    kernels = {name: getattr(layer, f"_{name}_dense").kernel for name in ("query", "output")}
    gradients = {name: rng.normal(size=kernel.shape).astype("float32") for name, kernel in kernels.items()}
    for norm in ("free", "keep"):
        before = {name: np.array(kernel) for name, kernel in kernels.items()}
        optimizer = Muon(0.5, norm=norm, momentum=0.0, per_head=True)
        optimizer.apply([gradients[name] for name in kernels], list(kernels.values()))
        for name, heads in {"query": lambda k: k.swapaxes(0, 1), "output": lambda k: k}.items():
            starts, ends, slopes = (heads(value) for value in (before[name], np.array(kernels[name]), gradients[name]))
            for start, end, slope in zip(starts, ends, slopes, strict=True):
                expected = numpy_path(start, [slope], [0.5], 0.0, False, 3, norm)
                np.testing.assert_allclose(end, expected, atol=1e-5)


@pytest.mark.parametrize("clipping", [{}, {"global_clipnorm": 0.02}])
def test_other_variables_descend_as_by_adamw_of_keras(clipping):
    """The gradients of embeddings are sparse."""
    tokens = np.random.default_rng(0).integers(0, 9, (8, 4))
    embedding = layers.Embedding(12, 6, embeddings_initializer=keras.initializers.RandomNormal(seed=0))
    ours = keras.Sequential([keras.Input((4,), dtype="int32"), embedding, layers.LayerNormalization(), layers.Dense(9)])
    theirs = keras.models.clone_model(ours)
    theirs.set_weights(ours.get_weights())
    muon = Muon(0.2, other="adamw", other_rate=0.5, other_weight_decay=0.3, betas=(0.8, 0.99), **clipping)
    adamw = keras.optimizers.AdamW(0.1, 0.3, beta_1=0.8, beta_2=0.99, **clipping)
    start = ours.get_weights()
    for model, optimizer in ((ours, muon), (theirs, adamw)):
        optimizer.exclude_from_weight_decay(var_names=["gamma", "bias"])
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        model.fit(tokens, tokens, batch_size=8, epochs=4, verbose=0)
    for before, own, expected in zip(start, ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=2e-6)
        assert np.abs(own - before).max() > 0.01


def test_steps_of_scale_rms_are_as_long_as_those_of_adamw():
    dense = layers.Dense(40, use_bias=False, kernel_initializer="zeros")
    dense.build((None, 60))
    optimizer = Muon(0.1, norm="free", scale="rms", weight_decay=0.5, iterations=5)
    gradient = np.random.default_rng(0).normal(size=(60, 40)).astype("float32")
    optimizer.apply([gradient], dense.trainable_variables)
    # Singular values of D are 0.68 to 1.21; with 1, the root mean square is exactly 0.2 lr.
    assert 0.68 * 0.02 < np.sqrt(np.mean(np.square(dense.kernel))) < 1.21 * 0.02


def test_last_layer_and_excluded_layers_count_as_other_variables():
    inputs = keras.Input((8, 8, 3))
    hidden = layers.Conv2D(6, 3, name="first")(inputs)
    hidden = layers.Conv2D(6, 3, name="second")(hidden)
    head = layers.Dense(4, name="head")(layers.GlobalAveragePooling2D()(hidden))
    model = keras.Model(inputs, [layers.Softmax()(head), layers.Reshape((16, 6))(hidden)])
    names = lambda optimizer: [v.path for v in optimizer.select_kernels(model.trainable_variables)]  # noqa: E731
    assert names(Muon()) == ["first/kernel"]
    assert names(Muon(exclude=["first"])) == []
    assert Muon.from_config(Muon(exclude=[model.get_layer("first")]).get_config()).exclude == ("first",)
    with pytest.raises(ValueError, match="`exclude` must name layers with trainable variables. Received: 'absent'"):
        Muon(exclude=["absent"]).build(model.trainable_variables)
    table = Muon(other="adamw").describe(model).splitlines()
    assert table[0].split("  ")[0] == "first/kernel"
    assert [line.split("  ")[-1].strip() for line in table[:3]] == ["27 x 6", "adamw", "adamw"]
    # A model whose head is frozen has no trainable last layer.
    model.get_layer("head").trainable = False
    assert names(Muon()) == ["first/kernel"]
    # The compiled one of several models with the same layers counts, here a nested one.
    nested = keras.Sequential([keras.Input((8, 8, 3)), keras.Model(inputs, head)])
    nested.compile(keras.optimizers.LossScaleOptimizer(Muon()))
    chosen = nested.optimizer.inner_optimizer.select_kernels(nested.trainable_variables)
    assert [variable.path for variable in chosen] == ["first/kernel", "second/kernel"]
