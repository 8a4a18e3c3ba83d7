"""Conversion of functions of nested structures, variables and models to functions of flat lists of tensors."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from idmatters_tf._keras_internals import get_mask, set_mask, substitute_values
from idmatters_tf._keras_types import Shape, Structure, Tensor


class FlatFunction:
    """Function at a point, as a function of a flat list of tensors without side effects on layers.

    `idmatters_tf.autodiff` describes the arguments. A point that is not differentiable raises a ValueError.

    Attributes:
        point: flat list of the tensors of the point.
    """

    def __init__(self, function: Callable[[Structure], Structure], point: Structure):
        self._function = function
        self._structure = point
        leaves = keras.tree.flatten(point)
        if not leaves:
            raise ValueError(f"Argument `point` must contain at least one tensor. Received: {point!r}")
        self._variables = [leaf if isinstance(leaf, keras.Variable) else None for leaf in leaves]
        named = [id(variable) for variable in self._variables if variable is not None]
        if len(set(named)) < len(named):
            raise ValueError("Argument `point` must not contain a variable twice. Pass each variable once.")
        self.point = [_float_tensor(leaf) for leaf in leaves]
        self._masks = [get_mask(leaf) for leaf in leaves]
        self._outputs: Structure = None

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the outputs and their Keras masks as flat lists. The tensors receive the masks of the point."""
        for tensor, mask in zip(tensors, self._masks, strict=True):
            set_mask(tensor, mask)
        values = [
            (variable, tensor)
            for variable, tensor in zip(self._variables, tensors, strict=True)
            if variable is not None
        ]
        with substitute_values(values):
            self._outputs = self._function(keras.tree.pack_sequence_as(self._structure, list(tensors)))
        outputs: list[Tensor] = keras.tree.flatten(self._outputs)
        if not outputs or any(output is None for output in outputs):
            raise ValueError(f"Argument `function` must return tensors. Received: {self._outputs!r}")
        outputs = [ops.convert_to_tensor(output) for output in outputs]
        for output in outputs:
            dtype = keras.backend.standardize_dtype(output.dtype)
            if not keras.backend.is_float_dtype(dtype):
                raise ValueError(f"Argument `function` must return floating-point tensors. Received: {dtype}")
        return outputs, [get_mask(output) for output in outputs]

    def scalar(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the output of a function with one scalar output, or raise ValueError."""
        outputs, _ = self(tensors)
        shapes = [tuple(output.shape) for output in outputs]
        if shapes != [()]:
            raise ValueError(
                f"Argument `function` must return one scalar, for example a mean loss. Received: outputs of shape "
                f"{', '.join(map(str, shapes))}. Use `jacobian` or `vjp` for these."
            )
        return outputs[0]

    def like_point(self, tensors: Sequence[Structure]) -> Structure:
        """Return a flat list, one entry for each tensor of the point, in the structure of the point."""
        return keras.tree.pack_sequence_as(self._structure, list(tensors))

    def like_outputs(self, tensors: Sequence[Structure]) -> Structure:
        """Return a flat list in the structure of the outputs of the latest call."""
        return keras.tree.pack_sequence_as(self._outputs, list(tensors))

    def vector_at_point(self, vector: Structure) -> list[Tensor]:
        """Return a vector in the structure of the point as a flat list, or raise ValueError if it does not fit."""
        return _flatten_vector(vector, self._structure, self.point, "`point`")

    def vector_at_outputs(self, vector: Structure, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return a vector in the structure of the outputs as a flat list, or raise ValueError if it does not fit."""
        return _flatten_vector(vector, self._outputs, outputs, "the outputs of `function`")


def _float_tensor(leaf: Tensor) -> Tensor:
    """Return a leaf of a point as a tensor."""
    tensor: Tensor = ops.convert_to_tensor(leaf.value if isinstance(leaf, keras.Variable) else leaf)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise ValueError(
            f"Argument `point` must contain floating-point tensors. Received: {dtype} of shape {tuple(tensor.shape)}. "
            f"Pass other inputs inside the function, as in lambda x: model([x, tokens])."
        )
    return tensor


def _flatten_vector(vector: Structure, structure: Structure, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
    keras.tree.assert_same_structure(structure, vector)
    parts: list[Tensor] = [
        ops.cast(part.value if isinstance(part, keras.Variable) else ops.convert_to_tensor(part), tensor.dtype)
        for part, tensor in zip(keras.tree.flatten(vector), tensors, strict=True)
    ]
    expected = [tuple(tensor.shape) for tensor in tensors]
    received = [tuple(part.shape) for part in parts]
    if not all(map(_agree, expected, received)):
        raise ValueError(
            f"Argument `vector` must have the shapes of {name}: {', '.join(map(str, expected))}. Received: "
            f"{', '.join(map(str, received))}"
        )
    return parts


def _agree(shape: Shape, other: Shape) -> bool:
    """Return True if the known sizes of two shapes are equal."""
    return len(shape) == len(other) and all(a is None or b is None or a == b for a, b in zip(shape, other, strict=True))
