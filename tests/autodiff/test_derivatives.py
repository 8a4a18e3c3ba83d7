"""Derivatives compared with closed forms and central differences. `tests/curvature/test_jax.py` runs them on JAX."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from idmatters_tf.autodiff import gradient, hessian, hvp, jacobian, jvp, linearize, vjp

# Keras 3.15 rounds float64 to float32 on JAX in `mean`, `tanh` and others, which require larger steps.
STEP = 1e-3


@pytest.fixture(autouse=True)
def double(default_policy):
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def flat(structure):
    return np.concatenate([np.ravel(ops.convert_to_numpy(part)) for part in keras.tree.flatten(structure)])


def differences(function, point, step=1e-5):
    """Return central differences of a function, (entries of the outputs, entries of the point). Assigns variables."""
    leaves = keras.tree.flatten(point)
    columns = []
    for index, leaf in enumerate(leaves):
        start = np.array(ops.convert_to_numpy(leaf))
        for entry in np.ndindex(start.shape):
            ends = []
            for moved in (start.copy(), start.copy()):
                moved[entry] += -step if ends else step
                if isinstance(leaf, keras.Variable):
                    leaf.assign(moved)
                    ends.append(flat(function(point)))
                else:
                    others = [*leaves[:index], moved, *leaves[index + 1 :]]
                    ends.append(flat(function(keras.tree.pack_sequence_as(point, others))))
            columns.append((ends[0] - ends[1]) / (2 * step))
        if isinstance(leaf, keras.Variable):
            leaf.assign(start)
    return np.stack(columns, axis=1)


def close(found, expected, tolerance=1e-7):
    found, expected = flat(found), np.ravel(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(np.abs(expected).max(), 1))


def test_closed_forms():
    """f(x) = sum x^3 / 3 + x^T A x / 2."""
    A, x, v = draw(4, 4), draw(4, seed=1), draw(4, seed=2)
    symmetric = (A + A.T) / 2

    def function(x):
        return ops.sum(x**3) / 3 + ops.sum(x * ops.matmul(A, x)) / 2

    slope, curvature = x**2 + symmetric @ x, np.diag(2 * x) + symmetric
    close(gradient(function, x), slope, 1e-14)
    close(hvp(function, x, v), curvature @ v, 1e-14)
    close(hessian(function, x), curvature, 1e-14)
    close(hessian(function, x, chunk=3), curvature, 1e-14)
    close(jacobian(lambda x: gradient(function, x), x), curvature, 1e-14)
    close(jvp(function, x, v), slope @ v, 1e-14)
    linear = linearize(function, x)
    close(linear.value, np.sum(x**3) / 3 + x @ A @ x / 2, 1e-14)
    close(linear.vjp(1.0), slope, 1e-14)
    # Zero if no output depends on a tensor.
    close(gradient(lambda parts: ops.sum(parts[0]), [x, A]), [*np.ones(4), *np.zeros(16)])
    assert hessian(function, x).shape == (4, 4)
    # Tensors without entries.
    assert jacobian(ops.square, np.zeros((0, 3))).shape == (0, 3, 0, 3)
    assert jacobian(lambda x: ops.sum(x) * x[:0], x).shape == (0, 4)
    assert jacobian(lambda x: ops.sum(x) * A, np.zeros(0)).shape == (4, 4, 0)
    assert hessian(lambda x: ops.sum(x**2), np.zeros(0)).shape == (0, 0)


def test_nested_structures():
    point = {"a": draw(2), "b": [draw(3, 2, seed=1), np.array(0.5)]}

    def function(parts):
        product = ops.matmul(parts["b"][0], ops.square(parts["a"]))
        return product, {"c": parts["b"][1] ** 3 * parts["a"]}

    expected = differences(function, point)
    vector, other = draw(9, seed=2), draw(5, seed=3)
    parts = {"a": vector[:2], "b": [vector[2:8].reshape(3, 2), vector[8]]}
    close(jvp(function, point, parts), expected @ vector)
    close(vjp(function, point, (other[:3], {"c": other[3:]})), expected.T @ other)
    # Row by row, or column by column if the point has fewer entries.
    whole = jacobian(function, point, chunk=2)
    assert tuple(whole[0]["b"][0].shape) == (3, 3, 2)
    close(whole[0]["a"], expected[:3, :2])
    close(whole[1]["c"]["b"][1], expected[3:, 8])
    few = jacobian(lambda a: function({**point, "a": a}), point["a"])
    close(few[0], expected[:3, :2])
    close(few[1]["c"], expected[3:, :2])

    def scalar(parts):
        product, rest = function(parts)
        return ops.sum(product**2) + ops.sum(rest["c"])

    second = differences(lambda parts: gradient(scalar, parts), point)
    found = hessian(scalar, point)
    assert tuple(found["b"][0]["a"].shape) == (3, 2, 2)
    close(found["b"][0]["a"], second[2:8, :2])
    close(found["a"]["b"][1], second[:2, 8])


def test_repeated_tensors():
    """Tensors that occur twice in the point, the function or the outputs have the derivatives of separate ones."""
    x, vector = draw(3), draw(3, seed=2)
    same = ops.convert_to_tensor(x)

    def function(parts, constant):
        product = parts[0] ** 3 * parts[1] + constant
        return [product, product * 1, product]

    expected = differences(lambda parts: function(parts, x), [x, x.copy()])
    linear = linearize(lambda parts: function(parts, same), [same, same])
    close(linear.jvp([vector, 2 * vector]), expected @ [*vector, *2 * vector])
    close(linear.vjp([vector, vector, 2 * vector]), expected.T @ [*vector, *vector, *2 * vector])

    def scalar(parts, constant):
        return sum(ops.sum(part**2) for part in function(parts, constant))

    second = differences(lambda parts: gradient(lambda p: scalar(p, x), parts), [x, x.copy()])
    close(hvp(lambda parts: scalar(parts, same), [same, same], [vector, vector]), second @ [*vector, *vector], 1e-6)


def test_masks_on_the_point():
    sequences = draw(2, 4, 3)
    sequences[0, 2:] = sequences[1, 1:] = 0
    masked, pooling = layers.Masking()(sequences), layers.GlobalAveragePooling1D()
    padding = np.repeat(np.array([[0, 0, 1, 1], [0, 1, 1, 1]], bool)[..., None], 3, axis=-1)
    expected = np.where(padding, 0, 1 / np.array([2, 1])[:, None, None])
    # The function receives the point as part of a structure, and its outputs keep their masks.
    close(gradient(lambda parts: ops.sum(pooling(parts["x"])), {"x": masked}), expected, 1e-6)
    # On JAX, recurrent layers are compiled step by step.
    recurrent = [] if keras.backend.backend() == "jax" else [layers.SimpleRNN(2, unroll=True)]
    for layer in (pooling, *recurrent):
        linear = linearize(layer, masked)
        close(linear.value, flat(layer(masked)), 1e-6)
        assert not np.abs(ops.convert_to_numpy(linear.vjp(ops.ones_like(linear.value)))[padding]).any()
    passed = linearize(layers.Activation("tanh"), masked).value
    close(pooling(passed), flat(pooling(layers.Activation("tanh")(masked))), 1e-6)


def smooth_model():
    penalty = keras.regularizers.L2(0.25)
    hidden = layers.Dense(3, ops.square, kernel_regularizer=penalty, name="hidden")
    return keras.Sequential([keras.Input((2,), dtype="float64"), hidden, layers.Dense(2, name="logits")])


def test_models_by_inputs_and_variables():
    model, x, y = smooth_model(), draw(4, 2), draw(4, 2, seed=1)
    close(jacobian(model, x), differences(lambda x: model(x), x))

    def loss(_):
        return ops.sum((model(x) - y) ** 2) + sum(model.losses)

    variables = model.trainable_variables
    slope = differences(lambda _: loss(None), variables)[0]
    close(gradient(loss, variables), slope, 1e-6)
    matrix = differences(lambda _: gradient(loss, variables), variables)
    vectors = [draw(*variable.shape) for variable in variables]
    close(hvp(loss, variables, vectors), matrix @ flat(vectors), 1e-6)
    close(hessian(loss, variables[0]), matrix[:6, :6], 1e-6)

    # Derivatives with respect to the variables of derivatives with respect to the inputs.
    def energy(_):
        return ops.sum(gradient(lambda x: ops.sum(model(x) ** 2), x) ** 2)

    close(gradient(energy, variables), differences(energy, variables)[0], 1e-6)


def test_nothing_changes():
    keras.config.set_dtype_policy("float32")
    x = draw(6, 3).astype("float32")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5)])
    model.add(layers.ActivityRegularization(0.1))
    model(x, training=True)

    def state():
        return [np.array(ops.convert_to_numpy(v.value)) for v in model.variables]

    def loss(_):
        outputs = model(x, training=True)
        return ops.mean(outputs**2) + sum(model.losses)

    before, losses = state(), model.losses
    variables = model.trainable_variables
    first = gradient(loss, variables)
    vectors = [np.ones(v.shape) for v in variables]
    hvp(loss, variables, vectors)
    jvp(lambda x: model(x, training=True), x, np.ones_like(x))
    assert all(map(np.array_equal, before, state()))
    assert [id(loss) for loss in model.losses] == [id(loss) for loss in losses]
    # The random numbers are the same each time.
    np.testing.assert_array_equal(flat(first), flat(gradient(loss, variables)))
    assert np.abs(flat(first)).max() > 0


def test_embeddings_masks_and_recurrent_layers():
    tokens = np.array([[1, 2, 3, 0], [3, 1, 0, 0], [2, 2, 1, 3]])
    embedding = layers.Embedding(4, 1, mask_zero=True)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), embedding, layers.LSTM(1), layers.Dense(1)])

    def loss(_):
        return ops.sum(ops.square(model(tokens) - 0.5))

    variables = model.trainable_variables
    close(gradient(loss, variables), differences(lambda _: loss(None), variables, STEP)[0], 1e-3)
    chosen = [embedding.embeddings]
    matrix = differences(lambda _: gradient(loss, chosen), chosen, STEP)
    vectors = [draw(*variable.shape) for variable in chosen]
    close(hvp(loss, chosen, vectors), matrix @ flat(vectors), 1e-3)


def test_wrong_arguments():
    model, x = smooth_model(), draw(2, 2)
    bias = model.layers[0].bias
    for function, arguments, message in (
        (gradient, (model, x), r"must return one scalar.* Received: outputs of shape \(2, 2\). Use `jacobian`"),
        (jacobian, (lambda x: ops.argmax(x), x), r"must return floating-point tensors. Received: int\d\d"),
        (jacobian, (ops.abs, np.arange(3)), r"floating-point tensors. Received: int\d\d of shape \(3,\)"),
        (gradient, (lambda _: ops.sum(bias**2), [bias, bias]), "must not contain a variable twice"),
        (jvp, (model, x, x[:1]), r"`vector` must have the shapes of `point`: \(2, 2\). Received: \(1, 2\)"),
        (vjp, (model, x, x[0]), r"must have the shapes of the outputs of `function`: \(2, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            function(*arguments)
