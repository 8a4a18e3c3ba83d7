"""Are curvature products right for every layer and loss that Keras has? Each is compared with central differences.

    python benchmarks/curvature_sweep.py [--only PATTERN] [--write]

The cases are generated from `keras.layers` and `keras.losses`: a layer is given what its constructor needs by the names
of its parameters, and the first of a few input shapes that it accepts; a `Dense` layer with tanh stands in front of it,
so that it is differentiated with respect to its inputs, and another one behind it. In float64; layers that know
`training` in both modes. `--write` puts the table into docs/curvature.md. Half an hour on two idle cores is plenty.
"""

import argparse
import dataclasses
import fnmatch
import inspect
import os
import pathlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.curvature import FisherOperator, GaussNewtonOperator, HessianOperator

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "curvature.md"
BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"
ROWS = 4
TOLERANCE = 1e-5

# By the name of a constructor's parameter: what it is given where it has no default.
ARGUMENTS: dict[str, Any] = {
    "units": 3, "filters": 2, "kernel_size": 2, "rate": 0.3, "input_dim": 5, "output_dim": 3, "n": 2, "num_heads": 2,
    "key_dim": 2, "head_dim": 2, "num_query_heads": 2, "num_key_value_heads": 1, "stddev": 0.1, "seed": 0,
    "target_shape": (-1,), "dims": (2, 1), "axes": 1, "min_value": -1.0, "max_value": 1.0, "theta": 0.5,
    "height": 4, "width": 4, "factor": 0.1, "num_tokens": 5, "num_bins": 4, "bin_boundaries": [-0.5, 0.0, 0.5],
    "activation": "tanh", "equation": "ab,bc->ac", "output_shape": 3, "function": keras.ops.tanh, "scale": 0.5,
    "reduction_axes": 1, "output_size": 2, "pool_size": 2, "group_size": 2, "target_height": 4, "target_width": 4,
    "alpha": 0.1,
}  # fmt: skip
# Constructors that need more than one parameter's name tells.
CONSTRUCTORS: dict[str, Any] = {
    "Bidirectional": lambda: keras.layers.Bidirectional(keras.layers.GRU(2)),
    "TimeDistributed": lambda: keras.layers.TimeDistributed(keras.layers.Dense(2)),
    "SpectralNormalization": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(3)),
    "Wrapper": None,
    "RNN": lambda: keras.layers.RNN(keras.layers.LSTMCell(2)),
    "StackedRNNCells": lambda: keras.layers.RNN(keras.layers.StackedRNNCells([keras.layers.GRUCell(2)] * 1)),
    "GRUCell": lambda: keras.layers.RNN(keras.layers.GRUCell(2)),
    "LSTMCell": lambda: keras.layers.RNN(keras.layers.LSTMCell(2)),
    "SimpleRNNCell": lambda: keras.layers.RNN(keras.layers.SimpleRNNCell(2)),
    "GroupNormalization": lambda: keras.layers.GroupNormalization(2),
    "GroupedQueryAttention": lambda: keras.layers.GroupedQueryAttention(2, 2, 1),
    "ReversibleEmbedding": lambda: keras.layers.ReversibleEmbedding(5, 3),
    "BatchNormalization": lambda: keras.layers.BatchNormalization(),
}
# Data, not functions of trained variables; and what is no layer of its own.
EXCLUDED = {
    "Layer", "InputLayer", "Wrapper", "AugMix", "AutoContrast", "CenterCrop", "CutMix", "Equalization", "MixUp",
    "Pipeline", "RandAugment", "MaxNumBoundingBoxes", "MelSpectrogram", "STFTSpectrogram", "StringLookup",
    "IntegerLookup", "Hashing", "HashedCrossing", "CategoryEncoding", "Discretization", "TextVectorization",
    "TorchModuleWrapper", "TFSMLayer", "FlaxLayer", "JaxLayer", "Solarization", "Lambda",
}  # fmt: skip
SHAPES = ((4,), (5, 4), (6, 6, 4), (4, 4, 4, 4), (3, 6, 6, 4), (2, 4, 4, 4, 4))


@dataclasses.dataclass(frozen=True)
class Result:
    """One case: a name, a mode, and for each product its relative error or why there is none."""

    name: str
    mode: str
    hessian: str
    gauss_newton: str
    fisher: str

    @property
    def right(self) -> bool:
        """Whether nothing is off."""
        return "WRONG" not in (self.hessian, self.gauss_newton, self.fisher)


def instance(name: str) -> Any:
    """A layer, with arguments by the names of its parameters."""
    if name in CONSTRUCTORS:
        return CONSTRUCTORS[name]()
    kind = getattr(keras.layers, name)
    needed = [
        parameter.name
        for parameter in inspect.signature(kind.__init__).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    return kind(**{argument: ARGUMENTS[argument] for argument in needed if argument != "self"})


def model_with(name: str) -> tuple[keras.Model, tuple[int, ...], bool]:
    """A model with a layer between two dense ones; its input shape; whether its inputs are whole numbers."""
    problem: Exception | None = None
    for shape in SHAPES:
        for form in ("one", "list", "pair", "tokens"):
            keras.utils.set_random_seed(0)
            tokens = form == "tokens"
            inputs = keras.Input(shape, dtype="int32" if tokens else "float64")
            hidden = inputs if tokens else keras.layers.Dense(4, activation="tanh")(inputs)
            other = hidden if tokens else keras.layers.Dense(4, activation="tanh")(inputs)
            try:
                layer = instance(name)
                arguments: Any = {"list": ([hidden, other],), "pair": (hidden, other)}.get(form, (hidden,))
                outputs = keras.tree.flatten(layer(*arguments))[0]
                model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(outputs)))
                sample = np.zeros((ROWS, *shape), "int32" if tokens else "float64")
                if tokens and not layer.trainable_variables:
                    continue
                if np.isfinite(np.asarray(model(sample))).all() and model.count_params():
                    return model, shape, tokens
            except Exception as error:
                problem = error
    raise ValueError(f"no arguments found: {str(problem).splitlines()[0][:80] if problem else ''}")


def oracle(model: Any, loss: Any, x: Any, y: Any, training: bool, vector: Any) -> tuple[Any, Any]:
    """(G v, F v) from differences of the outputs and losses, and first derivatives."""
    variables = model.trainable_variables
    start = [keras.ops.convert_to_numpy(variable) for variable in variables]
    state = [keras.ops.convert_to_numpy(variable) for variable in model.non_trainable_variables]
    parts = np.split(vector, np.cumsum([part.size for part in start])[:-1])
    step = 1e-5

    def at(amount: float) -> tuple[Any, Any]:
        for variable, value, part in zip(variables, start, parts, strict=True):
            variable.assign(value + amount * part.reshape(value.shape))
        outputs = model(x, training=training)
        for variable, value in zip(model.non_trainable_variables, state, strict=True):
            variable.assign(value)
        return np.asarray(outputs), np.asarray(loss(y, outputs))

    (high, high_loss), (low, low_loss) = at(step), at(-step)
    moved, moved_loss = (high - low) / (2 * step), (high_loss - low_loss) / (2 * step)
    at(0.0)
    with tf.GradientTape(persistent=True) as tape:
        outputs = model(x, training=training)
        losses = loss(y, outputs)
        along_outputs = tf.reduce_sum(outputs * (2 / outputs.shape[1] * moved / len(x)))
        along_losses = tf.reduce_sum(losses * (moved_loss / len(x)))
    for variable, value in zip(model.non_trainable_variables, state, strict=True):
        variable.assign(value)
    values = [variable.value for variable in variables]

    def flat(target: Any) -> Any:
        gradients = tape.gradient(target, values, unconnected_gradients="zero")
        return np.concatenate([np.ravel(tf.convert_to_tensor(gradient)) for gradient in gradients])

    return flat(along_outputs), flat(along_losses)


def shown(error: float) -> str:
    return f"{error:.0e}" if error < TOLERANCE else "WRONG"


def refusal(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # Of what goes wrong while a graph is traced, the last line says what it was.
    line = lines[-1] if lines[0].startswith("in user code") else lines[0]
    return f"refused: {line.split('. ')[0][:90]}".replace("|", "/")


def squares(y: Any, outputs: Any) -> Any:
    return tf.reduce_mean((outputs - y) ** 2, axis=-1)


def of_layer(name: str, training: bool) -> Result:
    """A layer in one mode."""
    mode = "training" if training else "inference"
    # Clearing the session resets it.
    keras.config.set_dtype_policy("float64")
    try:
        model, shape, tokens = model_with(name)
    except ValueError as error:
        return Result(name, mode, *[f"not built: {error}"] * 3)
    rng = np.random.default_rng(0)
    x: Any = rng.integers(0, 5, (ROWS, *shape)).astype("int32") if tokens else rng.normal(size=(ROWS, *shape))
    y = rng.normal(size=(ROWS, 2))
    options: dict[str, Any] = {"training": training, "batch_size": ROWS}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hessian = HessianOperator(model, squares, (x, y), **options)
    except Exception as error:
        return Result(name, mode, *[refusal(error)] * 3)
    check = hessian.difference
    assert check is not None
    if check.accuracy > TOLERANCE:
        return Result(name, mode, *[f"computes in float32: differences are accurate to {check.accuracy:.0e} only"] * 3)
    vector = rng.normal(size=hessian.shape[0])
    expected = oracle(model, squares, tf.constant(x), tf.constant(y), training, vector)
    found = []
    for kind, right in zip((GaussNewtonOperator, FisherOperator), expected, strict=True):
        try:
            product = kind(model, squares, (x, y), check=False, **options) @ vector
            found.append(shown(float(np.linalg.norm(product - right) / max(np.linalg.norm(right), 1e-30))))
        except Exception as error:
            found.append(refusal(error))
    return Result(name, mode, shown(check.difference), *found)


def of_loss(name: str) -> Result:
    """A loss behind a small network, with outputs and labels that it takes."""
    keras.config.set_dtype_policy("float64")
    kind = getattr(keras.losses, name)
    rng = np.random.default_rng(0)
    problem: Exception = ValueError("no outputs found")
    for activation, labels in (("sigmoid", "share"), ("softmax", "classes"), ("linear", "share"), ("softmax", "boxes")):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="float64"),
                keras.layers.Dense(3, activation="tanh"),
                keras.layers.Dense(4, activation=activation),
            ]
        )
        y: Any = {
            "share": rng.uniform(0.2, 0.8, (ROWS, 4)),
            "classes": np.arange(ROWS),
            "boxes": np.eye(4)[:ROWS],
        }[labels]
        try:
            loss = kind()
            if ("Sparse" in name) != (labels == "classes"):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                operator = HessianOperator(model, loss, (rng.normal(size=(ROWS, 4)), y))
        except Exception as error:
            problem = error
            continue
        check = operator.difference
        assert check is not None
        return Result(name, f"{activation} outputs", shown(check.difference), "", "")
    return Result(name, "", refusal(problem), "", "")


def cases(pattern: str = "*") -> Iterator[Result]:
    """All results, one after the other."""
    for name in sorted(dir(keras.losses)):
        kind = getattr(keras.losses, name)
        is_loss = inspect.isclass(kind) and issubclass(kind, keras.losses.Loss) and kind is not keras.losses.Loss
        if is_loss and fnmatch.fnmatch(name, pattern):
            yield of_loss(name)
    for name in sorted(dir(keras.layers)):
        kind = getattr(keras.layers, name)
        if not inspect.isclass(kind) or not issubclass(kind, keras.layers.Layer) or name in EXCLUDED:
            continue
        if not fnmatch.fnmatch(name, pattern) or name.startswith("Random"):
            continue
        yield of_layer(name, False)
        if "training" in inspect.signature(kind.call).parameters:
            yield of_layer(name, True)
        keras.backend.clear_session()


def table(results: list[Result]) -> str:
    """The results in Markdown, one line a case."""
    rows = ["| layer or loss | mode | H v | G v | F v |", "|---|---|---|---|---|"]
    rows += [f"| {r.name} | {r.mode} | {r.hessian} | {r.gauss_newton} | {r.fisher} |" for r in results]
    return "\n".join(rows)


def main() -> None:
    """Runs the sweep and prints each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="names of layers and losses, a pattern (default: all)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/curvature.md")
    options = parser.parse_args()
    results = []
    for result in cases(options.only):
        results.append(result)
        print(" | ".join(dataclasses.astuple(result)), flush=True)
    wrong = [result.name for result in results if not result.right]
    print(f"{len(results)} cases, wrong: {', '.join(wrong) or 'none'}")
    if options.write:
        text = DOCUMENT.read_text()
        body = f"{BEGIN}\n\n{table(results)}\n\n{END}"
        DOCUMENT.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: body, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
