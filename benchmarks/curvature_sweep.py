"""Claim: curvature products agree with central differences for every loss, activation and layer of Keras.

    python benchmarks/curvature_sweep.py [--only PATTERN] [--out FILE] [--write]

The cases are generated from `keras.layers`, `keras.activations` and `keras.losses`. The arguments of a layer's
constructor are chosen by name, and its input shape is the first of a list that works. The layer follows a `Dense` layer
with tanh, so that it is differentiated with respect to its inputs, and precedes another `Dense` layer. Computations are
in float64, except for layers that TensorFlow computes in float32 only, where differences are accurate to about a
percent. Layers with an argument `training` are tested in both modes.

The sweep takes at most half an hour on two idle cores. Finished cases are stored in --out, and a stopped sweep resumes
with the remaining cases, unless the code of the package or the version of Keras has changed. `--write` writes the table
to benchmarks/results/curvature_sweep.csv, the source of the page on the site.
"""

import argparse
import csv
import dataclasses
import fnmatch
import functools
import hashlib
import inspect
import json
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from harness.sittings import load_finished
from idmatters_tf.curvature import FisherOperator, GaussNewtonOperator, HessianOperator

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "results" / "curvature_sweep.csv"
ROWS = 4
TOLERANCE = 1e-5

# Values of constructor arguments without a default, by name.
ARGUMENTS: dict[str, Any] = {
    "units": 3, "filters": 2, "kernel_size": 2, "rate": 0.3, "input_dim": 5, "output_dim": 3, "n": 2, "num_heads": 2,
    "key_dim": 2, "head_dim": 2, "num_query_heads": 2, "num_key_value_heads": 1, "stddev": 0.1, "seed": 0,
    "target_shape": (-1,), "dims": (2, 1), "axes": 1, "min_value": -1.0, "max_value": 1.0, "theta": 0.5,
    "height": 4, "width": 4, "factor": 0.1, "num_tokens": 5, "num_bins": 4, "bin_boundaries": [-0.5, 0.0, 0.5],
    "activation": "tanh", "equation": "ab,bc->ac", "output_shape": 3, "function": keras.ops.tanh, "scale": 0.5,
    "reduction_axes": 1, "output_size": 2, "pool_size": 2, "group_size": 2, "target_height": 4, "target_width": 4,
    "alpha": 0.1, "height_factor": 0.1, "width_factor": 0.1, "layers": [],
}  # fmt: skip
# Constructors whose arguments cannot be chosen by name.
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
    "MelSpectrogram": lambda: keras.layers.MelSpectrogram(8, sequence_stride=4, sampling_rate=16, num_mel_bins=2),
    "STFTSpectrogram": lambda: keras.layers.STFTSpectrogram(frame_length=8, frame_step=4, fft_length=8),
    "RandomPosterization": lambda: keras.layers.RandomPosterization(4),
}
# Layers without differentiable inputs (strings, categories, boxes), and base classes.
EXCLUDED = {
    "Layer", "InputLayer", "Wrapper", "MaxNumBoundingBoxes", "StringLookup", "IntegerLookup", "Hashing",
    "HashedCrossing", "CategoryEncoding", "Discretization", "TextVectorization", "TorchModuleWrapper", "TFSMLayer",
    "FlaxLayer", "JaxLayer",
}  # fmt: skip
SHAPES = ((4,), (5, 4), (6, 6, 4), (4, 4, 4, 4), (3, 6, 6, 4), (2, 4, 4, 4, 4))
IMAGES, SIGNALS = ((8, 8, 4),), ((24,), (24, 1))
# By the precision of a layer: the step of the oracle's differences, and the largest error.
STEPS = {"float64": 1e-5, "float32": 1e-2}
TOLERANCES = {"float64": TOLERANCE, "float32": 0.05}


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one case: name, mode, and for each product its relative error or the reason for its absence."""

    name: str
    mode: str
    hessian: str
    gauss_newton: str
    fisher: str

    @property
    def is_right(self) -> bool:
        """True if no product is wrong."""
        return not any("WRONG" in entry for entry in (self.hessian, self.gauss_newton, self.fisher))


def make_layer(name: str) -> Any:
    """Return a layer with arguments chosen by name."""
    if name in CONSTRUCTORS:
        return CONSTRUCTORS[name]()
    kind = getattr(keras.layers, name)
    needed = [
        parameter.name
        for parameter in inspect.signature(kind.__init__).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    return kind(**{argument: ARGUMENTS[argument] for argument in needed if argument != "self"})


@dataclasses.dataclass(frozen=True)
class Case:
    """Model with a layer between two dense layers.

    Attributes:
        model: the model.
        shape: shape of an input.
        tokens: True if the inputs are integers.
        precision: dtype of the layer; the rest of the model is float64.
    """

    model: keras.Model
    shape: tuple[int, ...]
    tokens: bool
    precision: str


def build_case(name: str, shape: tuple[int, ...], form: str, precision: str) -> Case | None:
    """Return a model that calls the layer in one form, or None if the layer had no trainable weights before it."""
    keras.utils.set_random_seed(0)
    tokens = form == "tokens"
    inputs = keras.Input(shape, dtype="int32" if tokens else "float64")
    # Color layers take three channels; signal layers keep the number of samples or channels.
    width = 3 if form == "colors" else shape[-1] if shape in SIGNALS else 4
    hidden, other = (
        inputs if tokens else keras.layers.Dense(width, activation="tanh")(inputs) for _ in ("hidden", "other")
    )
    keras.config.set_dtype_policy(precision)
    try:
        layer = make_layer(name)
    finally:
        keras.config.set_dtype_policy("float64")
    if tokens and not layer.trainable_variables:
        return None
    arguments: Any = {"list": ([hidden, other],), "pair": (hidden, other)}.get(form, (hidden,))
    outputs = keras.tree.flatten(layer(*arguments))[0]
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(outputs)))
    sample = np.zeros((ROWS, *shape), "int32" if tokens else "float64")
    if not np.isfinite(np.asarray(model(sample))).all():
        raise ValueError("outputs that are not finite")
    return Case(model, shape, tokens, precision)


def model_with(name: str) -> Case:
    """Return the first model with a layer that can be built, in float32 if TensorFlow has no float64 kernel."""
    problems: list[Exception] = []
    module = getattr(keras.layers, name).__module__
    shapes = SIGNALS if name.endswith("Spectrogram") else IMAGES if "image_preprocessing" in module else SHAPES
    for precision in ("float64", "float32"):
        for shape in shapes:
            for form in ("one", "list", "pair", "colors", "tokens"):
                try:
                    case = build_case(name, shape, form, precision)
                    if case is not None:
                        return case
                except Exception as error:
                    problems.append(error)
    raise ValueError(f"no arguments found: {str(problems[0]).splitlines()[0][:80] if problems else ''}")


def oracle(model: Any, losses: Any, x: Any, y: Any, training: bool, vector: Any, step: float) -> tuple[Any, Any]:
    """Return (G v, F v) from first derivatives and differences of outputs, losses and gradients of the loss.

    Args:
        model: the model.
        losses: function of labels and outputs that returns (ROWS,) or a scalar; F v is meaningless for a scalar.
        x, y: data.
        training: argument of the model's call.
        vector: v.
        step: step of the differences.
    """
    variables = model.trainable_variables
    start = [keras.ops.convert_to_numpy(variable) for variable in variables]
    state = [keras.ops.convert_to_numpy(variable) for variable in model.non_trainable_variables]
    parts = np.split(vector, np.cumsum([part.size for part in start])[:-1])

    def restore() -> None:
        for variable, value in zip(model.non_trainable_variables, state, strict=True):
            variable.assign(value)

    def at(amount: float) -> tuple[Any, Any]:
        for variable, value, part in zip(variables, start, parts, strict=True):
            variable.assign(value + amount * part.reshape(value.shape))
        outputs = model(x, training=training)
        restore()
        return np.asarray(outputs), np.asarray(losses(y, outputs))

    def slope(outputs: Any) -> Any:
        outputs = tf.constant(outputs)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = tf.reduce_mean(losses(y, outputs))
        return tf.convert_to_tensor(tape.gradient(loss, outputs)).numpy()

    (high, high_losses), (low, low_losses) = at(step), at(-step)
    moved, moved_losses = (high - low) / (2 * step), (high_losses - low_losses) / (2 * step)
    here, _ = at(0.0)
    bend = (slope(here + 1e-5 * moved) - slope(here - 1e-5 * moved)) / 2e-5
    with tf.GradientTape(persistent=True) as tape:
        outputs = model(x, training=training)
        along_outputs = tf.reduce_sum(outputs * bend)
        along_losses = tf.reduce_sum(losses(y, outputs) * (moved_losses / ROWS))
    restore()
    values = [variable.value for variable in variables]

    def flat(target: Any) -> Any:
        gradients = tape.gradient(target, values, unconnected_gradients="zero")
        return np.concatenate([np.ravel(tf.convert_to_tensor(gradient)) for gradient in gradients])

    return flat(along_outputs), flat(along_losses)


def compare(name: str, mode: str, model: Any, loss: Any, losses: Any, x: Any, y: Any, training: bool = False) -> Result:
    """Compare all three products with the oracle.

    Args:
        name, mode: name and mode of the case.
        model: the model.
        loss: loss for the operators.
        losses: the same loss per example, for the oracle.
        x, y: data.
        training: argument of the model's call.
    """
    options: dict[str, Any] = {"training": training, "batch_size": ROWS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            hessian = HessianOperator(model, loss, (x, y), **options)
        except Exception as error:
            raise RefusedError(refusal(error)) from error
    check = hessian.difference
    assert check is not None
    if check.status == "differs":
        return Result(name, mode, f"warned of: {100 * check.difference:.2g} % from differences", "", "")
    # Some layers cast to float32, independently of their dtype.
    precision = "float64" if check.accuracy < TOLERANCE else "float32"
    vector = np.random.default_rng(1).normal(size=hessian.shape[0])
    arguments = model, losses, tf.constant(x), tf.constant(y), training, vector
    expected = oracle(*arguments, STEPS[precision])
    found = []
    for index, kind in enumerate((GaussNewtonOperator, FisherOperator)):
        try:
            product = kind(model, loss, (x, y), check=False, **options) @ vector
        except Exception as error:
            found.append(refusal(error))
            continue
        error = difference(product, expected[index])
        if error >= TOLERANCES[precision]:
            # Near the pole of a logarithm a smaller step helps: the oracle's error is quadratic in its step.
            error = min(error, difference(product, oracle(*arguments, STEPS[precision] / 10)[index]))
        found.append(format_error(error, precision))
    mode += " (float32)" if precision == "float32" else ""
    return Result(name, mode, format_error(check.difference, precision), *found)


def difference(product: Any, right: Any) -> float:
    return float(np.linalg.norm(product - right) / max(np.linalg.norm(right), 1e-30))


def format_error(error: float, precision: str = "float64") -> str:
    return f"{error:.0e}" if error < TOLERANCES[precision] else f"WRONG: {error:.0e}"


class RefusedError(Exception):
    """Error for a case that an operator rejects."""


def refusal(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # The last line names the cause of an error while a graph is traced or run.
    line = lines[-1] if lines[0].startswith(("in user code", "Graph execution error")) else lines[0]
    return f"refused: {line.split('. ')[0][:90]}".replace("|", "/")


def squares(y: Any, outputs: Any) -> Any:
    return tf.reduce_mean((outputs - y) ** 2, axis=-1)


def check_layer(name: str, training: bool) -> Result:
    """Return the result of a layer in one mode."""
    mode = "training" if training else "inference"
    keras.config.set_dtype_policy("float64")
    try:
        case = model_with(name)
    except ValueError as error:
        return Result(name, mode, f"not built: {error}", "", "")
    rng = np.random.default_rng(0)
    size = (ROWS, *case.shape)
    x: Any = rng.integers(0, 5, size).astype("int32") if case.tokens else rng.normal(size=size)
    try:
        return compare(name, mode, case.model, squares, squares, x, rng.normal(size=(ROWS, 2)), training)
    except RefusedError as error:
        return Result(name, mode, str(error), "", "")


def build_model(*layers: Any, shape: tuple[int, ...] = (4,)) -> keras.Model:
    """Return a model of a dense layer followed by `layers`."""
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    first = keras.layers.Dense(3, activation="tanh")
    return keras.Sequential([keras.Input(shape, dtype="float64"), first, *layers])


def check_activation(name: str) -> Result:
    """Return the result of an activation function between dense layers."""
    rng = np.random.default_rng(0)
    keras.config.set_dtype_policy("float64")
    model = build_model(keras.layers.Dense(4, activation=name), keras.layers.Dense(2))
    x, y = rng.normal(size=(ROWS, 4)), rng.normal(size=(ROWS, 2))
    try:
        return compare(name, "activation", model, squares, squares, x, y)
    except RefusedError as error:
        return Result(name, "activation", str(error), "", "")


def check_loss(name: str) -> Result:
    """Return the result of a loss after a small network, with outputs and labels that the loss accepts."""
    rng = np.random.default_rng(0)
    whole, shares = np.arange(ROWS), rng.uniform(0.2, 0.8, (ROWS, 4))
    attempts: list[tuple[str, Any]] = [("sigmoid", shares), ("linear", shares), ("softmax", np.eye(4)[whole])]
    if name == "CTC":
        attempts = [("linear", np.tile([1, 2], (ROWS, 1)))]
    elif name == "Circle":
        attempts = [("softmax", whole % 2)]
    elif "Sparse" in name or "Generalized" in name:
        attempts = [("softmax", whole)]
    elif name.startswith("Categorical"):
        # After a sigmoid, Keras' loss depends on whether its outputs still carry the logits.
        attempts = [("softmax", shares / shares.sum(axis=1, keepdims=True))]
    refused = ""
    for activation, y in attempts:
        shape = (5, 4) if name == "CTC" else (4,)
        keras.config.set_dtype_policy("float64")
        model = build_model(keras.layers.Dense(4, activation=activation), shape=shape)
        kind = getattr(keras.losses, name)
        x = rng.normal(size=(ROWS, *shape))
        try:
            # Outside a model, a Keras loss computes in float32 by default.
            losses = kind(reduction=None, dtype="float64")
            return compare(name, f"{activation} outputs", model, kind(), losses, x, y)
        except RefusedError as error:
            refused = str(error)
    return Result(name, "", refused, "", "")


def list_cases(pattern: str) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Yield the key of each case and the function that returns its result."""
    for name in sorted(dir(keras.losses)):
        kind = getattr(keras.losses, name)
        is_loss = inspect.isclass(kind) and issubclass(kind, keras.losses.Loss) and kind is not keras.losses.Loss
        if is_loss and fnmatch.fnmatch(name, pattern):
            yield f"loss {name}", functools.partial(check_loss, name)
    for name in sorted(dir(keras.activations)):
        # `glu` halves its input and `threshold` needs arguments, so that layers do not accept them by name.
        others = ("deserialize", "get", "serialize", "glu", "threshold")
        is_activation = not name.startswith("_") and name not in others
        if is_activation and fnmatch.fnmatch(name, pattern):
            yield f"activation {name}", functools.partial(check_activation, name)
    for name in sorted(dir(keras.layers)):
        kind = getattr(keras.layers, name)
        if not inspect.isclass(kind) or not issubclass(kind, keras.layers.Layer) or name in EXCLUDED:
            continue
        if not fnmatch.fnmatch(name, pattern):
            continue
        modes = (False, True) if "training" in inspect.signature(kind.call).parameters else (False,)
        for training in modes:
            yield f"layer {name} {training}", functools.partial(check_layer, name, training)


def write(results: list[Result]) -> None:
    """Write the results as a CSV file with one line per case."""
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(field.name for field in dataclasses.fields(Result))
        writer.writerows(map(dataclasses.astuple, results))


def code_version() -> dict[str, str]:
    """Return the versions and a checksum of the code on which the results depend."""
    sources = [*sorted((ROOT / "idmatters_tf" / "curvature").glob("*.py")), pathlib.Path(__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    return {"code": digest, "keras": keras.__version__, "tensorflow": tf.__version__}


def main() -> None:
    """Run the sweep and print each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="pattern of names of layers and losses (default: all)")
    parser.add_argument("--out", default="runs/curvature-sweep.jsonl", help="output file (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results")
    options = parser.parse_args()
    out, settings = pathlib.Path(options.out), code_version()
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {row["case"]: Result(**row["result"]) for row in load_finished(out, settings)}
    results = []
    for case, work in list_cases(options.only):
        if case not in known:
            try:
                known[case] = work()
            except Exception as error:
                known[case] = Result(case.split()[1], "", f"WRONG: the sweep itself failed: {error!r:.90}", "", "")
            keras.backend.clear_session()
            with out.open("a") as file:
                row = {"settings": settings, "case": case, "result": dataclasses.asdict(known[case])}
                print(json.dumps(row), file=file)
        results.append(known[case])
        print(" | ".join(dataclasses.astuple(known[case])), flush=True)
    wrong = [result.name for result in results if not result.is_right]
    print(f"{len(results)} cases, wrong: {', '.join(wrong) or 'none'}")
    if options.write:
        write(results)


if __name__ == "__main__":
    main()
