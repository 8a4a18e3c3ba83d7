"""Curvature operators of a few models in pure Keras, for comparisons between backends.

`python -m tests.curvature.both_backends WEIGHTS OUT OPTION ...` reads the weights, writes the matrices, and runs the
tests of derivatives with options of pytest.
"""

import sys

import keras
import numpy as np
import pytest
from keras import ops

from idmatters_tf.curvature import ModelLoss

ROWS = 6
# Keras 3.15 rounds float64 to float32 on JAX in `mean`, `tanh` and others, but not in sums and squares.
ROUNDED = ("masks", "language model")


def _squares(y, outputs):
    return ops.sum((y - outputs) ** 2, axis=-1)


# A variable that is not the model's.
FACTOR = keras.Variable(2.0)


def _scaled_squares(y, outputs):
    return ops.cast(FACTOR, outputs.dtype) * _squares(y, outputs)


def _sum_of_squares(y, outputs):
    return sum(_squares(y, output) for output in outputs[:3])


def _of_model(model, batch):
    x, y = batch
    return ops.sum(ops.square(ops.square(model(x)) - y)) / x.shape[0]


def language_model():
    """Return GPT-2 of one layer, of which LoRA alone is trained, its loss, and padded, weighted tokens in float64."""
    from tests.support import hub_models

    model, rng = hub_models.gpt2(num_layers=1, dropout=0.0, dtype="float64"), np.random.default_rng(1)
    model.preprocessor = None
    model.backbone.enable_lora(1)
    hub_models.randomized(model)
    # Large derivatives, because the factors of LoRA and their gradients are rounded to float32.
    model.set_weights([2 * weight for weight in model.get_weights()])
    # Without padding at the start: scores of attention that are all masked are rounded.
    inputs = {name: values[:3] for name, values in hub_models.inputs_for(model).items()}
    weights = inputs["padding_mask"] * np.array([[0.5], [1.0], [2.0]])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
    return model, loss, (inputs, rng.integers(0, 9, weights.shape), weights)


def models():
    """Return functions that return (model, loss, data) in float64, by name."""
    keras.config.set_dtype_policy("float64")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 4)), rng.normal(size=(ROWS, 2))

    def stack(*layers, shape=(4,)):
        return keras.Sequential([keras.Input(shape, dtype="float64"), *layers, keras.layers.Dense(2)])

    def squared(units, **options):
        return keras.layers.Dense(units, activation=ops.square, **options)

    sequences, labels = rng.normal(size=(2, ROWS, 3, 2))
    sequences[1, 2:] = sequences[4, 1:] = 0
    recurrent = keras.layers.SimpleRNN(2, return_sequences=True, unroll=True)
    inputs = keras.Input((4,), dtype="float64")
    hidden = squared(2)(inputs)
    # The last output is of an integer dtype and has no loss.
    outputs = [hidden, hidden, keras.layers.Activation("linear")(hidden), ops.argmax(hidden, axis=-1)]
    penalty = keras.regularizers.L2(0.125)
    weights = np.linspace(0.5, 2, ROWS)
    return {
        "weights": lambda: (stack(squared(3, kernel_regularizer=penalty)), _scaled_squares, (x, y, weights)),
        "masks": lambda: (stack(keras.layers.Masking(), recurrent, shape=(3, 2)), _squares, (sequences, labels)),
        "repeated outputs": lambda: (keras.Model(inputs, outputs), _sum_of_squares, (x, y)),
        "language model": language_model,
        "of the model": lambda: (stack(squared(3)), ModelLoss(_of_model), (x, np.eye(2)[np.arange(ROWS) % 2])),
    }


def matrices(names=None, weights=None):
    """Return dense matrices and gradients by model and kind, and the weights by model.

    Args:
        names: names of the models. If None, all.
        weights: list of arrays by model. If None, the weights of the models are used.
    """
    from idmatters_tf.curvature import GaussNewtonOperator, HessianOperator

    arrays, used = {}, {}
    every = models()
    for name in names or every:
        model, loss, data = every[name]()
        if weights is not None:
            model.set_weights(weights[name])
        used[name] = model.get_weights()
        # One shape of batches and one of vectors, since compilation takes most of the time.
        options = {"batch_size": ROWS // 2, "chunk": model.count_params()}
        hessian = HessianOperator(model, loss, data, check=name == "weights", **options)
        arrays[f"{name}/hessian"], arrays[f"{name}/gradient"] = hessian.to_dense(), hessian.gradient()
        if name in ("weights", "masks", "repeated outputs"):
            arrays[f"{name}/gauss_newton"] = GaussNewtonOperator(model, loss, data, check=False, **options).to_dense()
        if name == "weights":
            # Later changes of the model and of other variables are followed.
            model.set_weights([2 * weight for weight in model.get_weights()])
            FACTOR.assign(3.0)
            arrays[f"{name}/later gradient"] = hessian.gradient()
            FACTOR.assign(2.0)
    return arrays, used


if __name__ == "__main__":
    with np.load(sys.argv[1]) as saved:
        given: dict[str, list[np.ndarray]] = {}
        for entry in saved.files:
            given.setdefault(entry.rpartition("/")[0], []).append(saved[entry])
    np.savez(sys.argv[2], backend=keras.backend.backend(), **matrices(given, given)[0])
    sys.exit(pytest.main(["-p", "no:cacheprovider", "tests/autodiff/test_derivatives.py", *sys.argv[3:]]))
