"""Checks of a new operator: equal evaluations, Keras' own value of the loss, and differences of gradients."""

import dataclasses
import warnings
from typing import Any, Literal

import keras
import numpy as np

from idmatters_tf._keras_internals import random_layers
from idmatters_tf.curvature._batches import Batches
from idmatters_tf.curvature._losses import split_batch
from idmatters_tf.curvature._objective import parameters
from idmatters_tf.curvature._products import Array, Products

# In units of the dtype's rounding: sums over shuffled batches differ by rounding alone.
TOLERANCE = 300.0
# The relative error of H v from which on the check says so, provided that the differences are accurate enough to tell.
DIFFERENCE = 0.01


def check_finite(loss: float) -> None:
    """Raises ValueError for a loss that is not a finite number."""
    if not np.isfinite(loss):
        raise ValueError(
            f"The loss on the data is {loss}: it has no curvature. Look for data or weights that are not finite, or a "
            f"model that has diverged."
        )


def check_reproducible(products: Products) -> Array:
    """Compare two passes through the data, each with its own draw of the model's random numbers.

    Returns:
        The gradient, (P,).

    Raises:
        ValueError: where loss or gradient differ by more than rounding; the message says what differs.
    """
    dtype = products.objective.dtype
    first, second = (products.loss_and_gradient(draw) for draw in (0, 1))
    check_finite(first[0])
    if not _differ(first, second, dtype):
        return first[1]
    values = f"two evaluations gave the loss {first[0]:.9g} and {second[0]:.9g}"
    if not _same_examples(products.objective.batches):
        raise ValueError(
            f"The loss is not the same each time: {values}. Argument `data` gives other examples at each pass "
            f"(augmentation, or shuffling together with dropped remainders or `take`). Fix the examples first, e.g. "
            f"with list(data), and leave augmentation out."
        )
    batch = next(iter(products.objective.batches))
    first, second = (products.loss_and_gradient(draw, batch=batch) for draw in (0, 1))
    if _differ(first, second, dtype):
        layers = random_layers(products.objective.model)
        drawn = f" Layers that draw random numbers: {', '.join(layers)}." if layers else ""
        raise ValueError(
            f"The loss is not the same each time: {values}, and so do two on one batch, which means that the model or "
            f"the loss itself is random (dropout, noise).{drawn} Use training=False, or take the randomness out."
        )
    raise ValueError(
        f"The loss is not the same each time: {values}, although the examples are the same: it depends on which ones "
        f"are together in a batch (batch normalisation with training=True) and the batches are shuffled. Do not "
        f"shuffle, or use training=False."
    )


def check_value(products: Products, batch: Any, outputs: Any) -> None:
    """Compare the loss on a batch, as it is taken apart here, with its value by Keras.

    Args:
        products: of the objective.
        batch, outputs: the batch that its loss was built on, and the model's outputs for it.

    Raises:
        ValueError: where they differ by more than rounding.
    """
    loss = products.objective.loss
    # In the scope of a distribution strategy Keras divides by the number of replicas.
    if loss.keras_value is None or products.replicas > 1:
        return
    value, size, eps = loss.value_in_dtype_of_keras(split_batch(batch), outputs)
    if np.isfinite(loss.keras_value) and not abs(value - loss.keras_value) <= TOLERANCE * eps * size:
        raise ValueError(
            f"The loss {loss!r} on the first batch is {value:.9g} here and {loss.keras_value:.9g} in Keras. Pass a "
            f"callable loss(model, batch) that returns its mean over the batch."
        )


@dataclasses.dataclass(frozen=True)
class DifferenceCheck:
    """Distance of a Hessian-vector product from central differences of the gradient along one random direction.

    Attributes:
        difference: ||H v - d|| / ||d||, d the differences extrapolated from two steps.
        accuracy: of d itself, relative: the distance of the differences with the two steps, and rounding.
        kinks: ||d+ - d-|| / ||d||, d+ and d- the one-sided differences extrapolated to a step of zero. It is zero but
            for rounding where the gradient is differentiable along the direction.
    """

    difference: float
    accuracy: float
    kinks: float

    @property
    def status(self) -> Literal["agrees", "differs", "inconclusive"]:
        """Result of the check: "differs" by more than 1 % and more than the differences' own error; "inconclusive"
        where these are not accurate enough, or the gradient jumps at the current weights or next to them.
        """
        # The second term is the rounding of one-sided differences, which is larger than that of central ones.
        if self.kinks > max(DIFFERENCE, 6 * self.accuracy):
            return "inconclusive"
        if self.difference <= DIFFERENCE:
            return "agrees"
        return "differs" if self.difference > 3 * self.accuracy else "inconclusive"


def compare_with_differences(products: Products, gradient: Array, seed: int = 0) -> DifferenceCheck:
    """Compare H v with differences of the gradient, for a random v.

    Args:
        products: of the objective.
        gradient: at the current weights, (P,).
        seed: of v.
    """
    dtype = np.dtype(products.objective.dtype)
    theta = parameters(products.objective).astype(np.float64)
    direction = np.random.default_rng(seed).normal(size=theta.size)
    direction /= np.linalg.norm(direction)
    exact = products.product("hessian", direction[None].astype(dtype))[0].astype(np.float64)
    eps = float(np.finfo(dtype).eps)
    # Each weight moves by a few thousandths of a typical weight in float32, by a few millionths in float64.
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
    # For a smooth gradient the one-sided differences are apart in proportion to the step.
    jump = float(np.linalg.norm(2 * jumps[1] - jumps[0]))
    return DifferenceCheck(
        float(np.linalg.norm(exact - extrapolated)) / norm,
        (float(np.linalg.norm(coarse - fine)) + rounding) / norm,
        max(jump - 4 * rounding, 0.0) / norm,
    )


def warn_of_difference(check: DifferenceCheck) -> None:
    """Warn where `compare_with_differences` has found H v to be off, or could not tell."""
    if check.status == "differs":
        warnings.warn(
            f"The Hessian's product with a random vector differs by {100 * check.difference:.3g} % from central "
            f"differences of the gradient, which are accurate to {100 * check.accuracy:.2g} %. Common causes: kinks "
            f"(ReLU, max pooling, absolute values), whose curvature automatic differentiation counts as zero; a layer "
            f"or loss that stops gradients (stop_gradient, rounding, custom gradients), so that what is differentiated "
            f"twice is not the loss. check=False skips this.",
            stacklevel=2,
        )
    elif check.status == "inconclusive":
        warnings.warn(
            f"The check of the Hessian is inconclusive: its product with a random vector differs by "
            f"{100 * check.difference:.3g} % from central differences of the gradient, which are accurate to "
            f"{100 * check.accuracy:.2g} %; one-sided differences are {100 * check.kinks:.2g} % apart. The gradient "
            f"jumps at the weights or next to them (ReLU or max pooling at its kink), or it is too rough for "
            f"differences. check=False skips this.",
            stacklevel=2,
        )


def _differ(first: tuple[float, Array], second: tuple[float, Array], dtype: str) -> bool:
    tolerance, tiny = TOLERANCE * float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
    loss, gradient = abs(first[0] - second[0]), float(np.linalg.norm(first[1] - second[1]))
    # The gradient is compared with the loss too: at a minimum it is rounding alone.
    size = float(np.linalg.norm(first[1])) + abs(first[0]) + tiny
    return loss > tolerance * (abs(first[0]) + tiny) or gradient > 10 * tolerance * size


def _same_examples(batches: Batches) -> bool:
    """Whether two passes give the same examples, in whatever order."""

    def digest() -> list[int]:
        rows = []
        for batch in batches:
            arrays = [np.asarray(part) for part in keras.tree.flatten(batch) if part is not None]
            rows += [hash(b"".join(array[i].tobytes() for array in arrays)) for i in range(len(arrays[0]))]
        return sorted(rows)

    return digest() == digest()
