"""TensorFlow functions of batches, traced as rarely as their shapes allow."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from idmatters_tf.curvature._second_derivatives import differentiable_twice

# The shapes of a batch's tensors; None for a size that may be any.
Shapes = tuple[tuple[int | None, ...], ...]


class Traced:
    """A function traced for the first two shapes of batches, and then once for all that differ in the same axes.

    Batches differ in the number of examples, and those of sequences in their length. Calling a `tf.function` itself
    would warn of retracing as soon as a few operators have been made: it counts by the place in the source.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function: Any = tf.function(function)
        self._graphs: dict[Any, dict[Shapes, Any]] = {}
        # False once a layer has failed on sizes that are not known, as Keras' UpSampling2D does.
        self._generalizes = True

    def __call__(self, batch: Any, *arguments: Any) -> Any:
        tensors = [tensor for tensor in tf.nest.flatten(batch) if tensor is not None]
        kinds = tuple((tensor.dtype, len(tensor.shape)) for tensor in tensors)
        graphs = self._graphs.setdefault((kinds, *(tuple(argument.shape) for argument in arguments)), {})
        shapes: Shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        key = next((known for known in graphs if _fits(known, shapes)), None)
        if key is None and len(graphs) >= 2 and self._generalizes:
            key = _in_common([*graphs, shapes])
            try:
                graphs[key] = self._trace(batch, key, arguments)
            except Exception:
                key, self._generalizes = None, False
        if key is None:
            key = shapes
            graphs[key] = self._trace(batch, key, arguments)
        return graphs[key](batch, *arguments)

    def _trace(self, batch: Any, shapes: Shapes, arguments: Sequence[Any]) -> Any:
        sizes = iter(shapes)
        specification = tf.nest.map_structure(
            lambda tensor: None if tensor is None else tf.TensorSpec(next(sizes), tensor.dtype), batch
        )
        with differentiable_twice(), quiet():
            return self.function.get_concrete_function(specification, *arguments)


def _fits(known: Shapes, shapes: Shapes) -> bool:
    """Whether a graph for the known shapes takes those."""
    return all(
        size is None or size == other
        for sizes, others in zip(known, shapes, strict=True)
        for size, other in zip(sizes, others, strict=True)
    )


def _in_common(found: Sequence[Shapes]) -> Shapes:
    """The sizes that are the same in all, and None for the others."""
    return tuple(
        tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*of_tensor, strict=True))
        for of_tensor in zip(*found, strict=True)
    )


@contextlib.contextmanager
def quiet(level: int | None = None) -> Iterator[None]:
    """Without `vectorized_map`'s line for each gradient of a kernel that it computes in a loop: that is all right.

    Args:
        level: also without all messages up to this level.
    """

    def wanted(record: logging.LogRecord) -> bool:
        return "uses a while_loop" not in str(record.msg) and (level is None or record.levelno > level)

    logger = logging.getLogger("tensorflow")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
