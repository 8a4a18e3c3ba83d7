"""Tests of Jacobians of blocks and models against dense automatic differentiation and closed forms."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from idmatters_tf import linear
from idmatters_tf.isometry import block_distances, jacobian, measure
from idmatters_tf.layers import BasicBlock2D, PadShortcut2D, ResidualConv2D
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.linear import assign_weights, linear_residual

rng = np.random.default_rng(0)


def dense_by_tape(function, point):
    """Return the matrix (output entries, input entries) at one example, from gradients of copies of it."""
    rows = np.eye(np.size(function(point)), dtype="float32")
    points = tf.repeat(tf.constant(point), len(rows), axis=0)
    with tf.GradientTape() as tape:
        tape.watch(points)
        outputs = function(points)
    gradients = tape.gradient(outputs, points, output_gradients=rows.reshape(outputs.shape))
    return np.reshape(gradients, (len(rows), -1)).astype(np.float64)


@pytest.fixture(scope="module")
def network():
    """Build a small network whose blocks change the shape, with large branches, and two images."""
    model = identity_resnet((4, 4, 3), blocks=1, widths=(3, 5), stem=3)
    draw = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.1 * draw.normal(size=variable.shape))
    return model, draw.normal(size=(2, 4, 4, 3)).astype("float32")


def features(model, name, images):
    """Call a layer."""
    return np.array(keras.Model(model.inputs[0], model.get_layer(name).output)(images))


def test_blocks_against_dense_jacobians(network):
    model, images = network
    measured = measure(model, images)
    assert list(measured.blocks) == ["stage1_block1", "stage2_block1"]
    before = {"stage1_block1": "stem", "stage2_block1": "stage1_block1"}
    distances = block_distances(model, images)
    for name, block in measured.blocks.items():
        layer = model.get_layer(name)
        assert block.exact
        for index in range(2):
            point = features(model, before[name], images[index : index + 1])
            matrix = dense_by_tape(layer, point)
            identity = np.eye(len(matrix)) if layer.strides == 1 else dense_by_tape(layer.skip, point)
            values = np.linalg.svd(matrix, compute_uv=False)
            assert block.distance[index] == pytest.approx(np.linalg.norm(matrix - identity, 2), rel=1e-4)
            relative = np.linalg.norm(matrix - identity) / np.linalg.norm(identity)
            assert block.relative[index] == pytest.approx(relative, rel=1e-4)
            assert block.largest[index] == pytest.approx(values[0], rel=1e-4)
            assert block.smallest[index] == pytest.approx(values[-1], abs=1e-5)
        np.testing.assert_allclose(distances[name], block.distance, rtol=1e-4)
    for index in range(2):
        whole = dense_by_tape(model, images[index : index + 1])
        values = np.linalg.svd(whole, compute_uv=False)
        np.testing.assert_allclose(measured.end_to_end[index], values, atol=1e-5 * values[0])


@pytest.mark.parametrize(("side", "strides"), [(12, 1), pytest.param(24, 2, marks=pytest.mark.slow)])
def test_large_blocks_by_lanczos(side, strides):
    # At least 12 x 12 x 2 = 288 entries on both sides, too many for a dense decomposition.
    inputs = keras.Input((side, side, 2))
    layer = ResidualConv2D(2, strides=strides, kernel_initializer="he_normal", name="block")
    model = keras.Model(inputs, layer(inputs))
    image = np.random.default_rng(0).normal(size=(1, side, side, 2)).astype("float32")
    matrix = dense_by_tape(model, image)
    identity = np.eye(len(matrix)) if strides == 1 else dense_by_tape(layer.skip, image)
    values = np.linalg.svd(matrix, compute_uv=False)
    block = measure(model, image, end_to_end=False, tolerance=1e-4, products=60).blocks["block"]
    assert not block.exact
    difference = matrix - identity
    assert block.distance[0] == pytest.approx(np.linalg.norm(difference, 2), rel=1e-3)
    assert block.largest[0] == pytest.approx(values[0], rel=1e-3)
    # The tolerance bounds the error of the squares, relative to the largest one.
    assert abs(block.smallest[0] ** 2 - values[-1] ** 2) < 1e-4 * values[0] ** 2
    relative = np.linalg.norm(difference) / np.linalg.norm(identity)
    assert block.relative[0] == pytest.approx(relative, rel=0.05)


def test_products_from_both_sides(network):
    model, images = network
    operator = jacobian(model, images, ("stem", "stage2_block1"), chunk=8)
    assert operator.shape == (2 * 20, 2 * 48)
    matrix = operator @ np.eye(96, dtype="float32")
    np.testing.assert_allclose(operator.rmatmat(np.eye(40, dtype="float32")), matrix.T, atol=1e-6)
    np.testing.assert_allclose(operator @ np.ones(96), matrix.sum(axis=1), atol=1e-5)
    # Examples are independent.
    assert np.abs(matrix[:20, 48:]).max() == 0
    point = features(model, "stem", images[:1])
    blocks = [model.get_layer(name) for name in ("stage1_block1", "stage2_block1")]
    np.testing.assert_allclose(matrix[:20, :48], dense_by_tape(lambda x: blocks[1](blocks[0](x)), point), atol=1e-5)


@settings(max_examples=10)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
def test_linear_residual_layers_in_closed_form(dim, depth, seed):
    draw = np.random.default_rng(seed)
    A = draw.normal(size=(depth, dim, dim))
    keras.config.set_dtype_policy("float64")
    model = linear_residual(dim, depth)
    assign_weights(model, A)
    measured = measure(model, draw.normal(size=(1, dim)))
    found = np.array([block.distance[0] for block in measured.blocks.values()])
    np.testing.assert_allclose(found, np.linalg.norm(A, 2, axis=(1, 2)), rtol=1e-12)
    smallest = [block.smallest[0] for block in measured.blocks.values()]
    np.testing.assert_allclose(smallest, np.linalg.norm(np.eye(dim) + A, -2, axis=(1, 2)), atol=1e-12)
    expected = np.linalg.svd(linear.compose(A), compute_uv=False)
    np.testing.assert_allclose(measured.end_to_end[0], expected, atol=1e-12 * max(1, expected[0]))


def test_batch_normalization_in_training_mode():
    inputs = keras.Input((2, 2, 2))
    initializer = keras.initializers.HeNormal(seed=0)
    model = keras.Model(inputs, ResidualConv2D(2, norm="batch", kernel_initializer=initializer, name="block")(inputs))
    images = (1 + 20 * rng.normal(size=(3, 2, 2, 2))).astype("float32")
    before = [np.array(variable) for variable in model.variables]
    measured = measure(model, images, training=True)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    # Examples are coupled, unlike in inference.
    found = measured.blocks["block"].distance
    assert abs(block_distances(model, images[:1])["block"][0] - found[0]) > 0.1
    batch = tf.constant(images)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(batch)
        outputs = model(batch, training=True)
    matrix = np.reshape(tape.jacobian(outputs, batch, experimental_use_pfor=False), (24, 24))
    np.testing.assert_allclose(found, [np.linalg.norm(matrix - np.eye(24), 2)], rtol=1e-3)
    assert measured.end_to_end.shape == (1, 24)


def test_shapes_without_an_identity_give_nan():
    wide = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="wide")])
    block = measure(wide, np.ones((1, 4)), ["wide"]).blocks["wide"]
    assert np.isnan(block.distance[0])
    assert block.largest[0] == pytest.approx(np.linalg.norm(wide.get_layer("wide").kernel, 2), rel=1e-5)
    # Fewer channels, and a shape that no stride gives.
    for layer in (keras.layers.Conv2D(1, 1, name="other"), keras.layers.Conv2D(2, 2, name="other")):
        other = keras.Sequential([keras.Input((4, 4, 2)), layer])
        assert np.isnan(block_distances(other, np.ones((1, 4, 4, 2)), ["other"])["other"]).all()
    # For a block that halves images the identity is pooling and zero channels.
    pool = keras.Sequential([keras.Input((4, 4, 2)), PadShortcut2D(4, 2, name="pool")])
    assert block_distances(pool, np.ones((1, 4, 4, 2)), ["pool"])["pool"] == [0]
    own = keras.Input((4, 4, 2))
    subsampled = keras.Model(own, BasicBlock2D(4, 2, preactivation="branch", kernel_initializer="zeros")(own))
    assert list(block_distances(subsampled, np.ones((1, 4, 4, 2))).values()) == [[0]]


class Coupled(keras.layers.Layer):
    """Layer that couples the examples of a batch, and is the identity for a single one."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], shape[-1]), initializer="identity")

    def call(self, x):
        return x + (x - keras.ops.mean(x, axis=0, keepdims=True)) @ self.kernel


def test_layers_that_couple_examples():
    """Several products at once, on copies of an example, would couple the copies."""
    model = keras.Sequential([keras.Input((12,)), Coupled(name="coupled")])
    x = np.random.default_rng(0).normal(size=(2, 12)).astype("float32")
    np.testing.assert_allclose(block_distances(model, x[:1], ["coupled"])["coupled"], 0, atol=1e-5)
    np.testing.assert_allclose(measure(model, x[:1], ["coupled"]).end_to_end, 1, rtol=1e-5)
    with pytest.raises(ValueError, match=r"'coupled' couples the examples of a batch. Pass one example at a time"):
        block_distances(model, x, ["coupled"])
    # The Jacobian of x + x - mean(x) over two examples: singular values 1 and 2.
    whole = block_distances(model, x, ["coupled"], training=True)["coupled"]
    np.testing.assert_allclose(whole, [1], rtol=1e-5)
