"""Table of layers: the weights that a layer is proportional to, and the layers that pass a positive factor on."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import layers

from idmatters_tf._keras_internals.structure import Step, attention_output, drops_paths, trained_factor
from idmatters_tf.layers import ScaledConv2D

POSITIVE = (keras.activations.linear, keras.activations.relu, keras.activations.leaky_relu)
"""Activations g with g(c x) = c g(x) for c > 0."""

_DENSE = (layers.Dense, layers.EinsumDense, ScaledConv2D)
_CONVOLUTIONS = tuple(
    getattr(layers, f"{kind}{n}D{end}")
    for kind, end, sizes in (
        ("Conv", "", (1, 2, 3)),
        ("Conv", "Transpose", (1, 2, 3)),
        ("DepthwiseConv", "", (1, 2)),
        ("SeparableConv", "", (1, 2)),
    )
    for n in sizes
)
_NORMALIZATIONS = (layers.BatchNormalization, layers.LayerNormalization, layers.GroupNormalization)
NORMALIZATIONS = (*_NORMALIZATIONS, layers.RMSNormalization, layers.UnitNormalization)

# Layers f with f(c x) = c f(x) for c > 0, in training and inference, without conditions.
_PASSING = (
    *(layers.Add, layers.Subtract, layers.Average, layers.Concatenate, layers.Maximum, layers.Minimum),
    *(layers.Identity, layers.LeakyReLU, layers.PReLU, layers.Dropout, layers.GaussianDropout),
    *(layers.Flatten, layers.Permute, layers.RepeatVector, layers.Reshape),
    *(getattr(layers, f"SpatialDropout{n}D") for n in (1, 2, 3)),
    *(getattr(layers, f"{kind}{n}D") for n in (1, 2, 3) for kind in ("Cropping", "UpSampling", "ZeroPadding")),
    *(getattr(layers, f"{way}Pooling{n}D") for n in (1, 2, 3) for way in ("Average", "Max")),
    *(getattr(layers, f"Global{way}Pooling{n}D") for n in (1, 2, 3) for way in ("Average", "Max")),
)
# Operations of Keras with the same property, if all of their inputs are tensors of the model.
_PASSING_OPERATIONS = (
    *("Absolute", "Add", "Amax", "Amin", "AveragePool", "BroadcastTo", "Cast", "Concatenate", "Copy"),
    *("ExpandDims", "Flip", "GetItem", "LeakyRelu", "Max", "MaxPool", "Maximum", "Mean", "Min", "Minimum"),
    *("Moveaxis", "Negative", "Ravel", "Relu", "Repeat", "Reshape", "Roll", "Slice", "Split", "Squeeze"),
    *("Stack", "Subtract", "Sum", "Swapaxes", "Tile", "Transpose", "Unstack"),
)
# Operations of two tensors or a tensor and a number; a number would change the property.
_OF_TWO_TENSORS = ("Add", "Maximum", "Minimum", "Subtract")
_PRODUCTS = ("Dot", "Einsum", "Matmul", "Multiply")
_QUOTIENTS = ("Divide", "TrueDivide")


class UnknownTailError(ValueError):
    """The last weights of a branch cannot be found. The message states the reason."""


@dataclasses.dataclass
class Tail:
    """The end of a branch, from its last weights on.

    Attributes:
        weights: last weights.
        outputs: tensors of the steps of the tail, by `id`.
        steps: these steps, by `id`.
    """

    weights: list[keras.Variable] = dataclasses.field(default_factory=list)
    outputs: set[int] = dataclasses.field(default_factory=set)
    steps: set[int] = dataclasses.field(default_factory=set)

    def extend(self, other: "Tail") -> None:
        """Add the end of another term of a sum."""
        known = {id(variable) for variable in self.weights}
        self.weights += [variable for variable in other.weights if id(variable) not in known]
        self.outputs |= other.outputs
        self.steps |= other.steps


def last_weights(layer: Any) -> list[keras.Variable]:
    """Return the weights W with layer(x; c W) = c layer(x; W) for c > 0; an empty list if the table has none.

    Subclasses are not in the table, because they may compute something else.
    """
    found: list[keras.Variable | None] = []
    layer = attention_output(layer) or layer
    if type(layer) in (*_DENSE, *_CONVOLUTIONS):
        is_plain = layer.activation in POSITIVE and not getattr(layer, "lora_enabled", False)
        if is_plain and getattr(layer, "quantization_mode", None) is None:
            names = {layers.SeparableConv1D: "pointwise_kernel", layers.SeparableConv2D: "pointwise_kernel"}
            found = [getattr(layer, {**names, ScaledConv2D: "gains"}.get(type(layer), "kernel")), layer.bias]
    elif type(layer) in _NORMALIZATIONS:
        found = [layer.gamma, layer.beta] if layer.gamma is not None else []
    elif type(layer) is layers.RMSNormalization:
        found = [layer.scale]
    elif (factor := trained_factor(layer)) is not None:
        found = [factor]
    return [variable for variable in found if variable is not None]


def passes_factor(step: Step) -> bool:
    """Return True for a step f with f(c x) = c f(x) for c > 0 in training and inference, or of several such inputs."""
    layer, kind = step.operation, step.kind
    if kind:
        return kind in _PASSING_OPERATIONS and (len(step.inputs) > 1 or kind not in _OF_TWO_TENSORS)
    if type(layer) is layers.Activation:
        return layer.activation in POSITIVE
    if type(layer) is layers.ReLU:
        return layer.max_value is None and not layer.threshold
    if type(layer) is layers.Rescaling:
        return bool(layer.scale) and not layer.offset
    return type(layer) in _PASSING or drops_paths(layer)


def _factors(step: Step) -> Sequence[keras.KerasTensor]:
    """Return the inputs of a step that it is linear in, one at a time; an empty list for other steps."""
    if step.kind in _QUOTIENTS:
        # A number divided by a tensor has one input, too.
        return step.inputs[:1] if isinstance(step.arguments[0], keras.KerasTensor) else ()
    is_product = step.kind in _PRODUCTS or type(step.operation) is layers.Multiply
    return step.inputs if is_product else ()


class TailFinder:
    """Search for the ends of branches along the steps of a model.

    Args:
        makers: steps by the `id` of each of their outputs.
        users: steps that use a tensor, by `id`; 0 for the output of the model.
        ancestors: tensors that a tensor is computed from, all by `id`.
        named: function of a step that returns the last weights which the user has named for it, an empty list for a
            layer that passes a factor on, or None.
    """

    def __init__(
        self,
        makers: Mapping[int, Step],
        users: Mapping[int, set[int]],
        ancestors: Mapping[int, set[int]],
        named: Callable[[Step], list[keras.Variable] | None],
    ):
        self._makers, self._users, self._ancestors, self._named = makers, users, ancestors, named

    def find(self, terms: Sequence[keras.KerasTensor], start: keras.KerasTensor, ends: set[int]) -> Tail:
        """Return the tail of the branch that is the sum of some tensors.

        Args:
            terms: tensors that are added to x.
            start: x.
            ends: additions of the terms, by `id`.

        Raises:
            UnknownTailError: if a term does not end in weights that the table or the user names.
        """
        tail = self._join(terms, start)
        if (name := self._used_elsewhere(tail, ends)) is not None:
            raise UnknownTailError(f"the output of {name!r} is used for something else as well")
        return tail

    def _join(self, tensors: Sequence[keras.KerasTensor], start: keras.KerasTensor) -> Tail:
        tail = Tail()
        for tensor in tensors:
            tail.extend(self._find(tensor, start))
        return tail

    def _find(self, tensor: keras.KerasTensor, start: keras.KerasTensor) -> Tail:
        step = self._makers.get(id(tensor))
        if tensor is start or step is None:
            raise UnknownTailError("it contains its input without weights")
        given = self._named(step)
        weights = last_weights(step.operation) if given is None else given
        if weights and tensor is step.outputs[0]:
            return Tail(weights, set(map(id, step.outputs)), {id(step)})
        if passes_factor(step) or given == []:
            tail = self._join(step.inputs, start)
        elif factors := _factors(step):
            tail = self._find_factor(step, factors, start)
        else:
            raise UnknownTailError(f"{step.name!r} ({_describe(step)}) does not pass a factor on")
        tail.outputs |= set(map(id, step.outputs))
        tail.steps.add(id(step))
        return tail

    def _find_factor(self, step: Step, factors: Sequence[keras.KerasTensor], start: keras.KerasTensor) -> Tail:
        """Return the tail of the first factor of a product whose last weights the others do not depend on."""
        reason: UnknownTailError | None = None
        for factor in factors:
            others = [tensor for tensor in step.inputs if tensor is not factor]
            try:
                tail = self._find(factor, start)
            except UnknownTailError as error:
                reason = reason or error
                continue
            is_single = len(others) == len(step.inputs) - 1
            if is_single and not any(tail.outputs & {id(t), *self._ancestors.get(id(t), ())} for t in others):
                return tail
        raise reason or UnknownTailError(f"{step.name!r} multiplies the branch by itself")

    def _used_elsewhere(self, tail: Tail, ends: set[int]) -> str | None:
        """Return the name of a step of a tail whose output other steps use than those of the tail and the sum."""
        for key in tail.outputs:
            if not self._users.get(key, set()) <= tail.steps | ends:
                return self._makers[key].name
        return None


def _describe(step: Step) -> str:
    name = type(step.operation).__name__
    activation = getattr(step.operation, "activation", None)
    if activation is not None and activation not in POSITIVE:
        return f"{name} with activation {getattr(activation, '__name__', type(activation).__name__)}"
    if type(step.operation) in _NORMALIZATIONS:
        return f"{name} without scale"
    return name
