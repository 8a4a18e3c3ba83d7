"""Measurements of one model at the start of training."""

import contextlib
import dataclasses
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf import curvature
from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import ModelGraph, layers_within, read_graph
from idmatters_tf._presentation.results import Result
from idmatters_tf.curvature.operators import NotFiniteError
from idmatters_tf.isometry import Block, extreme_singular_values
from idmatters_tf.isometry.blocks import between, checked_graph, residual_blocks, select_blocks
from idmatters_tf.isometry.jacobian import JacobianOperator, MaskedInputError, block_jacobians, model_jacobians
from idmatters_tf.isometry.measurement import measure_distances
from idmatters_tf.spectra.density import bounded_percentile

QUANTITIES: Mapping[str, str] = {
    "loss": "the loss",
    "gradient_norm": "the norm of the gradient",
    "block_gradient": "the norm of the gradient of a block (root mean square)",
    "block_gradient_ratio": "the ratio of the largest to the smallest gradient of a block",
    "hessian_largest": "the largest eigenvalue of the Hessian",
    "hessian_smallest": "the smallest eigenvalue of the Hessian",
    "hessian_p10": "the 10th percentile of |eigenvalues| of the Hessian",
    "hessian_condition": "the condition number of the Hessian",
    "gauss_newton_largest": "the largest eigenvalue of the Gauss-Newton matrix",
    "gauss_newton_smallest": "the smallest eigenvalue of the Gauss-Newton matrix",
    "gauss_newton_p10": "the 10th percentile of |eigenvalues| of the Gauss-Newton matrix",
    "gauss_newton_condition": "the condition number of the Gauss-Newton matrix",
    "jacobian_largest": "the largest singular value from input to output",
    "jacobian_smallest": "the smallest singular value from input to output",
    "distance_mean": "the mean distance ||J - I|| of the blocks",
    "distance_largest": "the largest distance ||J - I|| of a block",
    "sgd_rate": "the largest stable rate of SGD, 2 / lambda,",
    "momentum_rate": "the largest stable rate of momentum, (2 + 2 m) / lambda,",
}
"""Names of the measured quantities, and their descriptions in verdicts."""

# Largest number of parameters for dense matrices; Lanczos steps for percentiles of larger ones; relative tolerance of
# extreme eigenvalues and of the squares of singular values.
DENSE, STEPS, TOLERANCE = 1000, 32, 1e-2


@dataclasses.dataclass(frozen=True, repr=False)
class DepthMeasurement(Result):
    """Measurements of one model.

    Attributes:
        depth, seed: arguments of the model.
        parameters: number of trainable parameters.
        order: order of the stationary point of the blocks' variables (Li et al., Definition 4): 0 if their gradient is
            not exactly zero, 1 if it is but their Hessian is not, otherwise 2 for two or more. None without a Hessian.
        values: values by quantity; NaN if one is not defined or not finite.
        errors: errors of the values: residuals of eigenvalues and bounds of percentiles by quadrature, or the rounding
            of dense matrices.
        block_gradients: norm of the gradient by block; by layer, if the model has no blocks.
        block_distances: ||J - I|| by block, the mean over the examples.
    """

    depth: int
    seed: int
    parameters: int
    order: int | None = None
    values: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(QUANTITIES, np.nan))
    errors: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(QUANTITIES, 0.0))
    block_gradients: dict[str, float] = dataclasses.field(default_factory=dict)
    block_distances: dict[str, float] = dataclasses.field(default_factory=dict)

    def record(self, name: str, value: Any, error: Any = 0.0) -> None:
        """Set a value and its error."""
        self.values[name], self.errors[name] = float(value), float(error)


@dataclasses.dataclass(frozen=True)
class Options:
    """Arguments of `depth_profile` for a measurement."""

    data: Any
    loss: Any
    training: bool | None
    momentum: float
    examples: int
    batch_size: int


def build_models(build: Callable[..., keras.Model], depth: int, seeds: int) -> Iterator[keras.Model]:
    """Yield a model for each seed, one at a time.

    Raises:
        ValueError: `build` is not a function, or returns equal weights for different seeds.
    """
    if isinstance(build, keras.Model) or not callable(build):
        raise ValueError(
            f"Argument `build` must be a function of a depth that returns a model. Received: {type(build).__name__}. "
            f"Pass a function, such as lambda depth: make_model(depth)."
        )
    takes_seed = "seed" in inspect.signature(build).parameters
    seen: dict[int, int] = {}
    for seed in range(positive_integer("seeds", seeds)):
        gc.collect()
        keras.utils.set_random_seed(seed)
        model = build(depth, **({"seed": seed} if takes_seed else {}))
        weights = hash(b"".join(array.tobytes() for array in model.get_weights()))
        if (first := seen.setdefault(weights, seed)) != seed:
            raise ValueError(
                f"Function `build` must return different weights for different seeds. Received: equal weights "
                f"for the seeds {first} and {seed}. Add an argument `seed` to it, or use seeds=1."
            )
        yield model
        # Models contain reference cycles.
        del model


def measure_model(
    model: keras.Model, depth: int, seed: int, names: Any, options: Options, check: bool
) -> DepthMeasurement:
    """Measure a model of a depth and seed, with the names of its blocks, and check the data on request."""
    size, data = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables), options.data
    result = DepthMeasurement(depth, seed, size)
    if names is None:
        graph = read_graph(model)
        blocks = residual_blocks(model, graph) if graph else []
    else:
        graph = checked_graph(model)
        blocks = select_blocks(model, graph, names)
    training = options.training
    if training is None:
        training = any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers_within(model))
    arguments: dict[str, Any] = {
        "loss": options.loss,
        "data": data,
        "training": training,
        "batch_size": len(keras.tree.flatten(data)[0]) if training and isinstance(data, tuple) else options.batch_size,
        # TensorFlow compiles products with several vectors separately, which takes longer than many single products.
        "chunk": 64 if size <= DENSE else 1,
    }
    try:
        hessian = curvature.HessianOperator(model, check=check, **arguments)
    except NotFiniteError:
        return result
    gradient = hessian.gradient().astype(np.float64)
    result.record("loss", hessian.loss())
    result.record("gradient_norm", np.linalg.norm(gradient))
    order = _record_blocks(result, hessian, gradient, blocks)
    if not np.isfinite(gradient + hessian @ np.ones(size)).all():
        return result
    largest, error = _record_spectrum(result, "hessian", hessian)
    _record_spectrum(result, "gauss_newton", curvature.GaussNewtonOperator(model, check=False, **arguments))
    for name, factor in (("sgd_rate", 0.0), ("momentum_rate", options.momentum)):
        rate = (2 + 2 * factor) / largest if largest > error else np.inf
        result.record(name, rate, rate * error / largest if largest > error else 0.0)
    batch = data if isinstance(data, tuple) else next(iter(data))
    # Batch normalization couples all examples of the batch.
    inputs = keras.tree.map_structure(
        lambda array: array[: None if training else options.examples], keras.utils.unpack_x_y_sample_weight(batch)[0]
    )
    _record_singular_values(result, _jacobians(model, graph, inputs, blocks, training))
    distances = {}
    if graph is not None and blocks:
        # Padded sequences have no distances.
        with contextlib.suppress(MaskedInputError):
            distances = measure_distances(model, graph, inputs, blocks, training, TOLERANCE, seed)
    # Blocks that change the shape may have no identity.
    result.block_distances.update({n: float(row.mean()) for n, row in distances.items() if not np.isnan(row).all()})
    if result.block_distances:
        result.record("distance_mean", np.mean(list(result.block_distances.values())))
        result.record("distance_largest", max(result.block_distances.values()))
    return dataclasses.replace(result, order=order)


def _record_blocks(result: DepthMeasurement, hessian: Any, gradient: NDArray[Any], blocks: Sequence[Block]) -> int:
    """Record the gradients of the blocks, and return the order of the stationary point of their variables."""
    owners = np.repeat([id(v) for v in hessian.variables], [int(np.prod(v.shape)) for v in hessian.variables])
    parts = {block.name: np.isin(owners, [id(variable) for variable in block.variables]) for block in blocks}
    chosen: dict[str, Any] = {name: part for name, part in parts.items() if part.any()} or hessian.layers
    result.block_gradients.update({name: float(np.linalg.norm(gradient[part])) for name, part in chosen.items()})
    norms = np.array(list(result.block_gradients.values()))
    result.record("block_gradient", np.sqrt(np.mean(norms**2)))
    if norms.min() > 0:
        result.record("block_gradient_ratio", norms.max() / norms.min())
    inside = np.zeros(len(gradient), bool)
    for part in chosen.values():
        inside[part] = True
    # Products with kernels of zeros are exact zeros.
    if gradient[inside].any():
        return 0
    vector = np.where(inside, np.random.default_rng(0).normal(size=len(gradient)), 0)
    return 1 if (hessian @ vector)[inside].any() else 2


def _record_spectrum(result: DepthMeasurement, matrix: str, operator: Any) -> tuple[float, float]:
    """Record eigenvalues and the condition number of a matrix. Return the largest eigenvalue with its error."""
    size = operator.shape[0]
    if size <= DENSE:
        eigenvalues = np.linalg.eigvalsh(operator.to_dense().astype(np.float64))
        rounding = size * float(np.finfo(operator.dtype).eps) * float(np.abs(eigenvalues).max())
        ends = [(eigenvalues[-1], rounding), (eigenvalues[0], rounding)]
        p10, p10_error = float(np.percentile(np.abs(eigenvalues), 10)), rounding
    else:
        pairs = curvature.top_eigenpairs(operator, 1, "both", TOLERANCE, seed=result.seed)
        ends = list(zip(pairs.values, pairs.residuals, strict=True))
        density = curvature.spectral_density(operator, 1, STEPS, seed=result.seed)
        p10, p10_error = bounded_percentile(density.nodes[0], density.weights[0], size)
    for name, end in zip(("largest", "smallest"), ends, strict=True):
        result.record(f"{matrix}_{name}", *end)
    result.record(f"{matrix}_p10", p10, p10_error)
    value, error = max(ends, key=lambda end: abs(end[0]))
    condition = abs(value) / p10 if p10 > p10_error else np.inf
    result.record(f"{matrix}_condition", condition, (error + condition * p10_error) / p10 if p10 > p10_error else 0)
    return ends[0]


def _record_singular_values(result: DepthMeasurement, jacobians: Sequence[JacobianOperator]) -> None:
    found = [extreme_singular_values(operator, 1, TOLERANCE, result.seed) for operator in jacobians]
    if found:
        largest = float(np.mean([values.largest for values in found]))
        smallest = float(np.mean([values.smallest for values in found]))
        rounding = max(jacobians[0].shape) * float(np.finfo(jacobians[0].dtype).eps) * largest
        # Residuals are those of squares, relative to the largest one.
        bound = max(values.residual for values in found) * largest / 2
        result.record("jacobian_largest", largest, max(bound, rounding))
        result.record("jacobian_smallest", smallest, max(bound * largest / smallest if smallest else 0.0, rounding))


def _jacobians(
    model: keras.Model, graph: ModelGraph | None, inputs: Any, blocks: Sequence[Block], training: bool
) -> list[JacobianOperator]:
    """Return Jacobians from input to output; from the first block, for several inputs and integers."""
    with contextlib.suppress(ValueError):
        return list(model_jacobians(model, inputs, training))
    # Without blocks, or with a path around them, there are none.
    with contextlib.suppress(ValueError, IndexError):
        if graph is not None:
            stack = between("blocks", blocks[0].start, model.outputs[0], graph.calls)
            return list(next(iter(block_jacobians(model, graph, inputs, [stack], training)))[1])
    return []
