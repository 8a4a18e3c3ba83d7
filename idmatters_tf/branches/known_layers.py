"""Residual branches of known layers: those of this package and of KerasHub."""

import dataclasses
import itertools
from collections.abc import Iterable

import keras

from idmatters_tf._keras_internals import (
    HubBlock,
    hub_block,
    hub_blocks_within,
    is_from_hub,
    is_unlisted,
    layers_within,
    own_trainable_variables,
)
from idmatters_tf._keras_internals.structure import Step, is_kind_of_keras, nested_models, read_steps
from idmatters_tf.branches.last_weights import POSITIVE, last_weights
from idmatters_tf.layers import LinearResidual, ResidualDense, ShortcutUnit
from idmatters_tf.layers.images import ConvolutionBlock


@dataclasses.dataclass(frozen=True)
class Branch:
    """The branch f of a block h + f(h), or the branches of a layer that contains several sums.

    Attributes:
        name: name of the block.
        last: for each sum, the variables W with f(h; c W) = c f(h; W) for c > 0.
        inner: the other trainable variables of the branch, also frozen ones.
        layers: layers of the branch.
    """

    name: str
    last: tuple[tuple[keras.Variable, ...], ...]
    inner: tuple[keras.Variable, ...]
    layers: tuple[keras.layers.Layer, ...]

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables of the block."""
        return [*itertools.chain(*self.last), *self.inner]


def _variables(operations: Iterable[object]) -> list[keras.Variable]:
    layers = [operation for operation in operations if isinstance(operation, keras.layers.Layer)]
    found = {id(v): v for layer in layers for part in layers_within(layer) for v in own_trainable_variables(part)}
    return list(found.values())


def is_trained(step: Step) -> bool:
    """Return True for a layer with variables that are trained, or were before they were frozen."""
    return bool(_variables([step.operation]))


def make_branch(
    name: str, sums: Iterable[Iterable[keras.Variable]], operations: Iterable[object], outside: Iterable[object] = ()
) -> Branch:
    """Return a branch with the last weights of each sum, and the other weights of layers as inner weights."""
    operations = list(operations)
    last = tuple(map(tuple, sums))
    excluded = {id(variable) for variable in (*itertools.chain(*last), *_variables(outside))}
    inner = tuple(variable for variable in _variables(operations) if id(variable) not in excluded)
    layers = [operation for operation in operations if isinstance(operation, keras.layers.Layer)]
    return Branch(name, last, inner, tuple({id(p): p for layer in layers for p in layers_within(layer)}.values()))


def is_addition(step: Step) -> bool:
    """Return True for sums and differences of tensors."""
    return step.kind in ("Add", "Subtract") or type(step.operation) in (keras.layers.Add, keras.layers.Subtract)


def is_unknown(operation: object) -> bool:
    """Return True for layers from elsewhere, and those with code of the user."""
    if not isinstance(operation, keras.layers.Layer) or is_from_hub(operation):
        return False
    kind = type(operation)
    is_known = kind.__module__.startswith(("keras.", "idmatters_tf.")) and not is_kind_of_keras(kind, "applications")
    return kind is keras.layers.Lambda or not is_known


def is_examined(layer: keras.layers.Layer) -> bool:
    """Return True for layers that contain no layers from elsewhere, and none of KerasHub's outside of the table."""
    plain = {id(model) for model in nested_models(layer) if read_steps(model) is not None}
    parts = [part for part in layers_within(layer) if id(part) not in plain]
    return not any(is_unknown(part) or is_unlisted(part) for part in parts)


def extends_layer(layer: keras.layers.Layer) -> bool:
    """Return True if the class of a layer is one of Keras' layers, or derived from one."""
    kinds = [kind for kind in type(layer).__mro__ if kind not in (keras.layers.Layer, keras.Model)]
    return any(is_kind_of_keras(kind, "layers") for kind in kinds)


def known_branches(step: Step) -> list[Branch]:
    """Return the branches in a layer of this package or of KerasHub; an empty list for other layers and operations."""
    layer = step.operation
    if (own := _package_branch(step)) is not None:
        return [own]
    if (entry := hub_block(layer)) is not None:
        return [_hub_branch(layer, entry, step.name)]
    parts = hub_blocks_within(layer) if isinstance(layer, keras.layers.Layer) else []
    entries = ((part, hub_block(part)) for part in parts)
    return [_hub_branch(part, entry, f"{step.name}/{part.name}") for part, entry in entries if entry is not None]


def has_branches(step: Step) -> bool:
    """Return True for additions, and for layers with known branches."""
    return is_addition(step) or bool(known_branches(step))


def _package_branch(step: Step) -> Branch | None:
    """Return the branch of a residual layer of this package; None for other layers and those without a skip."""
    layer = step.operation
    if isinstance(layer, ConvolutionBlock):
        if getattr(layer, "shortcut", None) == "none":
            return None
        outside = [getattr(layer, name, None) for name in ("skip", "skip_norm")]
        if getattr(layer, "preactivation", None) == "both":
            # This normalization is on both paths.
            outside.append(layer.norm1)
        scale = getattr(layer, "scale", None)
        last = last_weights(layer.branch_steps()[-1]) if scale is None else [scale]
        return make_branch(step.name, [last], [layer], outside)
    if isinstance(layer, LinearResidual):
        return make_branch(step.name, [[layer.kernel]], [layer])
    if isinstance(layer, ResidualDense) and layer.skip:
        return make_branch(step.name, [[layer.V]], [layer])
    if isinstance(layer, ShortcutUnit) and layer.shortcut:
        if layer.post not in POSITIVE:
            raise ValueError(
                f"The branch of {step.name!r} cannot be scaled: it ends in the activation `post`. Received: "
                f"post={getattr(layer.post, '__name__', layer.post)}. Use None."
            )
        return make_branch(step.name, [[layer.kernels[-1]]], [layer])
    return None


def _hub_branch(layer: keras.Operation, entry: HubBlock, name: str) -> Branch:
    """Return the branches of a block of KerasHub."""
    for attribute, value in entry.required:
        if getattr(layer, attribute) != value:
            raise ValueError(
                f"The block {name!r} ({type(layer).__name__}) normalizes its sums or branches. Received: "
                f"{attribute}={getattr(layer, attribute)}. Use {attribute}={value}."
            )
    return make_branch(name, _hub_sums(layer, entry, name), [layer])


def _hub_sums(layer: keras.Operation, entry: HubBlock, name: str) -> list[list[keras.Variable]]:
    """Return the last weights of each sum of a block of KerasHub."""
    sums: list[list[keras.Variable]] = []
    for paths in entry.sums:
        found = [part for path in paths if (part := _attribute(layer, path)) is not None]
        if found:
            weights = [[part] if isinstance(part, keras.Variable) else last_weights(part) for part in found]
            if not all(weights):
                raise ValueError(f"The block {name!r} has last layers of an unknown kind, such as those with LoRA.")
            sums.append(list(itertools.chain(*weights)))
    return sums


def weights_of_branches(layer: keras.layers.Layer) -> list[keras.Variable] | None:
    """Return the last weights of a known layer, all branches of which are zero if they are; None for other layers."""
    entry = hub_block(layer)
    if entry is not None:
        return list(itertools.chain(*_hub_sums(layer, entry, layer.name)))
    branch = _package_branch(Step(layer.name, layer, (), ()))
    return None if branch is None else list(itertools.chain(*branch.last))


def _attribute(layer: object, path: str) -> object:
    for name in path.split("."):
        layer = getattr(layer, name, None)
    return layer
