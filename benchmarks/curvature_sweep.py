"""Are curvature products right for every layer and loss that Keras has? Each is compared with central differences.

    python benchmarks/curvature_sweep.py [--only PATTERN] [--out FILE] [--write]

The cases are generated from `keras.layers`, `keras.activations` and `keras.losses`: a layer is given what its
constructor needs by the names of its parameters, and the first of a few input shapes that it accepts; a `Dense` layer
with tanh stands in front of it, so that it is differentiated with respect to its inputs, and another one behind it. In
float64, except for what TensorFlow computes in float32 alone, where differences are accurate to a percent or so; layers
that know `training` in both modes. Half an hour on two idle cores is plenty. Each case is kept in --out as it ends: a
sweep that was stopped goes on with the cases that are missing, unless the package's code or Keras has changed since.
`--write` writes the table to benchmarks/results/curvature_sweep.csv, from which the site's page is made.
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

from harness.sittings import finished
from idmatters_tf.curvature import FisherOperator, GaussNewtonOperator, HessianOperator

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "results" / "curvature_sweep.csv"
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
    "alpha": 0.1, "height_factor": 0.1, "width_factor": 0.1, "layers": [],
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
    "MelSpectrogram": lambda: keras.layers.MelSpectrogram(8, sequence_stride=4, sampling_rate=16, num_mel_bins=2),
    "STFTSpectrogram": lambda: keras.layers.STFTSpectrogram(frame_length=8, frame_step=4, fft_length=8),
    "RandomPosterization": lambda: keras.layers.RandomPosterization(4),
}
# Nothing differentiable can stand in front of them (strings, categories, boxes), or they are no layers of their own.
EXCLUDED = {
    "Layer", "InputLayer", "Wrapper", "MaxNumBoundingBoxes", "StringLookup", "IntegerLookup", "Hashing",
    "HashedCrossing", "CategoryEncoding", "Discretization", "TextVectorization", "TorchModuleWrapper", "TFSMLayer",
    "FlaxLayer", "JaxLayer",
}  # fmt: skip
SHAPES = ((4,), (5, 4), (6, 6, 4), (4, 4, 4, 4), (3, 6, 6, 4), (2, 4, 4, 4, 4))
IMAGES, SIGNALS = ((8, 8, 4),), ((24,), (24, 1))
# By the precision of a layer: the step of the differences in the oracle, and how large an error may be.
STEPS = {"float64": 1e-5, "float32": 1e-2}
TOLERANCES = {"float64": TOLERANCE, "float32": 0.05}


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
        return not any("WRONG" in entry for entry in (self.hessian, self.gauss_newton, self.fisher))


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


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with a layer between two dense ones.

    Attributes:
        model: it.
        shape: of an input.
        tokens: whether the inputs are whole numbers.
        precision: the layer's dtype; all else is float64.
    """

    model: keras.Model
    shape: tuple[int, ...]
    tokens: bool
    precision: str


def built(name: str, shape: tuple[int, ...], form: str, precision: str) -> Case | None:
    """The model with one way to call the layer; None where nothing would be trained in front of it."""
    keras.utils.set_random_seed(0)
    tokens = form == "tokens"
    inputs = keras.Input(shape, dtype="int32" if tokens else "float64")
    # Layers for colours take three channels, those for signals as many samples or channels as there are.
    width = 3 if form == "colours" else shape[-1] if shape in SIGNALS else 4
    hidden, other = (
        inputs if tokens else keras.layers.Dense(width, activation="tanh")(inputs) for _ in ("hidden", "other")
    )
    keras.config.set_dtype_policy(precision)
    try:
        layer = instance(name)
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
    """The first way to build a model with a layer that works; float32 where TensorFlow has no other kernel."""
    problems: list[Exception] = []
    module = getattr(keras.layers, name).__module__
    shapes = SIGNALS if name.endswith("Spectrogram") else IMAGES if "image_preprocessing" in module else SHAPES
    for precision in ("float64", "float32"):
        for shape in shapes:
            for form in ("one", "list", "pair", "colours", "tokens"):
                try:
                    case = built(name, shape, form, precision)
                    if case is not None:
                        return case
                except Exception as error:
                    problems.append(error)
    raise ValueError(f"no arguments found: {str(problems[0]).splitlines()[0][:80] if problems else ''}")


def oracle(model: Any, losses: Any, x: Any, y: Any, training: bool, vector: Any, step: float) -> tuple[Any, Any]:
    """(G v, F v) from differences of outputs, losses and slopes of the loss, and first derivatives.

    Args:
        model: it.
        losses: a function of labels and outputs, (ROWS,) or a scalar; of a scalar there is no F v that means anything.
        x, y: the data.
        training: how the model is called.
        vector: v.
        step: of the differences.
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


def judged(name: str, mode: str, model: Any, loss: Any, losses: Any, x: Any, y: Any, training: bool = False) -> Result:
    """All three products compared.

    Args:
        name, mode: of the case.
        model: it.
        loss: what the operators are given.
        losses: the same loss by example, for the oracle.
        x, y: the data.
        training: how the model is called.
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
    # Some layers cast to float32 whatever their dtype is.
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
            # A logarithm close to zero: the error of the oracle falls with the square of its step.
            error = min(error, difference(product, oracle(*arguments, STEPS[precision] / 10)[index]))
        found.append(shown(error, precision))
    mode += " (float32)" if precision == "float32" else ""
    return Result(name, mode, shown(check.difference, precision), *found)


def difference(product: Any, right: Any) -> float:
    return float(np.linalg.norm(product - right) / max(np.linalg.norm(right), 1e-30))


def shown(error: float, precision: str = "float64") -> str:
    return f"{error:.0e}" if error < TOLERANCES[precision] else f"WRONG: {error:.0e}"


class RefusedError(Exception):
    """What an operator says to a case that it does not take."""


def refusal(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # Of what goes wrong while a graph is traced or run, the last line says what it was.
    line = lines[-1] if lines[0].startswith(("in user code", "Graph execution error")) else lines[0]
    return f"refused: {line.split('. ')[0][:90]}".replace("|", "/")


def squares(y: Any, outputs: Any) -> Any:
    return tf.reduce_mean((outputs - y) ** 2, axis=-1)


def of_layer(name: str, training: bool) -> Result:
    """A layer in one mode."""
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
        return judged(name, mode, case.model, squares, squares, x, rng.normal(size=(ROWS, 2)), training)
    except RefusedError as error:
        return Result(name, mode, str(error), "", "")


def behind(*layers: Any, shape: tuple[int, ...] = (4,)) -> keras.Model:
    """A model that ends with these layers, with a dense one in front of them."""
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    first = keras.layers.Dense(3, activation="tanh")
    return keras.Sequential([keras.Input(shape, dtype="float64"), first, *layers])


def of_activation(name: str) -> Result:
    """An activation function between dense layers."""
    rng = np.random.default_rng(0)
    keras.config.set_dtype_policy("float64")
    model = behind(keras.layers.Dense(4, activation=name), keras.layers.Dense(2))
    x, y = rng.normal(size=(ROWS, 4)), rng.normal(size=(ROWS, 2))
    try:
        return judged(name, "activation", model, squares, squares, x, y)
    except RefusedError as error:
        return Result(name, "activation", str(error), "", "")


def of_loss(name: str) -> Result:
    """A loss behind a small network, with outputs and labels that it takes."""
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
        # Behind a sigmoid Keras' own loss depends on whether it still knows the logits.
        attempts = [("softmax", shares / shares.sum(axis=1, keepdims=True))]
    refused = ""
    for activation, y in attempts:
        shape = (5, 4) if name == "CTC" else (4,)
        keras.config.set_dtype_policy("float64")
        model = behind(keras.layers.Dense(4, activation=activation), shape=shape)
        kind = getattr(keras.losses, name)
        x = rng.normal(size=(ROWS, *shape))
        try:
            # Alone, a Keras loss computes in float32.
            losses = kind(reduction=None, dtype="float64")
            return judged(name, f"{activation} outputs", model, kind(), losses, x, y)
        except RefusedError as error:
            refused = str(error)
    return Result(name, "", refused, "", "")


def names(pattern: str) -> Iterator[tuple[str, Callable[[], Result]]]:
    """All cases: a key, and the function that works it out."""
    for name in sorted(dir(keras.losses)):
        kind = getattr(keras.losses, name)
        is_loss = inspect.isclass(kind) and issubclass(kind, keras.losses.Loss) and kind is not keras.losses.Loss
        if is_loss and fnmatch.fnmatch(name, pattern):
            yield f"loss {name}", functools.partial(of_loss, name)
    for name in sorted(dir(keras.activations)):
        # Of these, one halves its input and one needs arguments: a layer does not take them by name.
        others = ("deserialize", "get", "serialize", "glu", "threshold")
        is_activation = not name.startswith("_") and name not in others
        if is_activation and fnmatch.fnmatch(name, pattern):
            yield f"activation {name}", functools.partial(of_activation, name)
    for name in sorted(dir(keras.layers)):
        kind = getattr(keras.layers, name)
        if not inspect.isclass(kind) or not issubclass(kind, keras.layers.Layer) or name in EXCLUDED:
            continue
        if not fnmatch.fnmatch(name, pattern):
            continue
        modes = (False, True) if "training" in inspect.signature(kind.call).parameters else (False,)
        for training in modes:
            yield f"layer {name} {training}", functools.partial(of_layer, name, training)


def write(results: list[Result]) -> None:
    """Write the results as a CSV file, one line for each case."""
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(field.name for field in dataclasses.fields(Result))
        writer.writerows(map(dataclasses.astuple, results))


def code() -> dict[str, str]:
    """What the results depend on: the versions, and the code of products and sweep."""
    sources = [*sorted((ROOT / "idmatters_tf" / "curvature").glob("*.py")), pathlib.Path(__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    return {"code": digest, "keras": keras.__version__, "tensorflow": tf.__version__}


def main() -> None:
    """Runs the sweep and prints each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="names of layers and losses, a pattern (default: all)")
    parser.add_argument("--out", default="runs/curvature-sweep.jsonl", help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results")
    options = parser.parse_args()
    out, settings = pathlib.Path(options.out), code()
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {row["case"]: Result(**row["result"]) for row in finished(out, settings)}
    results = []
    for case, work in names(options.only):
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
    wrong = [result.name for result in results if not result.right]
    print(f"{len(results)} cases, wrong: {', '.join(wrong) or 'none'}")
    if options.write:
        write(results)


if __name__ == "__main__":
    main()
