"""Derivatives compared with closed forms and central differences, in pure Keras, for every backend."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from idmatters_tf.autodiff import gradient, hessian, hvp, jacobian, jvp, linearize, vjp

# Keras 3.15 rounds float64 to float32 on JAX in `mean`, `tanh` and others, which require larger steps.
STEP = 1e-3


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def flat(structure):
    return np.concatenate([np.ravel(ops.convert_to_numpy(part)) for part in keras.tree.flatten(structure)])


def differences(function, point, step=1e-5):
    """Return central differences of a function, (entries of the outputs, entries of the point). Assigns variables."""
    leaves = keras.tree.flatten(point)
    columns = []
    for place, leaf in enumerate(leaves):
        start = np.array(ops.convert_to_numpy(leaf))
        for entry in np.ndindex(start.shape):
            ends = []
            for sign in (1, -1):
                moved = start.copy()
                moved[entry] += sign * step
                if isinstance(leaf, keras.Variable):
                    leaf.assign(moved)
                    ends.append(flat(function(point)))
                else:
                    others = [*leaves[:place], moved, *leaves[place + 1 :]]
                    ends.append(flat(function(keras.tree.pack_sequence_as(point, others))))
            columns.append((ends[0] - ends[1]) / (2 * step))
        if isinstance(leaf, keras.Variable):
            leaf.assign(start)
    return np.stack(columns, axis=1)


def close(found, expected, tolerance=1e-7):
    found, expected = flat(found), np.ravel(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(np.abs(expected).max(), 1))


def closed_forms():
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


def nested_structures():
    point = {"a": draw(2), "b": [draw(3, 2, seed=1), np.array(0.5)]}

    def function(parts):
        product = ops.matmul(parts["b"][0], ops.square(parts["a"]))
        return product, {"c": parts["b"][1] ** 3 * parts["a"]}

    expected = differences(function, point)
    vector, other = draw(9, seed=2), draw(5, seed=3)
    parts = {"a": vector[:2], "b": [vector[2:8].reshape(3, 2), vector[8]]}
    close(jvp(function, point, parts), expected @ vector)
    close(vjp(function, point, (other[:3], {"c": other[3:]})), expected.T @ other)
    linear = linearize(function, point)
    for _ in range(2):
        close(linear.jvp(parts), expected @ vector)
        close(linear.vjp((other[:3], {"c": other[3:]})), expected.T @ other)
    # Row by row, or column by column if the point has fewer entries.
    for chunk in (64, 2):
        whole = jacobian(function, point, chunk)
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


def repeated_tensors():
    """Tensors that occur twice, in the point, the function or the outputs, have the derivatives of separate ones."""
    x, weights = ops.convert_to_tensor(draw(3)), ops.convert_to_tensor(draw(3, seed=1))
    vector, start = draw(3, seed=2), draw(3)

    def both(parts, other):
        product = parts[0] ** 3 * parts[1] + other
        return product, [product, product * 1, parts[1]]

    # `other` has the values of the point and is constant. Arrays differ from each other and from the tensor.
    for function, point in (
        (lambda other: lambda a: ops.sum(a**3 * other**2 + weights * a), lambda a: a()),
        (lambda other: lambda a: ops.sum((a - other) ** 2 * a), lambda a: a()),
        (lambda other: lambda p: both(p, other), lambda a: [a(), a()]),
        (lambda other: lambda p: both([p["a"], p["b"][1]], p["b"][0]), lambda a: {"a": a(), "b": [a(), a()]}),
        (lambda other: lambda p: p[0] if isinstance(p, list) else p, lambda a: [a()]),
    ):
        same, separate = (function(x), point(lambda: x)), (function(start.copy()), point(start.copy))
        vectors = keras.tree.map_structure(lambda _: vector, same[1])
        expected = differences(*separate)
        close(jacobian(*same), rows_by_leaf(expected, *separate))
        close(jvp(*same, vectors), expected @ flat(vectors))
        outputs = linearize(*same)
        cotangents = keras.tree.map_structure(lambda part: draw(*part.shape, seed=3), outputs.value)
        close(outputs.vjp(cotangents), expected.T @ flat(cotangents))
        close(vjp(*same, cotangents), expected.T @ flat(cotangents))

        def scalar(p, f):
            return sum(ops.sum(part**2) for part in keras.tree.flatten(f(p)))

        ours, theirs = ((lambda p, f=f: scalar(p, f), where) for f, where in (same, separate))
        close(gradient(*ours), differences(*theirs), 1e-6)
        second = differences(lambda p, f=theirs[0]: gradient(f, p), theirs[1])
        close(hvp(*ours, vectors), second @ flat(vectors), 1e-6)
        close(hessian(*ours), rows_by_leaf(second, lambda p: p, theirs[1]), 1e-6)


def rows_by_leaf(matrix, function, point):
    """Return the blocks of a Jacobian by output and leaf of the point, one after the other."""
    row, blocks = 0, []
    for part in keras.tree.flatten(function(point)):
        rows, column = int(np.prod(part.shape)), 0
        for leaf in keras.tree.flatten(point):
            blocks.append(matrix[row : row + rows, column : column + leaf.size].ravel())
            column += leaf.size
        row += rows
    return np.concatenate(blocks)


def masks_on_the_point():
    sequences = draw(2, 4, 3)
    sequences[0, 2:] = sequences[1, 1:] = 0
    masked = layers.Masking()(sequences)
    padding = np.repeat(np.array([[0, 0, 1, 1], [0, 1, 1, 1]], bool)[..., None], 3, axis=-1)
    pooling, recurrent = layers.GlobalAveragePooling1D(), layers.SimpleRNN(2, unroll=True)
    expected = np.where(padding, 0, 1 / np.array([2, 1])[:, None, None])
    close(gradient(lambda x: ops.sum(pooling(x)), masked), expected, 1e-6)
    # The function receives the point as part of a structure, and its outputs keep their masks.
    close(gradient(lambda p: ops.sum(pooling(p["x"]) ** 2) / 2, {"x": masked})["x"], expected * flat_rows(masked), 1e-6)
    for layer in (pooling, recurrent):
        value = layer(masked)
        linear = linearize(layer, masked)
        close(linear.value, flat(value), 1e-6)
        transposed = linear.vjp(ops.ones_like(value))
        assert not np.abs(ops.convert_to_numpy(transposed)[padding]).any()
        close(vjp(layer, masked, ops.ones_like(value)), flat(transposed), 1e-6)
        close(jvp(layer, masked, padding.astype("float64")), np.zeros(value.shape), 1e-6)
    passed = linearize(layers.Activation("tanh"), masked).value
    close(pooling(passed), flat(pooling(layers.Activation("tanh")(masked))), 1e-6)


def flat_rows(masked):
    """Return the means over the entries that are not masked, repeated along the sequences."""
    array = ops.convert_to_numpy(masked)
    counts = np.any(array, axis=2).sum(axis=1)
    return np.repeat((array.sum(axis=1) / counts[:, None])[:, None], 4, axis=1)


def smooth_model():
    penalty = keras.regularizers.L2(0.25)
    hidden = layers.Dense(3, ops.square, kernel_regularizer=penalty, name="hidden")
    return keras.Sequential([keras.Input((2,), dtype="float64"), hidden, layers.Dense(2, name="logits")])


def models_by_inputs_and_variables():
    model, x, y = smooth_model(), draw(4, 2), draw(4, 2, seed=1)
    close(jacobian(model, x), differences(lambda x: model(x), x))
    # The Jacobian of each example from the sum over the examples.
    own = jacobian(lambda x: ops.sum(model(x), axis=0), x)
    assert tuple(own.shape) == (2, 4, 2)
    close(own[:, 1], differences(lambda x: model(x), x[1:2]))

    def loss(_):
        return ops.sum((model(x) - y) ** 2) + sum(model.losses)

    variables = model.trainable_variables
    slope = differences(lambda _: loss(None), variables)[0]
    close(gradient(loss, variables), slope, 1e-6)
    matrix = differences(lambda _: gradient(loss, variables), variables)
    vectors = [draw(*variable.shape) for variable in variables]
    close(hvp(loss, variables, vectors), matrix @ flat(vectors), 1e-6)
    close(hessian(loss, variables[0]), matrix[:6, :6], 1e-6)
    # Regularizers of variables outside of the point have values as well.
    close(gradient(loss, [model.get_layer("logits").bias]), slope[-2:], 1e-6)
    # Gradients of the examples.
    examples = jacobian(lambda _: ops.sum((model(x) - y) ** 2, axis=1), variables)
    close(ops.sum(examples[0], axis=0), gradient(lambda _: ops.sum((model(x) - y) ** 2), variables[0]), 1e-12)
    # Derivatives with respect to the variables of derivatives with respect to the inputs.
    energy = [lambda _: ops.sum(gradient(lambda x: ops.sum(model(x) ** 2), x) ** 2)]
    close(gradient(energy[0], variables), differences(energy[0], variables)[0], 1e-6)


def nothing_changes():
    keras.config.set_dtype_policy("float32")
    x = draw(6, 3).astype("float32")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5)])
    model.add(layers.ActivityRegularization(0.1))
    metric = keras.metrics.Mean()
    metric.update_state(2.0)
    model(x, training=True)

    def state():
        return [np.array(ops.convert_to_numpy(v.value)) for v in [*model.variables, *metric.variables]]

    def loss(_):
        outputs = model(x, training=True)
        metric.update_state(ops.sum(outputs))
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


def embeddings_masks_and_recurrent_layers():
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
    examples = jacobian(lambda _: ops.square(model(tokens)[:, 0] - 0.5), variables)
    close([ops.sum(part, axis=0) for part in examples], flat(gradient(loss, variables)), 1e-6)
    # Padding is masked, so that the second example depends only on its two tokens.
    by_example = np.abs(ops.convert_to_numpy(examples[0])).max(axis=-1)
    assert (by_example[1] > 0).tolist() == [False, True, False, True]


def wrong_arguments():
    model, x = smooth_model(), draw(2, 2)

    def refused(function, *arguments, match):
        with pytest.raises(ValueError, match=match):
            function(*arguments)

    refused(gradient, model, x, match=r"must return one scalar.* Received: outputs of shape \(2, 2\). Use `jacobian`")
    refused(jacobian, lambda x: None, x, match=r"must return tensors. Received: None")
    refused(jacobian, lambda x: ops.argmax(x), x, match=r"must return floating-point tensors. Received: int\d\d")
    refused(jacobian, ops.abs, np.arange(3), match=r"floating-point tensors. Received: int\d\d of shape \(3,\)")
    refused(gradient, ops.sum, [], match="`point` must contain at least one tensor")
    bias = model.layers[0].bias
    refused(gradient, lambda _: ops.sum(bias**2), [bias, bias], match="must not contain a variable twice")
    refused(jvp, model, x, x[:1], match=r"`vector` must have the shapes of `point`: \(2, 2\). Received: \(1, 2\)")
    refused(vjp, model, x, x[0], match=r"must have the shapes of the outputs of `function`: \(2, 2\)")
    refused(hessian, ops.sum, x, 0, match="`chunk`")


CASES = (
    closed_forms,
    nested_structures,
    repeated_tensors,
    masks_on_the_point,
    models_by_inputs_and_variables,
    nothing_changes,
    embeddings_masks_and_recurrent_layers,
    wrong_arguments,
)


def run(case):
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    case()
