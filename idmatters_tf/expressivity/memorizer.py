"""Memorizers as Keras models: construction, verification on every row, and report."""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import keras
import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import check_choice, positive_integer, seed_number
from idmatters_tf.expressivity._samples import check_sample, chunks, distinct_rows
from idmatters_tf.expressivity.construction import Order, TooClose, Weights, construct
from idmatters_tf.expressivity.models import ExactModel
from idmatters_tf.expressivity.verification import Verification, verify
from idmatters_tf.layers import ResidualDenseStack

Dtype: TypeAlias = Literal["float64", "float32"]

ORDERS: tuple[Order, ...] = ("norm", "ridge", "paper")
DTYPES: tuple[Dtype, ...] = ("float64", "float32")
# Smallest relative margin that is safe from float32's rounding (6e-8 times the length of inner products).
SAFE_FLOAT32_MARGIN = 1e-4
# Units of blocks computed in one product. More are not faster. The outputs do not depend on it.
LOOKAHEAD_UNITS = 512


@dataclasses.dataclass(frozen=True)
class Report:
    """Report of a memorizer, stored as `model.report` and not saved with the model.

    Attributes:
        rows, distinct_rows, dim, classes: sizes of the sample: n with and without repetitions, d, r.
        width, blocks: k and ceil(n / k) for n distinct rows.
        parameters: number of parameters, k (d + r) + r + r^2 + blocks k (2 k + 1), and k more with a bias.
        constant: parameters / (n ln n + r^2), the constant in the theorem's O(n log n + r^2).
        order, dtype: order and dtype of the network. The dtype may differ from the argument.
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
    width: int = 32,
    order: Order = "norm",
    seed: int = 0,
    dtype: Dtype = "float64",
    check: Sequence[Dtype] = DTYPES,
    progress: Callable[[str, int, int], object] | None = None,
) -> keras.Model:
    """Build a network of ReLUs that maps every row of x to the one-hot vector of its label, in closed form.

    The network is an `ExactModel`, a functional model whose `fit`, `predict` and `evaluate` keep float64 arrays. Its
    layers are `projection` (Dense), `blocks` (`ResidualDenseStack`, where `.block(j)` is a `ResidualDense`),
    `last_hidden` and `last` (Dense).

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Theorem 3.2: ceil(n/k) blocks h + V relu(U h + s) after a
    random projection, then a block without skip; O(n log n + r^2) parameters for k = O(log n). The default order works
    for any distinct rows and any width. The paper's thresholds require widths in the hundreds, and several of its
    constants are wrong, see `check_assumption` and docs/reference/results/expressivity.md.

    Args:
        x: (n, d) real and finite. Equal rows with equal labels count once.
        labels: (n,) integers in [0, classes).
        classes: r. By default the largest label plus 1.
        width: k >= 1, width of the residual blocks.
        order: "norm" moves the points in descending order of their norms, each with its own threshold. "ridge" also
            tries directions away from each point's neighbors, for a larger margin on clustered data, in ten times the
            time or more. "paper" keeps the order of the rows, with one threshold for all units, for rows of norm 1.
        seed: seed of the random projection and the surrogate labels.
        dtype: "float64" or "float32". If the smallest margin is below 1e-4, the model is float64 and a warning is
            raised.
        check: dtypes in which every row is verified. () for none.
        progress: callable that receives ("building", points done, n) and ("checking in DTYPE", rows done, n).

    Returns:
        A `keras.Model`, (batch, d) -> (batch, classes), with a `Report` as its attribute `report`.

    Raises:
        ValueError: if an argument is invalid, if equal rows have different labels, if two rows cannot be separated in
            float64, if the paper's order is impossible, or if verification finds a wrong row.

    Example:

    >>> rng = np.random.default_rng(0)
    >>> x, labels = rng.normal(size=(50, 3)), rng.integers(0, 4, 50)
    >>> model = memorize(x, labels, width=8)
    >>> bool((np.argmax(model(x), axis=1) == labels).all()), model.report.blocks
    (True, 7)
    """
    x, labels, classes = check_sample(x, labels, classes)
    _check_options(width, order, dtype, check, seed)
    if order == "paper":
        _check_unit_norms(x)
    start = time.perf_counter()
    kept = distinct_rows(x, labels)
    points = x if len(kept) == len(x) else x[kept]
    building = None if progress is None else lambda done, total: progress("building", done, total)
    try:
        weights = construct(points, labels[kept], classes, width, order, seed, building)
    except TooClose as error:
        raise ValueError(error.describe(kept)) from None
    smallest = float(weights.margins.min())
    if dtype == "float32" and smallest < SAFE_FLOAT32_MARGIN:
        warnings.warn(
            f"dtype='float32' is not enough for a relative margin of {smallest:.1e}: the model is float64.",
            stacklevel=2,
        )
        dtype = "float64"
    model = network(weights, dtype)
    built = time.perf_counter()
    verified = {}
    for checked_dtype in dict.fromkeys(check):
        same = model if checked_dtype == dtype else network(weights, checked_dtype)
        showing = None if progress is None else _with_title(progress, f"checking in {checked_dtype}")
        verified[checked_dtype] = verify(same, x, labels, progress=showing)
    if dtype in verified and verified[dtype].correct < len(x):
        wrong = verified[dtype]
        raise ValueError(
            f"The network is wrong on {wrong.rows - wrong.correct} rows, the first is {wrong.wrong_rows[0]}: the "
            f"smallest relative margin, {smallest:.1e}, is too small for {dtype}. Use a larger width than {width}, "
            f"order='ridge', or subtract the mean of x."
        )
    distinct, parameters = len(kept), model.count_params()
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


def network(weights: Weights, dtype: str) -> keras.Model:
    """Build the Keras model with these `Weights`."""
    d, k = weights.projection.shape
    blocks, classes = len(weights.U), len(weights.last_s)
    has_bias = weights.bias is not None
    zeros: dict[str, Any] = {"kernel_initializer": "zeros", "dtype": dtype}
    lookahead = min(blocks, max(1, LOOKAHEAD_UNITS // k))
    layers = [
        keras.layers.Dense(k, use_bias=has_bias, name="projection", **zeros),
        ResidualDenseStack(blocks, k, lookahead, name="blocks", **zeros),
        keras.layers.Dense(classes, activation="relu", name="last_hidden", **zeros),
        keras.layers.Dense(classes, use_bias=False, name="last", **zeros),
    ]
    inputs = outputs = keras.Input((d,), dtype=dtype, name="points")
    for layer in layers:
        outputs = layer(outputs)
    values = [
        [weights.projection, weights.bias][: 1 + has_bias],
        [weights.U, weights.s, weights.V],
        [weights.last_U, weights.last_s],
        [weights.last_V],
    ]
    for layer, arrays in zip(layers, values, strict=True):
        layer.set_weights([array.astype(dtype, copy=False) for array in arrays])
    return ExactModel(inputs, outputs, name="memorizer")


def _with_title(progress, title):
    return lambda done, total: progress(title, done, total)


def _check_options(width, order, dtype, check, seed):
    positive_integer("width", width)
    seed_number(seed)
    check_choice("order", order, ORDERS)
    check_choice("dtype", dtype, DTYPES)
    if isinstance(check, str) or not set(check) <= set(DTYPES):
        raise ValueError(
            f"Argument `check` must be a tuple of 'float64' and 'float32', or empty. Received: check={check!r}"
        )


def _check_unit_norms(x):
    for rows in chunks(x):
        norms = np.linalg.norm(x[rows].astype(np.float64, copy=False), axis=1)
        if np.abs(norms - 1).max() > 1e-5:
            row = rows.start + int(np.argmax(np.abs(norms - 1)))
            raise ValueError(
                f"order='paper' needs rows of norm 1 in argument `x`. Received: norm {norms[row - rows.start]:.6g} in "
                f"row {row}. Divide each row by its norm, after appending a constant column if rows are parallel or "
                f"zero."
            )
