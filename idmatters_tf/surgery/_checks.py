"""What is checked before a changed model is returned: the same outputs, and a gradient for each new block."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Tensor
from idmatters_tf.surgery._blocks import concrete_shape
from idmatters_tf.surgery._gradients import gradients

# What stands for sizes of inputs that are not known when a model is built.
UNKNOWN_SIZE = 32
# What rounding may change where 16 bits or a GPU are used, relative to the largest output.
ROUNDING = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}


def example_inputs(model: keras.Model, data: Any = None, seed: int = 0) -> Any:
    """A batch of inputs: the one given, or random ones.

    Random inputs are standard normal numbers; integers are in the range of the model's smallest embedding, without the
    0 that often stands for padding, or those of uint8.

    Args:
        model: a functional or Sequential model.
        data: a batch in the structure of the model's inputs, or None.
        seed: of the random inputs.

    Raises:
        ValueError: for inputs, such as strings, that cannot be drawn.
    """
    graph = _keras_internals.graph_of(model)
    if data is not None:
        return data
    rng = np.random.default_rng(seed)
    embeddings = [layer for layer in _keras_internals.layers_within(model) if isinstance(layer, keras.layers.Embedding)]
    examples = min(concrete_shape(tensor, UNKNOWN_SIZE)[0] for tensor in graph.inputs)
    numbers = min((int(layer.input_dim) for layer in embeddings), default=0)

    def draw(tensor: Any) -> Tensor:
        shape = [examples, *concrete_shape(tensor, UNKNOWN_SIZE)[1:]]
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if keras.backend.is_float_dtype(dtype):
            values = rng.normal(size=shape)
        elif dtype == "bool":
            values = rng.integers(0, 2, shape)
        elif keras.backend.is_int_dtype(dtype):
            high = numbers or (256 if dtype == "uint8" else 2)
            values = rng.integers(1 if numbers > 1 else 0, high, shape)
        else:
            raise ValueError(
                f"The model {model.name!r} has inputs of dtype {dtype}, which cannot be drawn at random. Pass a "
                f"batch of inputs as `data`."
            )
        return ops.convert_to_tensor(values.astype("float32" if "float" in dtype else dtype), dtype=dtype)

    return keras.tree.map_structure(draw, graph.input)


def outputs_of(model: keras.Model, inputs: Any, given: bool) -> list[Tensor]:
    """The outputs, flat.

    Args:
        given: whether the inputs were the caller's; for the message.
    """
    try:
        return keras.tree.flatten(model(inputs, training=False))
    except Exception as error:
        if given:
            raise
        raise ValueError(
            f"The model {model.name!r} cannot be called on random inputs, so that nothing could be checked. Pass a "
            f"batch of inputs as `data`. The error: {error}"
        ) from error


def check_outputs(before: list[Tensor], after: list[Tensor], tolerance: float) -> None:
    """Compares the outputs of two models.

    Args:
        before, after: the outputs of the old and of the new model.
        tolerance: the largest difference allowed, relative to the largest output before; rounding comes on top.

    Raises:
        ValueError: where they differ by more.
    """
    for old, new in zip(before, after, strict=True):
        rounding = ROUNDING.get(keras.backend.standardize_dtype(old.dtype), 0.0)
        old, new = (np.asarray(ops.convert_to_numpy(part)).astype(np.float64) for part in (old, new))
        if not np.isfinite(old).all():
            raise ValueError(
                "The model gives outputs that are not finite, so that nothing could be checked. Pass a batch of inputs "
                "that it was made for as `data`."
            )
        difference, scale = np.abs(new - old).max(initial=0.0), np.abs(old).max(initial=0.0)
        if not difference <= (tolerance + rounding) * scale:
            raise ValueError(
                f"The outputs of the changed model differ by {difference / scale if scale else difference:.3g} of the "
                f"largest one, more than tolerance={tolerance:g}. Blocks that keep a start of their own need a larger "
                f"`tolerance`; with tolerance=0 they are set to the identity. Otherwise a layer's `get_config` leaves "
                f"something out."
            )


def check_gradients(model: keras.Model, inputs: Any, blocks: Mapping[str, keras.layers.Layer]) -> None:
    """Checks that each block would learn.

    Args:
        model: with the blocks.
        inputs: a batch.
        blocks: by name.

    Raises:
        ValueError: naming the blocks for which all gradients are zero, or not finite.
    """
    variables = [variable for block in blocks.values() for variable in block.trainable_variables]
    values = gradients(model, inputs, variables)
    found = {id(variable): gradient for variable, gradient in zip(variables, values, strict=True)}
    for name, block in blocks.items():
        largest = [np.abs(found[id(v)].astype(np.float32)).max(initial=0.0) for v in block.trainable_variables]
        finite = np.isfinite(largest).all()
        kind = "no gradient" if finite else "a gradient that is not finite"
        if not any(largest) or not finite:
            raise ValueError(
                f"The block {name!r} gets {kind} from the model's outputs. Either nothing differentiable leads from it "
                f"to them, or the inputs saturate an activation: then pass a batch of your own as `data`."
            )
