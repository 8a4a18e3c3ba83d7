"""Checks of a new operator: reproducible evaluations, and differences of gradients."""

import dataclasses
import warnings
from typing import Literal

import keras
import numpy as np

from idmatters_tf._keras_internals import random_layers
from idmatters_tf.curvature._batches import Batches
from idmatters_tf.curvature._products import Array, Products

# Allowed difference of two evaluations, in units of rounding: sums over shuffled batches differ by rounding.
TOLERANCE = 300.0
# Relative error of H v above which the check warns, if the differences are accurate enough.
DIFFERENCE = 0.01


def check_finite(loss: float) -> None:
    """Raise ValueError for a loss that is not a finite number."""
    if not np.isfinite(loss):
        raise ValueError(
            f"The loss on the data must be finite. Received: {loss}. Check for data or weights that are not finite, or "
            f"a model that has diverged."
        )


def check_reproducible(products: Products) -> Array:
    """Compare two passes through the data with different random numbers of the model.

    Returns:
        Gradient, (P,).

    Raises:
        ValueError: if loss or gradient differ by more than rounding. The message names the cause.
    """
    dtype = products.objective.dtype
    first, second = (products.loss_and_gradient(draw) for draw in (0, 1))
    check_finite(first[0])
    if not _differ(first, second, dtype):
        return first[1]
    values = f"two evaluations gave the loss {first[0]:.9g} and {second[0]:.9g}"
    if not _has_same_examples(products.objective.batches):
        raise ValueError(
            f"The loss must be reproducible: {values}, because `data` yields different examples at each pass "
            f"(augmentation, or shuffling with dropped remainders or `take`). Fix the examples, e.g. with list(data), "
            f"and remove augmentation."
        )
    batch = next(iter(products.objective.batches))
    first, second = (products.loss_and_gradient(draw, batch=batch) for draw in (0, 1))
    if _differ(first, second, dtype):
        layers = random_layers(products.objective.model)
        drawn = f" Layers that draw random numbers: {', '.join(layers)}." if layers else ""
        raise ValueError(
            f"The loss must be reproducible: {values}, because the model or the loss is random (dropout, noise)."
            f"{drawn} Use training=False, or remove the randomness."
        )
    raise ValueError(
        f"The loss must be reproducible: {values} on the same examples, because it depends on the composition of the "
        f"shuffled batches (layers that couple the examples of a batch). Pass all data as a single batch."
    )


@dataclasses.dataclass(frozen=True)
class DifferenceCheck:
    """Comparison of a Hessian-vector product with central differences of the gradient along one random direction.

    Attributes:
        difference: ||H v - d|| / ||d||, with d the differences extrapolated from two step sizes.
        accuracy: relative accuracy of d, from the distance of the differences with the two step sizes and rounding.
        kinks: ||d+ - d-|| / ||d||, with d+ and d- the one-sided differences extrapolated to a step of zero. It is zero
            up to rounding where the gradient is differentiable along the direction.
    """

    difference: float
    accuracy: float
    kinks: float

    @property
    def status(self) -> Literal["agrees", "differs", "inconclusive"]:
        """Result of the check.

        "differs" by more than 1 % and more than three times the accuracy of the differences; "inconclusive" if the
        differences are less accurate, or the gradient jumps at or near the current weights; otherwise "agrees".
        """
        # The second term is the rounding of one-sided differences, which exceeds that of central ones.
        if self.kinks > max(DIFFERENCE, 6 * self.accuracy):
            return "inconclusive"
        if self.difference <= DIFFERENCE:
            return "agrees"
        return "differs" if self.difference > 3 * self.accuracy else "inconclusive"


def compare_with_differences(products: Products, gradient: Array) -> DifferenceCheck:
    """Compare H v with differences of the gradient for a random v.

    Args:
        products: products of the objective.
        gradient: gradient at the current weights, (P,).
    """
    dtype = np.dtype(products.objective.dtype)
    values = [keras.ops.convert_to_numpy(variable.value) for variable in products.objective.variables]
    theta = np.concatenate([np.ravel(np.asarray(value, np.float64)) for value in values])
    direction = np.random.default_rng(0).normal(size=theta.size)
    direction /= np.linalg.norm(direction)
    exact = products.product("hessian", direction[None].astype(dtype))[0].astype(np.float64)
    eps = products.objective.eps
    # Each weight moves by a few thousandths of a typical weight in float32 and a few millionths in float64.
    step = eps ** (1 / 3) * max(float(np.linalg.norm(theta)), 1e-2 * np.sqrt(theta.size))
    differences, jumps, size = [], [], 0.0
    middle = gradient.astype(np.float64)
    for length in (step, step / 2):
        ends = [
            products.loss_and_gradient(offset=(sign * length * direction).astype(dtype))[1].astype(np.float64)
            for sign in (1, -1)
        ]
        differences.append((ends[0] - ends[1]) / (2 * length))
        jumps.append((ends[0] + ends[1] - 2 * middle) / length)
        size = max(size, *(float(np.linalg.norm(end)) for end in ends))
    coarse, fine = differences
    extrapolated = (4 * fine - coarse) / 3
    norm = max(float(np.linalg.norm(extrapolated)), float(np.linalg.norm(exact)), float(np.finfo(dtype).tiny))
    rounding = 30 * eps * size / step
    # For a smooth gradient, the distance of the one-sided differences is proportional to the step.
    jump = float(np.linalg.norm(2 * jumps[1] - jumps[0]))
    return DifferenceCheck(
        float(np.linalg.norm(exact - extrapolated)) / norm,
        (float(np.linalg.norm(coarse - fine)) + rounding) / norm,
        max(jump - 4 * rounding, 0.0) / norm,
    )


def warn_of_difference(check: DifferenceCheck) -> None:
    """Warn if the status of a comparison is "differs" or "inconclusive"."""
    if check.status != "agrees":
        result = "failed" if check.status == "differs" else "is inconclusive"
        warnings.warn(
            f"The check of the Hessian {result}: a product differs by {100 * check.difference:.3g} % from central "
            f"differences of the gradient, which are accurate to {100 * check.accuracy:.2g} %, and one-sided "
            f"differences are {100 * check.kinks:.2g} % apart. Common causes: kinks (ReLU, max pooling, absolute "
            f"values), or stopped gradients (stop_gradient, rounding, custom gradients). check=False skips this check.",
            stacklevel=2,
        )


def _differ(first: tuple[float, Array], second: tuple[float, Array], dtype: str) -> bool:
    tolerance, tiny = TOLERANCE * float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
    loss, gradient = abs(first[0] - second[0]), float(np.linalg.norm(first[1] - second[1]))
    # The gradient is also compared with the loss, because at a minimum it consists of rounding errors.
    size = float(np.linalg.norm(first[1])) + abs(first[0]) + tiny
    return loss > tolerance * (abs(first[0]) + tiny) or gradient > 10 * tolerance * size


def _has_same_examples(batches: Batches) -> bool:
    """Return True if two passes yield the same examples in any order."""

    def digest() -> list[int]:
        rows = []
        for batch in batches:
            arrays = [np.asarray(part) for part in keras.tree.flatten(batch) if part is not None]
            rows += [hash(b"".join(array[i].tobytes() for array in arrays)) for i in range(len(arrays[0]))]
        return sorted(rows)

    return digest() == digest()
