"""Gradients by JAX."""

from collections.abc import Callable, Sequence
from typing import Any

import jax


def gradients_of(value: Callable[[Sequence[Any]], Any], theta: Sequence[Any]) -> list[Any]:
    """The gradients of a scalar function at theta; zeros where it does not depend on a tensor."""
    return list(jax.grad(value)(list(theta)))
