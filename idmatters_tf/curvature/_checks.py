"""Check that evaluations of a loss and its gradient are reproducible."""

from typing import Any

import numpy as np

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
        ValueError: if loss or gradient differ by more than rounding.
    """
    dtype = products.objective.dtype
    first, second = (products.loss_and_gradient(draw) for draw in (0, 1))
    check_finite(first[0])
    if not _differ(first, second, dtype):
        return
    raise ValueError(
        f"The loss must be reproducible, but two evaluations gave {first[0]:.9g} and {second[0]:.9g}. Pass data that "
        f"are the same at each pass, without augmentation and shuffling, e.g. list(data). Use training=False for a "
        f"model that draws random numbers, as in dropout."
    )


def _differ(first: tuple[float, Any], second: tuple[float, Any], dtype: str) -> bool:
    tolerance, tiny = TOLERANCE * float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
    loss, gradient = abs(first[0] - second[0]), float(np.linalg.norm(first[1] - second[1]))
    # The gradient is also compared with the loss, because at a minimum it consists of rounding errors.
    size = float(np.linalg.norm(first[1])) + abs(first[0]) + tiny
    return loss > tolerance * (abs(first[0]) + tiny) or gradient > 10 * tolerance * size
