"""Distances of the blocks of a model from the identity, and singular values of blocks and models."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from idmatters_tf._keras_types import Structure
from idmatters_tf._presentation.progress import Progress
from idmatters_tf._presentation.results import Axes, Drawing, Figure, Result, tabulate
from idmatters_tf.isometry.blocks import Block, BlockNames, checked_graph, select_blocks
from idmatters_tf.isometry.jacobian import LocalFunction, block_functions, model_function
from idmatters_tf.isometry.operators import JacobianOperator
from idmatters_tf.layers import PadShortcut2D
from idmatters_tf.spectra import trace
from idmatters_tf.spectra.operators import Operator
from idmatters_tf.spectra.singular import (
    SMALL,
    GramOperator,
    dense,
    extreme_singular_values,
    matrix_singular_values,
    singular_values,
    spectral_norm,
)

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, repr=False)
class BlockIsometry(Result):
    """Measurements of a block's Jacobian J at each input, as arrays of shape (points,).

    I is the identity. For a block that changes the shape of images it is the parameter-free shortcut, average pooling
    and zero channels (`PadShortcut2D`, or the block's own).

    Attributes:
        distance: ||J - I||, the largest singular value. NaN if there is no shortcut between the shapes of input and
            output.
        relative: ||J - I||_F / ||I||_F, the root mean square over directions. NaN in the same cases.
        largest, smallest: extreme values among the min(rows, columns) singular values of J.
        exact: True if they are computed from the dense matrix. Otherwise see `measure` for the accuracy.
    """

    distance: Floats
    relative: Floats
    largest: Floats
    smallest: Floats
    exact: bool


class BlockDistances(dict[str, Floats], Drawing):
    """||J - I|| of the blocks of a model: a dict from names to arrays of shape (points,), in order of execution.

    `plot(path)` draws block number against ||J - I||.
    """

    def table(self) -> str:
        """Return a table with the mean, smallest and largest distance over the points of each block."""
        rows = [(name, *map(float, (row.mean(), row.min(), row.max()))) for name, row in self.items()]
        return tabulate(("block", "mean", "smallest", "largest"), rows)

    def draw(self, figure: Figure) -> None:
        """Draw block number against ||J - I||, see `plot_distances`."""
        plot_distances(figure.subplots(), {"": self})


@dataclasses.dataclass(frozen=True, repr=False)
class Isometry(Result, Drawing):
    """Measurements of a model with its current weights. `plot(path)` draws the distances.

    Attributes:
        blocks: dict from block names to `BlockIsometry`, in order of execution.
        end_to_end: (points, k), singular values of the Jacobian from the input of the model to its output, in
            descending order, with one point for training=True. None with end_to_end=False, for integer inputs, and for
            several inputs or outputs.
    """

    blocks: dict[str, BlockIsometry]
    end_to_end: Floats | None

    def distances(self) -> BlockDistances:
        """Return ||J - I|| at each point, by block."""
        return BlockDistances({name: block.distance for name, block in self.blocks.items()})

    def draw(self, figure: Figure) -> None:
        """Draw the distances of the blocks."""
        self.distances().draw(figure)

    def summary(self) -> dict[str, float]:
        """Return the mean and largest distance of the blocks, and extreme singular values of blocks and model.

        The numbers are NaN for weights that are NaN. Blocks without a shortcut between their shapes have no distance.
        """
        blocks = self.blocks.values()
        distances = [
            float(np.mean(block.distance))
            for block in blocks
            if np.isnan(block.largest).any() or not np.isnan(block.distance).all()
        ]
        numbers = {
            "largest_singular_value": float(np.max([block.largest for block in blocks])),
            "smallest_singular_value": float(np.min([block.smallest for block in blocks])),
        }
        if distances:
            numbers["mean_distance"] = float(np.mean(distances))
            numbers["largest_distance"] = float(np.max(distances))
        if self.end_to_end is not None:
            numbers["end_to_end_largest"] = float(np.mean(self.end_to_end[:, 0]))
            numbers["end_to_end_smallest"] = float(np.mean(self.end_to_end[:, -1]))
        return numbers


def block_distances(
    model: keras.Model,
    inputs: Structure,
    blocks: BlockNames | None = None,
    training: bool = False,
    tolerance: float = 1e-2,
    seed: int = 0,
    progress: bool = False,
) -> BlockDistances:
    """Return ||J - I|| of each block of a model, with J its Jacobian at the activations that reach the block.

    For linear residual layers h + A h this is ||A||, whose maximum is Hardt & Ma's tau. A block with ||J - I|| <= c < 1
    at every input, not only at those measured, is invertible and changes distances by at most the factor 1 +- c
    (Behrmann et al., *Invertible Residual Networks*, arXiv 1811.00995, Theorem 1).

    Args:
        model: built functional or Sequential model, on Keras' TensorFlow or JAX backend.
        inputs: batch of a few inputs of the model, each of which is measured.
        blocks: names of blocks, see `find_blocks`. The residual blocks of the model if None.
        training: mode in which the model is called. If True the batch is measured as one point, because batch
            normalization couples its examples.
        tolerance: tolerance of ||J - I||^2 for matrices with more than 256 rows and columns, see
            `extreme_singular_values`.
        seed: seed of random vectors.
        progress: True to show a progress bar on standard error.

    Returns:
        `BlockDistances`, a dict from block names to (points,) float64 arrays. NaN if there is no identity between the
        shapes, see `BlockIsometry`.

    Raises:
        ValueError: in the cases of `find_blocks`, if a block has inputs of an integer dtype, and if it couples the
            examples of the batch with training=False.
    """
    graph = checked_graph(model)
    chosen = select_blocks(model, graph, blocks)
    distances = BlockDistances()
    with Progress(len(chosen), "distances", progress, unit="blocks") as bar:
        for block, functions in block_functions(model, graph, inputs, chosen, training):
            rows = [_distances(block, function, tolerance, seed) for function in functions]
            distances[block.name] = np.concatenate(rows)
            bar.advance()
    return distances


def measure(
    model: keras.Model,
    inputs: Structure,
    blocks: BlockNames | None = None,
    training: bool = False,
    end_to_end: bool = True,
    tolerance: float = 1e-2,
    products: int = 12,
    seed: int = 0,
    progress: bool = False,
) -> Isometry:
    """Measure distances from the identity and singular values of all blocks, and of the whole model.

    Jacobians with at most 256 rows or columns are computed exactly. For larger ones, ||J - I|| and the extreme singular
    values are computed by Lanczos iterations. Their residuals bound the error of the squares by `tolerance` times the
    largest square. The relative error is half of `tolerance` for ||J - I|| and the largest singular value, and larger
    for the smallest one. ||J - I||_F is estimated by Hutch++, whose square is unbiased.

    Args:
        model: see `block_distances`.
        inputs: see `block_distances`.
        blocks: see `block_distances`.
        training: see `block_distances`.
        end_to_end: True to measure the Jacobian from the input of the model to its output, at one product for each
            output.
        tolerance: tolerance of the squares of ||J - I|| and of the extreme singular values.
        products: number of products for ||J - I||_F.
        seed: seed of random vectors.
        progress: True to show a progress bar on standard error.
    """
    measured: dict[str, BlockIsometry] = {}
    graph = checked_graph(model)
    chosen = select_blocks(model, graph, blocks)
    with Progress(len(chosen) + bool(end_to_end), "isometry", progress, unit="blocks") as bar:
        for block, functions in block_functions(model, graph, inputs, chosen, training):
            rows = [row for function in functions for row in _measure(block, function, tolerance, products, seed)]
            distance, relative, largest, smallest, exact = (np.array(column) for column in zip(*rows, strict=True))
            measured[block.name] = BlockIsometry(distance, relative, largest, smallest, bool(exact.all()))
            bar.advance()
        values = _end_to_end(model, inputs, training) if end_to_end else None
    return Isometry(measured, values)


def plot_distances(axes: Axes, curves: Mapping[str, Mapping[str, Floats]], floor: float = 1e-6) -> None:
    """Draw block number against ||J - I|| on axes of matplotlib.

    Curves are means over the points, and shades extend from the smallest to the largest value. The scale is
    logarithmic, with a line at 1.

    Args:
        axes: axes of matplotlib.
        curves: dict from labels to results of `block_distances` or `Isometry.distances`.
        floor: distances below it are drawn at it.
    """
    for number, (label, distances) in enumerate(curves.items()):
        indices = np.arange(1, len(distances) + 1)
        values = np.maximum(np.stack(list(distances.values())), floor)
        axes.semilogy(indices, values.mean(axis=1), color=f"C{number % 10}", marker="o", markersize=3, label=label)
        axes.fill_between(indices, values.min(axis=1), values.max(axis=1), color=f"C{number % 10}", alpha=0.2)
    axes.locator_params("x", integer=True)
    axes.axhline(1, color="grey", linestyle="dashed", linewidth=0.8)
    axes.set_xlabel("block")
    axes.set_ylabel("||J - I||")
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(fontsize=8)


def _distances(block: Block, function: LocalFunction, tolerance: float, seed: int) -> Floats:
    """Return ||J - I|| at each point."""
    identity = _identity(block, function)
    if identity is None:
        return np.full(function.count, np.nan)
    if min(function.shape) <= SMALL:
        minuend = dense(identity)
        return np.array([matrix_singular_values(_minus(matrix, minuend))[0] for matrix in function.matrices()])
    differences = (_Difference(jacobian, identity) for jacobian in function.operators())
    return np.array([spectral_norm(difference, tolerance, seed) for difference in differences])


def _measure(
    block: Block, function: LocalFunction, tolerance: float, products: int, seed: int
) -> Iterator[tuple[float, float, float, float, bool]]:
    """Yield (distance, relative, largest, smallest, exact) at each point."""
    identity = _identity(block, function)
    distance = relative = np.nan
    if min(function.shape) <= SMALL:
        minuend = None if identity is None else dense(identity)
        for matrix in function.matrices():
            values = matrix_singular_values(np.asarray(matrix, np.float64))
            if minuend is not None:
                difference = _minus(matrix, minuend)
                distance = float(matrix_singular_values(difference)[0])
                relative = float(np.linalg.norm(difference) / np.linalg.norm(minuend))
            yield distance, relative, float(values[0]), float(values[-1]), True
        return
    for jacobian in function.operators():
        if identity is not None:
            difference = _Difference(jacobian, identity)
            distance = spectral_norm(difference, tolerance, seed)
            # Average pooling shrinks norms: the norm of the shortcut is not the root of its rank.
            size = (
                _frobenius(identity, products, seed)
                if function.inputs != function.outputs
                else np.sqrt(jacobian.shape[0])
            )
            relative = _frobenius(difference, products, seed) / size
        ends = extreme_singular_values(jacobian, 1, tolerance, seed)
        yield distance, relative, float(ends.largest[0]), float(ends.smallest[0]), False


def _minus(matrix: NDArray[np.floating], identity: Floats) -> Floats:
    """Return the difference, computed in the dtype of the matrix, where that of equal maps is zero."""
    return np.asarray(matrix - identity.astype(matrix.dtype), np.float64)


def _frobenius(operator: LinearOperator, products: int, seed: int) -> float:
    gram = GramOperator(operator)
    return float(gram.singular_values(np.array(trace(gram, products, seed).value)))


class _Difference(Operator):
    """A - B in the dtype of A. SciPy converts to float64, where the difference of equal maps has rounding errors."""

    def __init__(self, first: LinearOperator, second: LinearOperator):
        self._first = first
        self._second = second
        super().__init__(first.dtype, first.shape)

    def _matmat(self, matrix: ArrayLike) -> NDArray[np.floating]:
        matrix = np.asarray(matrix, self.dtype)
        return self._first.matmat(matrix) - self._second.matmat(matrix)

    def _adjoint(self) -> "_Difference":
        return _Difference(self._first.H, self._second.H)


def _identity(block: Block, function: LocalFunction) -> LinearOperator | None:
    """Return the identity between the two ends of a block as an operator, or None if there is none."""
    dtype = "float64" if keras.backend.standardize_dtype(function.points.dtype) == "float64" else "float32"
    if function.inputs == function.outputs:
        return scipy.sparse.linalg.aslinearoperator(scipy.sparse.identity(function.shape[0], dtype=dtype))
    shortcut = _shortcut(block, function.inputs, function.outputs, dtype)
    return None if shortcut is None else JacobianOperator(shortcut, np.zeros(function.inputs, dtype))


def _shortcut(block: Block, inputs: Sequence[int], outputs: Sequence[int], dtype: str) -> PadShortcut2D | None:
    own = getattr(block.layer, "skip", None)
    if isinstance(own, PadShortcut2D):
        return own
    if len(inputs) != 4 or len(outputs) != 4:
        return None
    axis = 1 if block.data_format == "channels_first" else 3
    sides = [index for index in (1, 2, 3) if index != axis]
    strides = {round(inputs[index] / outputs[index]) for index in sides}
    stride = strides.pop() if len(strides) == 1 else 0
    fits = stride >= 1 and all(-(-inputs[index] // stride) == outputs[index] for index in sides)
    if not fits or inputs[axis] > outputs[axis]:
        return None
    return PadShortcut2D(outputs[axis], stride, data_format=block.data_format, dtype=dtype)


def _end_to_end(model: keras.Model, inputs: Structure, training: bool) -> Floats | None:
    symbolic = keras.tree.flatten(model.inputs)
    if len(symbolic) != 1 or not keras.backend.is_float_dtype(symbolic[0].dtype) or len(model.outputs) != 1:
        return None
    function = model_function(model, inputs, training)
    return np.stack([singular_values(jacobian) for jacobian in function.operators()])
