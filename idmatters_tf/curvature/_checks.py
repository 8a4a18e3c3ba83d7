"""Check that evaluations of a loss and its gradient are reproducible."""

from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import random_layers
from idmatters_tf.curvature._batches import Batches
from idmatters_tf.curvature._products import Products

# Allowed difference of two evaluations, in units of rounding: sums over shuffled batches differ by rounding.
TOLERANCE = 300.0


def check_finite(loss: float) -> None:
    """Raise ValueError for a loss that is not a finite number."""
    if not np.isfinite(loss):
        raise ValueError(
            f"The loss on the data must be finite. Received: {loss}. Check for data or weights that are not finite, or "
            f"a model that has diverged."
        )


def check_reproducible(products: Products) -> None:
    """Compare two passes through the data with different random numbers of the model.

    Raises:
        ValueError: if loss or gradient differ by more than rounding. The message names the cause.
    """
    dtype = products.objective.dtype
    first, second = (products.loss_and_gradient(draw) for draw in (0, 1))
    check_finite(first[0])
    if not _differ(first, second, dtype):
        return
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


def _differ(first: tuple[float, Any], second: tuple[float, Any], dtype: str) -> bool:
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
