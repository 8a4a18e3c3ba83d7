"""Derivatives with TensorFlow's tapes: dense gradients, and products with a Jacobian from either side."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from idmatters_tf.curvature._second_derivatives import differentiable_twice


def gradient(tape: Any, target: Any, sources: Any, output_gradients: Any = None) -> list[Any]:
    """The gradient with zeros where there is none, and dense: nested tapes cannot take an embedding's IndexedSlices."""
    gradients = tape.gradient(target, sources, output_gradients=output_gradients, unconnected_gradients="zero")
    return [tf.convert_to_tensor(part) for part in gradients]


def jvp(
    tape: Any, sources: Sequence[Any], outputs: Sequence[Any], repeatedly: bool = False
) -> Callable[[list[Any]], list[Any]]:
    """The product of the outputs' Jacobian J with tensors like the sources: J v is the derivative of J^T u by u.

    Args:
        tape: a persistent tape that has recorded the outputs.
        sources: what it watches.
        outputs: functions of the sources.
        repeatedly: whether the product is computed more than once outside of a graph.
    """
    directions = [tf.zeros_like(output) for output in outputs]
    with differentiable_twice(), tf.GradientTape(persistent=repeatedly) as transposed:
        transposed.watch(directions)
        vjp = gradient(tape, outputs, sources, directions)
    return lambda vector: gradient(transposed, vjp, directions, vector)
