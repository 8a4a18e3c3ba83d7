"""Memorizers as Keras models: construction, verification on every row, and report."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar, get_args

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf._arguments import check_choice, positive_integer, seed_number
from idmatters_tf._keras_types import Options
from idmatters_tf.expressivity._samples import check_range, check_sample, chunks
from idmatters_tf.expressivity.construction import Order, Weights, construct
from idmatters_tf.expressivity.stack import ResidualDenseStack

T = TypeVar("T")
Dtype: TypeAlias = Literal["float64", "float32"]

# Units of blocks computed in one product. More are not faster. The outputs do not depend on it.
LOOKAHEAD_UNITS = 512


def _with_own_floatx(method: Callable[..., T]) -> Callable[..., T]:
    """Return a method of `keras.Model` that sets Keras' float type to that of the model's inputs during the call."""

    @functools.wraps(method)
    def call(self: keras.Model, *args: object, **kwargs: object) -> T:
        before = keras.config.floatx()
        keras.config.set_floatx(keras.backend.standardize_dtype(self.inputs[0].dtype))
        try:
            return method(self, *args, **kwargs)
        finally:
            keras.config.set_floatx(before)

    return call


@keras.saving.register_keras_serializable("idmatters_tf")
class ExactModel(keras.Model):
    """Functional model whose `predict`, `evaluate` and `fit` keep float64 arrays.

    Keras rounds floating-point arrays to `keras.config.floatx()` before it passes them to a model of any dtype.
    """

    predict = _with_own_floatx(keras.Model.predict)
    evaluate = _with_own_floatx(keras.Model.evaluate)
    fit = _with_own_floatx(keras.Model.fit)


@dataclasses.dataclass(frozen=True)
class Verification:
    """Result of a verification.

    Attributes:
        rows: number of rows.
        correct: number of rows for which the label's output is larger than all others. Ties and NaN are not correct.
        largest_error: largest |output - one-hot| over all rows and classes, or NaN if an output is NaN.
        wrong_rows: first ten rows that are not correct.
    """

    rows: int
    correct: int
    largest_error: float
    wrong_rows: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """Fraction of correct rows."""
        return self.correct / self.rows


@dataclasses.dataclass(frozen=True)
class Report:
    """Report of a memorizer, stored as `model.report` and not saved with the model.

    Attributes:
        rows, distinct_rows, dim, classes: sizes of the sample: n with and without repetitions, d, r.
        width, blocks: k and ceil(n / k) for n distinct rows; more blocks for norms over many orders of magnitude.
        parameters: number of parameters, k (d + r) + r + r^2 + blocks k (2 k + 1), and k more with a bias.
        constant: parameters / (n ln n + r^2), the constant in the theorem's O(n log n + r^2).
        order, dtype: order and dtype of the network.
        smallest_margin, median_margin: relative margins of the units, (<u, z_i> - largest product that must not fire) /
            (||u|| ||z_i||).
        verified: dict from each checked dtype to `Verification`.
        build_seconds, verify_seconds: wall-clock times.
    """

    rows: int
    distinct_rows: int
    dim: int
    classes: int
    width: int
    blocks: int
    parameters: int
    constant: float
    order: str
    dtype: str
    smallest_margin: float
    median_margin: float
    verified: dict[str, Verification]
    build_seconds: float
    verify_seconds: float


def memorize(
    x: ArrayLike,
    labels: ArrayLike,
    classes: int | None = None,
    *,
    width: int = 32,
    order: Order = "norm",
    seed: int = 0,
    dtype: Dtype = "float64",
    check: Sequence[Dtype] | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> keras.Model:
    """Build a network of ReLUs that maps every row of x to the one-hot vector of its label, in closed form.

    The network is an `ExactModel`, a functional model whose `fit`, `predict` and `evaluate` keep float64 arrays. Its
    layers are `projection` (Dense), `blocks` (`ResidualDenseStack`, where `.block(j)` is a `ResidualDense`),
    `last_hidden` and `last` (Dense).

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Theorem 3.2: ceil(n/k) blocks h + V relu(U h + s) after a
    random projection, then a block without skip; O(n log n + r^2) parameters for k = O(log n). The theorem assumes rows
    of norm 1 with squared distances of at least a constant. The default order, which is not the paper's, works for any
    distinct rows and any width. The paper's thresholds require widths in the hundreds, and several of its constants are
    wrong, see `check_assumption` and docs/reference/results/expressivity.md.

    Args:
        x: (n, d) real and finite. Equal rows with equal labels count once.
        labels: (n,) integers in [0, classes).
        classes: r, at most 32,768. By default the largest label plus 1.
        width: k >= 1, width of the residual blocks.
        order: "norm" moves the points in descending order of their norms, each with its own threshold. "ridge" also
            tries directions away from each point's neighbors, for a larger margin on clustered data, in ten times the
            time or more.
        seed: seed of the random projection and the surrogate labels.
        dtype: "float64" or "float32". float32 is enough for relative margins above 1e-4.
        check: dtypes in which every row is verified; `dtype` and float32 if None, () for none.
        progress: callable that receives ("building", points done, n) and ("checking in DTYPE", rows done, n).

    Returns:
        A `keras.Model`, (batch, d) -> (batch, classes), with a `Report` as its attribute `report`.

    Raises:
        ValueError: if an argument is invalid, on JAX with float64 but without JAX_ENABLE_X64, if equal rows have
            different labels, if two rows cannot be separated in float64, or if verification finds a wrong row.

    Example:

    >>> rng = np.random.default_rng(0)
    >>> x, labels = rng.normal(size=(50, 3)), rng.integers(0, 4, 50)
    >>> model = memorize(x, labels, width=8)
    >>> bool((np.argmax(model(x), axis=1) == labels).all()), model.report.blocks
    (True, 7)
    """
    x, labels, classes = check_sample(x, labels, classes)
    width = positive_integer("width", width)
    seed = seed_number(seed)
    check_choice("order", order, get_args(Order))
    check = (dtype, "float32") if check is None else check
    for kind in (dtype, *check):
        check_choice("dtype", kind, get_args(Dtype))
    if "float64" in (dtype, *check):
        _require_float64()
    check_range(x, dtype)
    start = time.perf_counter()
    weights = construct(x, labels, classes, width, order, seed, _with_title(progress, "building"))
    model = network(weights, dtype)
    built = time.perf_counter()
    verified: dict[str, Verification] = {}
    for kind in dict.fromkeys(check):
        checked = model if kind == dtype else network(weights, kind)
        verified[kind] = verify(checked, x, labels, progress=_with_title(progress, f"checking in {kind}"))
    smallest = float(weights.margins.min())
    if dtype in verified:
        _check_rows(verified[dtype], smallest, width, dtype)
    distinct = len(weights.order)
    parameters = model.count_params()
    model.report = Report(
        rows=len(x),
        distinct_rows=distinct,
        dim=x.shape[1],
        classes=classes,
        width=width,
        blocks=len(weights.U),
        parameters=parameters,
        constant=parameters / (distinct * math.log(distinct) + classes**2),
        order=order,
        dtype=dtype,
        smallest_margin=smallest,
        median_margin=float(np.median(weights.margins)),
        verified=verified,
        build_seconds=built - start,
        verify_seconds=time.perf_counter() - built,
    )
    return model


def _require_float64() -> None:
    """Raise ValueError if the backend has no float64."""
    if keras.backend.backend() == "jax":
        import jax

        if jax.dtypes.canonicalize_dtype("float64") != "float64":
            raise ValueError(
                "Arguments `dtype` and `check` name float64, which JAX replaces by float32. Set the environment "
                "variable JAX_ENABLE_X64=1, or pass dtype='float32'."
            )


def _check_rows(verified: Verification, smallest_margin: float, width: int, dtype: str) -> None:
    """Raise ValueError if a row is wrong."""
    if verified.wrong_rows:
        raise ValueError(
            f"The network is wrong on {verified.rows - verified.correct} rows, the first is {verified.wrong_rows[0]}: "
            f"the smallest relative margin, {smallest_margin:.1e}, is too small for {dtype}. Use a larger width than "
            f"{width}, order='ridge', or subtract the mean of x."
        )


# Numbers beyond the range of float32 become infinite, and their rows count as wrong.
@np.errstate(over="ignore", invalid="ignore")
def verify(
    model: keras.Model,
    x: ArrayLike,
    labels: ArrayLike,
    *,
    batch_size: int = 4096,
    progress: Callable[[int, int], object] | None = None,
) -> Verification:
    """Compare the outputs of a model with one-hot vectors on every row, in the model's dtype.

    Args:
        model: model of `memorize`, possibly loaded from a file.
        x: (n, d) rows.
        labels: (n,) integers.
        batch_size: largest batch size.
        progress: callable that receives (rows done, n).

    Returns:
        A `Verification`.
    """
    classes = model.output_shape[-1]
    x, labels, _ = check_sample(x, labels, classes, most=classes)
    dtype = model.inputs[0].dtype
    largest = 0.0
    wrong: list[int] = []
    order = _by_norm(model, x)
    # Compilation takes longer than a single batch. `predict` of other models rounds float64 to float32.
    run = model if len(x) <= batch_size else model.predict_on_batch
    # All batches have one shape, because a different last batch would be compiled again.
    size = -(-len(x) // -(-len(x) // batch_size))
    for start in range(0, len(x), size):
        rows = order[start : start + size]
        filled = np.pad(rows, (0, size - len(rows)), mode="edge")
        outputs = np.array(keras.ops.convert_to_numpy(run(x[filled].astype(dtype))))[: len(rows)]
        # `argmax` would return class 0 for ties and NaN.
        own = np.arange(outputs.shape[1]) == labels[rows, None]
        ahead = outputs < outputs[own][:, None]
        right = np.where(own, ~np.isnan(outputs), ahead).all(axis=1)
        wrong.extend(int(row) for row in rows[~right])
        # `np.maximum` propagates NaN.
        largest = float(np.maximum(largest, np.abs(outputs - own).max()))
        if progress is not None:
            progress(start + len(rows), len(x))
    return Verification(len(x), len(x) - len(wrong), largest, tuple(sorted(wrong)[:10]))


def _by_norm(model: keras.Model, x: NDArray[np.floating]) -> NDArray[np.intp]:
    """Sort the rows by the norms of their projections, or keep their order for other models.

    The rows of a batch then fire in the same few blocks, and the layer skips the others.
    """
    if not isinstance(model, ExactModel):
        return np.arange(len(x))
    kernel, *bias = (np.asarray(weight, np.float64) for weight in model.get_layer("projection").weights)
    norms = np.empty(len(x))
    for rows in chunks(x):
        norms[rows] = np.linalg.norm(x[rows].astype(np.float64, copy=False) @ kernel + sum(bias), axis=1)
    return np.argsort(-norms, kind="stable")


@np.errstate(over="ignore")
def network(weights: Weights, dtype: str) -> keras.Model:
    """Build the Keras model with these `Weights`."""
    d, k = weights.projection.shape
    blocks = len(weights.U)
    classes = len(weights.last_s)
    lookahead = min(blocks, max(1, LOOKAHEAD_UNITS // k))
    zeros: Options = {"kernel_initializer": "zeros", "dtype": dtype}
    inputs = outputs = keras.Input((d,), dtype=dtype, name="points")
    for layer in (
        keras.layers.Dense(k, use_bias=weights.bias is not None, name="projection", **zeros),
        ResidualDenseStack(blocks, k, lookahead, name="blocks", **zeros),
        keras.layers.Dense(classes, activation="relu", name="last_hidden", **zeros),
        keras.layers.Dense(classes, use_bias=False, name="last", **zeros),
    ):
        outputs = layer(outputs)
    model = ExactModel(inputs, outputs, name="memorizer")
    arrays = (weights.projection, weights.bias, weights.U, weights.s, weights.V)
    arrays += (weights.last_U, weights.last_s, weights.last_V)
    model.set_weights([array.astype(dtype, copy=False) for array in arrays if array is not None])
    return model


def _with_title(progress: Callable[[str, int, int], object] | None, title: str) -> Callable[[int, int], object] | None:
    return None if progress is None else lambda done, total: progress(title, done, total)
