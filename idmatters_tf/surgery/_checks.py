"""Checks of a deepened model: equal outputs, and a nonzero gradient for each new block."""

import itertools
from collections.abc import Mapping, Sequence, Set

import keras
import numpy as np
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_internals.structure import name_in_keras
from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf.surgery._blocks import concrete_shape, gradients

# Replacement for input sizes that are unknown when a model is built.
UNKNOWN_SIZE = 32
# Tolerance for rounding with 16 bits or on a GPU, relative to the largest output.
ROUNDING = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
# Activations whose outputs are probabilities or have another range. Rectified units usually return features.
_NAMES = """
    exponential hard_sigmoid hard_tanh log_sigmoid log_softmax sigmoid softmax softplus softsign sparse_sigmoid
    sparsemax squareplus tanh
"""
_ACTIVATIONS = tuple(getattr(keras.activations, name) for name in _NAMES.split())
# Classes of Keras' operations and layers with such outputs, and of those that keep the values.
_WITH_RANGE = """
    Clip Exp HardSigmoid HardTanh LogSigmoid LogSoftmax Normalize Sigmoid Softmax Softplus Softsign SparseSigmoid
    Sparsemax Squareplus Tanh UnitNormalization
"""
_KEEPING_VALUES = """
    Activation Cast Dropout ExpandDims Flatten GetItem Identity Permute Reshape SpatialDropout1D SpatialDropout2D
    SpatialDropout3D Squeeze Transpose
"""


def check_not_quantized(model: object) -> None:
    """Raise a ValueError if a layer of a model is quantized."""
    for layer in _keras_internals.layers_within(model) if isinstance(model, keras.Model) else ():
        if isinstance(layer.dtype_policy, keras.dtype_policies.QuantizedDTypePolicy):
            raise ValueError(
                f"Argument `model` must not be quantized. Received: layer {layer.name!r} in "
                f"{layer.dtype_policy.quantization_mode}. Change the depth first, then quantize the result."
            )


def check_ranges(model: keras.Model, targets: Set[int]) -> None:
    """Raise a ValueError if a block after an operation, given by `id`, would leave the range of a model's output."""
    graph = _keras_internals.read_graph(model)
    producers = {id(output): call for call in (graph.calls if graph else ()) for output in call.outputs}
    for tensor in _keras_internals.graph_of(model).outputs:
        passed: set[int] = set()
        while (call := producers.get(id(tensor))) is not None:
            operation, tensor = call.operation, call.inputs[0]
            passed.add(id(operation))
            if call.way is not None:
                continue
            name = _range(operation)
            if name is not None and targets & passed:
                before = producers.get(id(tensor))
                while before is not None and before.way == "in":
                    before = producers.get(id(before.inputs[0]))
                remedy = f"Insert blocks after {before.name!r}." if before else "There is no layer before it."
                raise ValueError(
                    f"Argument `after`: {call.name!r} returns an output of the model in the range of {name}, which a "
                    f"block would leave. {remedy}"
                )
            if name_in_keras(operation) not in _KEEPING_VALUES.split():
                break


def _range(operation: object) -> str | None:
    """Return the name of the activation or operation of Keras that limits the outputs of an operation, or None."""
    # Recurrent layers usually return features.
    activation = None if isinstance(operation, keras.layers.RNN) else getattr(operation, "activation", None)
    if activation is not None and activation in _ACTIVATIONS:
        return activation.__name__
    return next((name for name in map(name_in_keras, (activation, operation)) if name in _WITH_RANGE.split()), None)


def example_inputs(model: keras.Model, data: Structure | None = None, unknown: int = UNKNOWN_SIZE) -> Structure:
    """Return the given batch of inputs, or a random one.

    Random floating-point inputs are standard normal. Random integers are in the range of the model's smallest
    embedding, without 0, which often denotes padding, or in the range of uint8. `unknown` replaces unknown sizes.

    Raises:
        ValueError: if the inputs, such as strings, cannot be drawn at random.
    """
    if data is not None:
        return data
    graph = _keras_internals.graph_of(model)
    rng = np.random.default_rng(0)
    embeddings = [layer for layer in _keras_internals.layers_within(model) if isinstance(layer, keras.layers.Embedding)]
    examples = min(concrete_shape(tensor, unknown)[0] for tensor in graph.inputs)
    numbers = min((int(layer.input_dim) for layer in embeddings), default=0)

    def draw(tensor: keras.KerasTensor) -> Tensor:
        shape = [examples, *concrete_shape(tensor, unknown)[1:]]
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


def compute_outputs(model: keras.Model, inputs: Structure, given: bool) -> list[Tensor]:
    """Return the flattened outputs of a model, without changing its state; `given` is False for random inputs."""
    try:
        with _keras_internals.substitute_values():
            return keras.tree.flatten(model(inputs, training=False))
    except Exception as error:
        if given:
            raise
        raise ValueError(
            f"The model {model.name!r} cannot be checked on random inputs. Pass a batch of inputs as `data`. The "
            f"error: {error}"
        ) from error


def check_outputs(before: list[Tensor], after: list[Tensor], tolerance: float) -> None:
    """Raise a ValueError if the outputs of two models differ by more than rounding and a tolerance.

    The tolerance is relative to the largest old output.
    """
    for old, new in zip(before, after, strict=True):
        rounding = ROUNDING.get(keras.backend.standardize_dtype(old.dtype), 0.0)
        old, new = (np.asarray(ops.convert_to_numpy(part)).astype(np.float64) for part in (old, new))
        difference, scale = np.abs(new - old).max(initial=0.0), np.abs(old).max(initial=0.0)
        if not difference <= (tolerance + rounding) * scale:
            raise ValueError(
                f"The outputs of the changed model differ by {difference / scale if scale else difference:.3g} of the "
                f"largest one, more than tolerance={tolerance:g}. Increase `tolerance`, or pass tolerance=0 to start "
                f"with identity blocks. With tolerance=0, check that every `get_config` is complete."
            )


def check_gradients(model: keras.Model, inputs: Structure, blocks: Mapping[str, Sequence[keras.Variable]]) -> None:
    """Raise a ValueError if the gradients of all trainable variables of a block are zero, or one is not finite."""
    trained = {name: [variable for variable in row if variable.trainable] for name, row in blocks.items()}
    for name in (name for name, row in trained.items() if not row):
        raise ValueError(f"The block {name!r} has no trainable weights.")
    slopes = iter(gradients(model, inputs, [variable for row in trained.values() for variable in row]))
    for name, row in trained.items():
        largest = [np.abs(slope.astype(np.float32)).max(initial=0.0) for slope in itertools.islice(slopes, len(row))]
        finite = np.isfinite(largest).all()
        if not any(largest) or not finite:
            kind = "no gradient" if finite else "a gradient that is not finite"
            raise ValueError(
                f"The block {name!r} has {kind} from the model's outputs: there is no differentiable path, or the "
                f"inputs saturate an activation. In the second case pass a batch of your own as `data`."
            )
