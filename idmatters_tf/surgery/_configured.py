"""KerasHub's models with more or fewer of their repeated layers, built again from their configuration."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from idmatters_tf import _keras_internals


@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """One index among the repeated layers, or among the blocks of a stage.

    Attributes:
        stage: number of the stage.
        index: index in the stage.
        layers: layers at the index; several for models with an encoder and a decoder, and for blocks of images.
        names: names of the layers, or of the block.
    """

    stage: int
    index: int
    layers: tuple[keras.layers.Layer, ...]
    names: tuple[str, ...]

    @property
    def parts(self) -> list[keras.layers.Layer]:
        """Layers of the slot and all layers inside of them."""
        return [part for layer in self.layers for part in _keras_internals.layers_within(layer)]

    @property
    def variables(self) -> list[keras.Variable]:
        """Variables of the slot, seeds included, in the order of creation."""
        return [variable for layer in self.layers for variable in layer.variables]


@dataclasses.dataclass
class Rebuilt:
    """Result of `ConfiguredModel.rebuild`.

    Attributes:
        model: the new model. It is not compiled like the old one.
        variables: dict from `id` of the old model's variables to the variables of the new model.
        inserted: slots that are a further copy of a slot.
        unlike: names of slots that have such a copy of another kind, as the first block of a stage, which changes the
            shape. The weights of a copy with other weights are initial ones.
    """

    model: keras.Model
    variables: dict[int, keras.Variable] = dataclasses.field(default_factory=dict)
    inserted: list[Slot] = dataclasses.field(default_factory=list)
    unlike: list[str] = dataclasses.field(default_factory=list)


class ConfiguredModel:
    """A KerasHub backbone, or a task with a backbone, of a class in KerasHub's table (`_keras_internals.hub`).

    Attributes:
        model: the argument.
        backbone: the backbone of a task, otherwise the model.
        slots: slots of the repeated layers, in order.
    """

    def __init__(self, model: keras.Model, backbone: keras.Model, known: _keras_internals.RepeatedLayers):
        self.model = model
        self.backbone = backbone
        self._known = known
        self.slots = [
            Slot(stage, index, tuple(layers), known.names(stage, index, layers))
            for stage, rows in enumerate(known.layers(backbone))
            for index, layers in enumerate(rows)
        ]

    @classmethod
    def of(cls, model: keras.Model) -> Self | None:
        """Return a model as a `ConfiguredModel`, or None if it is not one of KerasHub's table."""
        found = _keras_internals.backbone_of(model)
        return None if found is None else cls(model, *found)

    def rebuild(self, sources: Sequence[Slot]) -> Rebuilt:
        """Build the model again with the layers of given slots, which may repeat or be missing, in this order."""
        if {slot.stage for slot in sources} != {slot.stage for slot in self.slots}:
            raise ValueError(f"At least one layer of {self.model.name!r} must remain, and one in each of its stages.")
        built = self._build(sources)
        backbone = built if self.backbone is self.model else getattr(built, "backbone", built)
        new = type(self)(built, backbone, self._known)
        rebuilt = Rebuilt(new.model)
        for old, fresh in _match_layers(self.other_layers(), new.other_layers()):
            # Layers that contain the repeated ones stay trainable: inserted layers are trained also in a frozen model.
            fresh.trainable = old.trainable or len(_keras_internals.layers_within(old)) > 1
        pairs = list(zip(self.other_variables(), new.other_variables(), strict=True))
        for number, (source, target) in enumerate(zip(sources, new.slots, strict=True)):
            is_inserted = source in sources[:number]
            for old, fresh in _match_layers(source.parts, target.parts):
                fresh.trainable = old.trainable or is_inserted
            shapes = [[tuple(variable.shape) for variable in slot.variables] for slot in (source, target)]
            is_alike = shapes[0] == shapes[1] and self.kind(source) == new.kind(target)
            if is_inserted:
                rebuilt.inserted.append(target)
                rebuilt.unlike += [] if is_alike else [source.names[0]]
                if shapes[0] == shapes[1]:
                    _copy_inserted(source.variables, target.variables)
            elif is_alike:
                pairs += zip(source.variables, target.variables, strict=True)
            else:
                raise ValueError(self._kind_error(source.names[0]))
        for old, fresh in pairs:
            fresh.assign(ops.convert_to_numpy(old))
            fresh.trainable = old.trainable
        rebuilt.variables = {id(old): fresh for old, fresh in pairs}
        return rebuilt

    def _build(self, sources: Sequence[Slot]) -> keras.Model:
        """Return a new model with as many layers, in each stage, as there are sources."""
        stages = [slot.stage for slot in sources]
        config = self.backbone.get_config()
        counts = [stages.count(stage) for stage in dict.fromkeys(stages)]
        (count,) = counts if isinstance(config[self._known.count], int) else [counts]
        rows = {name: [config[name][slot.index] for slot in sources] for name in self._known.entries}
        backbone: Any = type(self.backbone).from_config(config | rows | {self._known.count: count})
        rank = _keras_internals.lora_rank(self.backbone)
        if rank is not None:
            layers = _keras_internals.layers_within(self.backbone)
            names = {layer.name for layer in layers if getattr(layer, "lora_enabled", False)}
            backbone.enable_lora(rank, target_layer_names=sorted(names))
        if self.backbone is self.model:
            return backbone
        parts = {"backbone": backbone, "preprocessor": getattr(self.model, "preprocessor", None), "compile": False}
        return type(self.model).from_config(self.model.get_config() | parts)

    def kind(self, slot: Slot) -> int:
        """Return the kind of a layer; others cannot take its place."""
        return self._known.kind(self.backbone.get_config(), slot.index)

    def _kind_error(self, name: str) -> str:
        config = self.backbone.get_config()
        kinds = [self._known.kind(config, index) for index in range(64)]
        period = next((step for step in range(1, 32) if kinds[step:] == kinds[:-step]), None)
        remedy = f", or in multiples of {period}, as by `count={period}`." if period not in (None, 1) else "."
        return (
            f"With another number of layers, a {type(self.backbone).__name__} has a layer of another kind, or other "
            f"weights, at the index of {name!r}. Insert or remove layers elsewhere{remedy}"
        )

    def other_layers(self) -> list[keras.layers.Layer]:
        """Return the layers at any depth that belong to no slot."""
        owned = {id(part) for slot in self.slots for part in slot.parts}
        return [part for part in _keras_internals.layers_within(self.model) if id(part) not in owned]

    def other_variables(self) -> list[keras.Variable]:
        """Return the variables that belong to no slot."""
        owned = {id(variable) for slot in self.slots for variable in slot.variables}
        return [variable for variable in self.model.variables if id(variable) not in owned]


def _match_layers(
    olds: Sequence[keras.layers.Layer], news: Sequence[keras.layers.Layer]
) -> list[tuple[keras.layers.Layer, keras.layers.Layer]]:
    """Enable LoRA in new layers as in old ones, and return the pairs. Blocks of another kind have other layers."""
    pairs: list[tuple[Any, Any]] = list(zip(olds, news, strict=False))
    for old, fresh in pairs:
        if getattr(old, "lora_enabled", False) and not getattr(fresh, "lora_enabled", True):
            fresh.enable_lora(old.lora_rank, lora_alpha=old.lora_alpha)
    return pairs


def _copy_inserted(olds: Sequence[keras.Variable], news: Sequence[keras.Variable]) -> None:
    """Copy weights, but not seeds, to an inserted layer."""
    paths = {fresh.path for fresh in news}
    for old, fresh in zip(olds, news, strict=True):
        if keras.backend.is_float_dtype(fresh.dtype):
            fresh.assign(ops.convert_to_numpy(old))
        if f"{fresh.path.removesuffix(fresh.name)}lora_{fresh.name}_a" in paths:
            # On JAX, `trainable = True` of a layer also applies to the kernel that LoRA has frozen.
            fresh.trainable = False
