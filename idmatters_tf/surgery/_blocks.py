"""Construction of inserted blocks: default blocks, zeroed kernels, and their gradients."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Options, Shape, Structure, Tensor
from idmatters_tf.autodiff import gradient
from idmatters_tf.branches.named import find_weights
from idmatters_tf.branches.search import weights_to_zero
from idmatters_tf.layers import ResidualConv2D, ResidualDense
from idmatters_tf.surgery._copying import single_tensor

# A layer to insert, a function of a shape that returns one, or None for the default.
NewBlock: TypeAlias = keras.layers.Layer | Callable[[Shape], keras.layers.Layer] | None
# Replacement for sizes that are unknown when a model is built.
UNKNOWN_SIZE = 8
# Size of a random batch of 2 to 64 examples. In a smaller one all rectified units could be off by chance.
NUMBERS = 4096


def insert_block(
    block: NewBlock, tensor: Tensor, layer: keras.Operation, name: str, exact: bool, last: Sequence[str]
) -> tuple[keras.layers.Layer, Tensor]:
    """Build a new block, see `deepen`, call it on the symbolic output of a layer, and return it and its output.

    If `exact`, `make_identity` sets the block to the identity, see there for `last`. Otherwise it keeps its initial
    weights.
    """
    if block is None:
        made = _default_block(tensor, layer, exact)
    else:
        made = block if isinstance(block, keras.layers.Layer) or not callable(block) else block(tuple(tensor.shape))
    if not isinstance(made, keras.layers.Layer):
        raise ValueError(
            f"Argument `block` must be a layer, a function of a shape that returns one, or None. Received: {made!r}"
        )
    try:
        copied: keras.layers.Layer = _keras_internals.copy_operation(made)
    except Exception as error:
        raise ValueError(
            f"Argument `block`: a {type(made).__name__} cannot be built from its configuration. Implement "
            f"`get_config`. The error: {error}"
        ) from error
    copied.name = name
    output = call_block(copied, tensor, layer)
    if made.built:
        for old, new in zip(made.variables, copied.variables, strict=True):
            new.assign(ops.convert_to_numpy(old))
        _keras_internals.restore_adapted(copied, _keras_internals.read_adapted(made))
    if exact:
        make_identity(copied, tensor, last)
    return copied, output


def call_block(block: keras.layers.Layer, tensor: Tensor, layer: keras.Operation) -> Tensor:
    """Call a block on the symbolic output of a layer.

    Raises:
        ValueError: if the dtype is not floating-point, or if the block changes the shape or drops the mask.
    """
    if not keras.backend.is_float_dtype(tensor.dtype):
        raise ValueError(f"Layer {layer.name!r} must have a floating-point output. Received: dtype {tensor.dtype}.")
    try:
        output = single_tensor(block(tensor))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The block {block.name!r} ({type(block).__name__}) cannot be called on the output of {layer.name!r}, of "
            f"shape {tuple(tensor.shape)}. The error: {error}"
        ) from error
    if output is None or tuple(output.shape) != tuple(tensor.shape):
        received = "several tensors" if output is None else f"shape {tuple(output.shape)}"
        raise ValueError(
            f"The block {block.name!r} must return a tensor of its input's shape {tuple(tensor.shape)}. "
            f"Received: {received}"
        )
    if _keras_internals.get_mask(tensor) is not None and _keras_internals.get_mask(output) is None:
        raise ValueError(
            f"The block {block.name!r} ({type(block).__name__}) drops the mask of the output of {layer.name!r}. Set "
            f"`supports_masking = True` in its class if it processes each time step independently."
        )
    return output


def make_identity(block: keras.layers.Layer, tensor: Tensor, last: Sequence[str]) -> None:
    """Set the last weights of the branches of a built block to zero, so that it returns its input.

    In a transformer block these are the output projections of attention and feed-forward. `last` names them in a layer
    of an unknown kind, unless it is the identity as it is.

    Raises:
        ValueError: if the block is not the identity, and its last weights are unknown.
    """
    x = ops.convert_to_tensor(
        np.random.default_rng(0).normal(size=concrete_shape(tensor, UNKNOWN_SIZE)), dtype=tensor.dtype
    )
    if is_identity(block, x):
        return
    try:
        assign_zeros(find_weights(block.name, [block], last) if last else weights_to_zero(block))
    except ValueError as error:
        remedy = "" if last else " Or name them as last='attribute' or last=('first', 'second')."
        raise ValueError(f"{error}{remedy}") from error
    if not is_identity(block, x):
        raise ValueError(
            f"The block {block.name!r} ({type(block).__name__}) is not the identity if the last weights of its "
            f"branches are zero. It must compute x + f(x), with nothing after the sum."
        )


def assign_zeros(variables: Iterable[keras.Variable]) -> None:
    """Set variables to zero."""
    for variable in variables:
        variable.assign(ops.zeros_like(variable))


def is_identity(block: keras.layers.Layer, x: Tensor) -> bool:
    """Return True if a block returns exactly its input."""
    with _keras_internals.substitute_values():
        returned = block(x, training=False)
    outputs, inputs = (np.asarray(ops.convert_to_numpy(part)) for part in (returned, x))
    return bool(np.array_equal(outputs, inputs))


def gradients(
    layer: keras.layers.Layer, inputs: Structure, variables: Sequence[keras.Variable]
) -> list[NDArray[np.floating]]:
    """Return the gradients of `sum(c * layer(inputs))` with respect to some variables, with c standard normal.

    The state of the layer does not change, neither moving averages nor random seeds.
    """

    def value(_: Structure) -> Tensor:
        rng = np.random.default_rng(0)
        total = ops.zeros(())
        for output in keras.tree.flatten(layer(inputs, training=False)):
            if keras.backend.is_float_dtype(keras.backend.standardize_dtype(output.dtype)):
                output: Tensor = ops.cast(output, "float32")
                cotangent = rng.normal(size=tuple(output.shape)).astype("float32")
                total: Tensor = total + ops.sum(output * cotangent)
        return ops.cast(total, "float32")

    return [np.asarray(ops.convert_to_numpy(part)) for part in gradient(value, list(variables))]


def concrete_shape(tensor: Tensor, unknown: int) -> list[int]:
    """Return the shape of a random batch for a symbolic tensor, with `unknown` in place of unknown sizes."""
    sizes = [unknown if size is None else size for size in tensor.shape[1:]]
    examples = max(2, min(64, NUMBERS // max(1, math.prod(sizes))))
    return [examples if tensor.shape[0] is None else tensor.shape[0], *sizes]


def _default_block(tensor: Tensor, layer: keras.Operation, exact: bool) -> keras.layers.Layer:
    shape = tuple(tensor.shape)
    rank = len(shape)
    data_format = "channels_last"
    if rank in (3, 4):
        usual = keras.config.image_data_format() if rank == 4 else data_format
        data_format = getattr(layer, "data_format", None) or usual
    size = shape[1 if data_format == "channels_first" else -1]
    options: Options = {"dtype": getattr(layer, "dtype_policy", None)}
    if exact:
        options |= {"kernel_initializer": "he_normal", "last_kernel_initializer": "zeros"}
    if rank == 4 and size is not None:
        return ResidualConv2D(size, data_format=data_format, **options)
    if rank in (2, 3) and size is not None and data_format == "channels_last":
        return ResidualDense(size, **options)
    raise ValueError(
        f"There is no default block after {layer.name!r}: its output must have rank 2, 3 or 4 and a known number of "
        f"channels. Received: shape {shape}. Pass `block`."
    )
