"""The blocks that are inserted: made for a tensor, set to the identity, and able to leave it."""

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Tensor
from idmatters_tf.layers import ResidualConv2D, ResidualDense
from idmatters_tf.surgery._copying import single
from idmatters_tf.surgery._gradients import gradients

# What stands for sizes that are not known when a model is built.
UNKNOWN_SIZE = 8
# Numbers in a random batch, for which it has 2 to 64 examples: rectified units should not all be off by chance.
NUMBERS = 4096


def insert_block(block: Any, tensor: Tensor, layer: Any, name: str, exact: bool) -> tuple[keras.layers.Layer, Tensor]:
    """A new block, called on a tensor.

    Args:
        block: None for the default one; a layer, which is copied; or a function that returns a layer.
        tensor: the symbolic tensor it is called on.
        layer: the one whose output the tensor is.
        name: the block's.
        exact: whether it is set to the identity, as by `make_identity`, or keeps its own start.

    Returns:
        (block, its output).

    Raises:
        ValueError: where there is no default for the tensor's shape, the block is no layer that can be copied, or it
            changes more than the tensor's values.
    """
    made = _default_block(tensor, layer, exact) if block is None else _made(block, tuple(tensor.shape))
    try:
        copied: keras.layers.Layer = _keras_internals.copy_of(made)
    except Exception as error:
        raise ValueError(
            f"Argument `block`: a {type(made).__name__} cannot be made from its configuration, so that the deepened "
            f"model could not be saved either. Implement `get_config`. The error: {error}"
        ) from error
    copied.name = name
    output = call_block(copied, tensor, layer)
    if made.built:
        for old, new in zip(made.variables, copied.variables, strict=True):
            new.assign(ops.convert_to_numpy(old))
    if exact:
        make_identity(copied, tensor)
    return copied, output


def call_block(block: keras.layers.Layer, tensor: Tensor, layer: Any) -> Tensor:
    """The output of a block on the output of a layer, both symbolic; a ValueError where shape or mask differ."""
    if not keras.backend.is_float_dtype(tensor.dtype):
        raise ValueError(f"No block can follow {layer.name!r}: its output is of dtype {tensor.dtype}, not a float's.")
    try:
        output = single(block(tensor))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The block {block.name!r} ({type(block).__name__}) cannot be called on the output of {layer.name!r}, of "
            f"shape {tuple(tensor.shape)}. The error: {error}"
        ) from error
    if output is None or tuple(output.shape) != tuple(tensor.shape):
        received = "several tensors" if output is None else f"the shape {tuple(output.shape)}"
        raise ValueError(
            f"The block {block.name!r} must return a tensor of its input's shape {tuple(tensor.shape)}. "
            f"Received: {received}"
        )
    if _keras_internals.mask_of(tensor) is not None and _keras_internals.mask_of(output) is None:
        raise ValueError(
            f"The output of {layer.name!r} has a mask, which the block {block.name!r} ({type(block).__name__}) would "
            f"drop. Set `supports_masking = True` in the block's class, if it treats each time step alone."
        )
    return output


def make_identity(block: keras.layers.Layer, tensor: Tensor) -> None:
    """Sets weights of a built block to zero so that it returns its input, and can still learn.

    As few as possible, and the last ones: all trainable weights are set to zero, then each gets its value back where
    the block is still the identity. In a block of attention and feed-forward the output projections of both remain.

    Args:
        block: x + f(x), built.
        tensor: the symbolic tensor that it is called on.

    Raises:
        ValueError: where no choice of zeros makes it the identity, or none of those that do lets it learn.
    """
    x = random_like(tensor)
    if is_identity(block, x):
        dead = _dead_kernels(block, x)
        if dead:
            raise ValueError(_dead_sentence(block, dead))
        return
    variables = block.trainable_variables
    values = [ops.convert_to_numpy(variable) for variable in variables]
    dead: list[str] = []
    # The order of a layer's weights is that in which it made them, mostly but not always that of the computation.
    for order in (range(len(variables)), range(len(variables) - 1, -1, -1)):
        if not _zero_what_must_be(block, x, variables, values, order):
            raise ValueError(
                f"The block {block.name!r} ({type(block).__name__}) is not the identity even where all its trainable "
                f"weights are zero. It must compute x + f(x), with nothing after the sum and a last kernel in f."
            )
        dead = _dead_kernels(block, x)
        if not dead:
            return
    raise ValueError(_dead_sentence(block, dead))


def is_identity(block: keras.layers.Layer, x: Tensor) -> bool:
    """Whether a block returns exactly its input."""
    returned, given = (np.asarray(ops.convert_to_numpy(part)) for part in (block(x, training=False), x))
    return bool(np.array_equal(returned, given))


def random_like(tensor: Tensor, seed: int = 0) -> Tensor:
    """Standard normal numbers in the shape of a symbolic tensor."""
    shape = concrete_shape(tensor, UNKNOWN_SIZE)
    return ops.convert_to_tensor(np.random.default_rng(seed).normal(size=shape), dtype=tensor.dtype)


def concrete_shape(tensor: Tensor, unknown: int) -> list[int]:
    """The shape of a random batch for a symbolic tensor, with a size for those that are not known."""
    sizes = [unknown if size is None else size for size in tensor.shape[1:]]
    examples = max(2, min(64, NUMBERS // max(1, math.prod(sizes))))
    return [examples if tensor.shape[0] is None else tensor.shape[0], *sizes]


def _zero_what_must_be(
    block: keras.layers.Layer,
    x: Tensor,
    variables: Sequence[keras.Variable],
    values: Sequence[Any],
    order: Iterable[int],
) -> bool:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.zeros_like(value))
    if not is_identity(block, x):
        return False
    for place in order:
        variables[place].assign(values[place])
        if not is_identity(block, x):
            variables[place].assign(np.zeros_like(values[place]))
    return True


def _dead_kernels(block: keras.layers.Layer, x: Tensor, rounds: int = 3) -> list[str]:
    """The kernels at zero that no step of gradient descent would move, also not after the others have moved.

    Biases are left out: that of attention's keys has gradient zero by its nature.
    """
    variables = block.trainable_variables
    if not variables:
        return [f"{block.name} has no trainable weights"]
    values = [ops.convert_to_numpy(variable) for variable in variables]
    waiting = {place for place, value in enumerate(values) if _is_kernel(variables[place]) and not np.any(value)}
    moved = False
    for number in range(rounds):
        for place, gradient in enumerate(gradients(block, x, variables, seed=number)):
            largest = np.abs(gradient.astype(np.float32)).max(initial=0.0)
            if largest > 0 and np.isfinite(largest):
                moved = True
                waiting.discard(place)
                variables[place].assign_sub(ops.convert_to_tensor(0.1 * gradient / largest, variables[place].dtype))
        if moved and not waiting:
            break
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    if not moved:
        waiting = set(range(len(variables)))
    return [variables[place].path for place in sorted(waiting)]


def _dead_sentence(block: keras.layers.Layer, dead: Sequence[str]) -> str:
    return (
        f"The block {block.name!r} ({type(block).__name__}) would never learn: {', '.join(dead)} get no gradient. "
        f"Where the last kernel of a branch is zero, what comes before it must not be: no other kernel, no scale, no "
        f"normalisation's gain. Give only the last kernel a zero initialiser, or pass the block with its usual ones."
    )


def _is_kernel(variable: keras.Variable) -> bool:
    return len(variable.shape) >= 2 and "bias" not in variable.name


def _made(block: Any, shape: tuple[int | None, ...]) -> keras.layers.Layer:
    if isinstance(block, keras.layers.Layer):
        return block
    if not callable(block):
        raise ValueError(f"Argument `block` must be a layer, a function that returns one, or None. Received: {block!r}")
    made = block(shape) if _takes_argument(block) else block()
    if not isinstance(made, keras.layers.Layer):
        raise ValueError(f"Argument `block` must return a keras.layers.Layer. Received: {made!r}")
    return made


def _default_block(tensor: Tensor, layer: Any, exact: bool) -> keras.layers.Layer:
    shape, rank = tuple(tensor.shape), len(tensor.shape)
    data_format = getattr(layer, "data_format", None) or keras.config.image_data_format()
    last = data_format == "channels_last" or not hasattr(layer, "data_format")
    size = shape[1] if rank == 4 and data_format == "channels_first" else shape[-1]
    options: dict[str, Any] = {"dtype": getattr(layer, "dtype_policy", None)}
    if exact:
        options |= {"kernel_initializer": "he_normal", "last_kernel_initializer": "zeros"}
    if rank == 4 and size is not None:
        return ResidualConv2D(size, data_format=data_format, **options)
    if rank in (2, 3) and size is not None and (rank == 2 or last):
        return ResidualDense(size, **options)
    raise ValueError(
        f"There is no default block after {layer.name!r}, whose output has the shape {shape}: it takes rank 4 for "
        f"images, rank 2 or 3 for vectors, and a known number of channels. Pass `block`."
    )


def _takes_argument(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )
