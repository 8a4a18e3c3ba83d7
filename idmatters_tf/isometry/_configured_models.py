"""Models whose configuration contains their number of layers, such as KerasHub's, with more or fewer layers."""

import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
from keras import ops

from idmatters_tf import _keras_internals

# Entries of a configuration with numbers of layers: one number, or one for each stage of a network for images.
_COUNTS = ("num_layers", "stackwise_num_blocks")
_PLAIN = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True)
class Slot:
    """Index of one repeated layer, or of one block of a stage, and its prefixes.

    Attributes:
        stage: number of the stage; None for a model with a single number of layers.
        index: index in the stage.
        prefixes: beginnings of the paths of the variables, such as ("transformer_layer_3",). Two for models with an
            encoder and a decoder of equal depth.
    """

    stage: int | None
    index: int
    prefixes: tuple[str, ...]

    def owns(self, path: str) -> bool:
        """Return True if a variable or layer belongs to the slot, by its path."""
        return any(_begins_with(path, prefix) for prefix in self.prefixes)


@dataclasses.dataclass
class Rebuilt:
    """Result of `ConfiguredModel.rebuild`.

    Attributes:
        model: the new model. It is not compiled like the old one.
        variables: dict from `id` of the old model's variables to the variables of the new model.
        inserted: variables of each layer that is a further copy of a layer.
        unlike: names of layers that have such a copy of another kind, as the first block of a stage, which changes the
            shape. The weights of a copy with other weights are initial ones.
    """

    model: Any
    variables: dict[int, keras.Variable] = dataclasses.field(default_factory=dict)
    inserted: list[list[keras.Variable]] = dataclasses.field(default_factory=list)
    unlike: list[str] = dataclasses.field(default_factory=list)


class ConfiguredModel:
    """A model that can be built again with another number of layers.

    Args:
        model: a KerasHub backbone, or a KerasHub task with a backbone.

    Attributes:
        model: the argument.
        backbone: the backbone of a task, otherwise the model.
        slots: slots of the repeated layers, in order; empty if layers share their weights, as ALBERT's.
    """

    def __init__(self, model: Any):
        self.model = model
        self.backbone: Any = getattr(model, "backbone", None) or model
        config = self.backbone.get_config()
        self._key = next(key for key in _COUNTS if key in config)
        self._is_staged = not isinstance(config[self._key], int)
        counts = list(enumerate(config[self._key])) if self._is_staged else [(None, config[self._key])]
        paths = [weight.path for weight in self.backbone.weights]
        rows = {stage: _numbered_prefixes(paths, count, stage) for stage, count in counts}
        self.slots = [
            Slot(stage, index, names)
            for stage, starts in (rows if all(rows.values()) else {}).items()
            for index, names in enumerate(zip(*starts, strict=True))
        ]

    @classmethod
    def of(cls, model: Any) -> Self | None:
        """Return the model as a `ConfiguredModel`, or None if its configuration has no number of its own layers."""
        backbone = getattr(model, "backbone", None) or model
        is_graph = isinstance(backbone, keras.Model) and _keras_internals.get_graph(backbone) is not None
        if not is_graph or isinstance(model, keras.Sequential) or _keras_internals.has_functional_constructor(model):
            return None
        # The class may have no configuration.
        with contextlib.suppress(NotImplementedError):
            if any(key in backbone.get_config() for key in _COUNTS) and (configured := cls(model)).slots:
                return configured
        return None

    def rebuild(self, sources: Sequence[Slot]) -> "Rebuilt":
        """Build the model again with the layers of given slots, which may repeat or be missing, in this order."""
        if {slot.stage for slot in sources} != {slot.stage for slot in self.slots}:
            raise ValueError(f"At least one layer of {self.model.name!r} must remain, and one in each of its stages.")
        new = type(self)(self._build(sources))
        if len(new.slots) != len(sources):
            raise ValueError(self._kind_error(self.model.name, new))
        rebuilt = Rebuilt(new.model)
        pairs: list[tuple[Slot | None, Slot | None]] = [(None, None), *zip(sources, new.slots, strict=True)]
        for index, (source, target) in enumerate(pairs):
            is_inserted = source is not None and source in sources[: index - 1]
            self._match_layers(source, new.layers(target), is_inserted)
            olds = self.variables(source)
            news = new.variables(target)
            has_equal_shapes = [tuple(old.shape) for old in olds] == [tuple(fresh.shape) for fresh in news]
            name = self.model.name if source is None else source.prefixes[0]
            is_alike = has_equal_shapes and _is_alike(self.kind(source), new.kind(target))
            if is_inserted:
                rebuilt.inserted.append(news)
                rebuilt.unlike += [] if is_alike else [name]
            elif is_alike:
                rebuilt.variables |= {id(old): fresh for old, fresh in zip(olds, news, strict=True)}
            else:
                raise ValueError(self._kind_error(name, new))
            if has_equal_shapes:
                _copy_weights(olds, news, is_inserted)
        return rebuilt

    def _build(self, sources: Sequence[Slot]) -> Any:
        """Return a new model with as many layers, in each stage, as there are sources."""
        stages = [slot.stage for slot in sources]
        counts: Any = [stages.count(stage) for stage in dict.fromkeys(stages)] if self._is_staged else len(sources)
        config = self.backbone.get_config()
        for key, value in config.items():
            is_row = not self._is_staged and isinstance(value, (list, tuple)) and len(value) == len(self.slots)
            # One entry for each layer, such as the kind of its attention. Lists of numbers have other meanings.
            if is_row and all(isinstance(entry, (str, bool)) for entry in value):
                config[key] = [value[slot.index] for slot in sources]
        try:
            backbone = type(self.backbone).from_config(config | {self._key: counts})
        except Exception as error:
            raise ValueError(
                f"A {type(self.backbone).__name__} cannot be built with {self._key}={counts}. The error: {error}"
            ) from error
        rank = getattr(self.backbone, "_lora_rank", None)
        if rank is not None:
            layers = _keras_internals.layers_within(self.backbone)
            names = {layer.name for layer in layers if getattr(layer, "lora_enabled", False)}
            backbone.enable_lora(rank, target_layer_names=sorted(names))
        if self.backbone is self.model:
            return backbone
        parts = {"backbone": backbone, "preprocessor": self.model.preprocessor, "compile": False}
        return type(self.model).from_config(self.model.get_config() | parts)

    def kind(self, slot: Slot | None) -> dict[Any, Any]:
        """Return the classes and settings of the layers in a slot, except dropout; nothing for None.

        Settings are attributes, because KerasHub's configurations of layers are incomplete.
        """
        common = vars(keras.layers.Layer(name="common"))
        layers = [] if slot is None else self._select_owned(_keras_internals.layers_within(self.backbone), slot)
        layers = [layer for layer in layers if "drop" not in layer.name]
        kind: dict[Any, Any] = {"classes": list(map(type, layers))}
        for number, layer in enumerate(layers):
            for name, value in vars(layer).items():
                if name not in common and not re.search("drop|idx|index", name) and isinstance(value, _PLAIN):
                    kind[number, name] = value
        return kind

    def _kind_error(self, name: str, new: "ConfiguredModel") -> str:
        longest = max(self, new, key=lambda model: len(model.slots))
        kinds = [longest.kind(slot) for slot in longest.slots]
        period = next((step for step in range(1, len(kinds)) if all(map(_is_alike, kinds[step:], kinds))), None)
        remedy = f", or in multiples of {period}, as by `count={period}`." if period not in (None, 1) else "."
        return (
            f"With another number of layers, a {type(self.backbone).__name__} has a layer of another kind, or other "
            f"weights, at the index of {name!r}. Insert or remove layers elsewhere{remedy}"
        )

    def _match_layers(self, source: Slot | None, layers: Sequence[Any], is_inserted: bool) -> None:
        """Enable LoRA and freeze layers as in a slot. Inserted layers are trained, also those in a frozen model."""
        # Blocks of another kind have other layers.
        pairs: list[tuple[Any, Any]] = list(zip(self.layers(source), layers, strict=False))
        for old, fresh in pairs:
            if getattr(old, "lora_enabled", False) and not getattr(fresh, "lora_enabled", True):
                fresh.enable_lora(old.lora_rank, lora_alpha=old.lora_alpha)
        for old, fresh in pairs:
            may_contain_inserted = source is None and len(_keras_internals.layers_within(old)) > 1
            fresh.trainable = old.trainable or is_inserted or may_contain_inserted

    def prefix_of(self, operation: Any) -> str | None:
        """Return the prefix in the slots of a repeated layer, or of a sum in a block of a stage; None for others."""
        prefixes = [prefix for slot in self.slots for prefix in slot.prefixes]
        if not _keras_internals.is_addition(operation):
            return next((prefix for prefix in prefixes if prefix == operation.path), None)
        return next((prefix for prefix in prefixes if _begins_with(operation.name, prefix)), None)

    def variables(self, slot: Slot | None) -> list[keras.Variable]:
        """Return the weights of a slot, or of no slot for None, in the order of the model."""
        return self._select_owned(self.model.weights, slot)

    def layers(self, slot: Slot | None) -> list[keras.layers.Layer]:
        """Return the built layers of a slot, or of no slot for None, at any depth."""
        layers = _keras_internals.layers_within(self.model)
        return self._select_owned([layer for layer in layers if layer.path is not None], slot)

    def _select_owned(self, parts: Sequence[Any], slot: Slot | None) -> list[Any]:
        """Return the layers or weights that belong to a slot, or to no slot for None."""
        slots = self.slots if slot is None else [slot]
        prefixes = {prefix for other in slots for prefix in other.prefixes}
        # Paths of parts of a layer may lack its name, as in SmolLM3.
        inside = {
            id(part)
            for layer in _keras_internals.layers_within(self.backbone)
            if layer.path in prefixes
            for part in (*_keras_internals.layers_within(layer), *layer.weights)
        }

        def is_owned(part: Any) -> bool:
            return id(part) in inside or (part.path is not None and any(other.owns(part.path) for other in slots))

        return [part for part in parts if is_owned(part) == (slot is not None)]


def _copy_weights(olds: Sequence[keras.Variable], news: Sequence[keras.Variable], is_inserted: bool) -> None:
    """Copy weights between layers, and which of them are trained, except to inserted layers."""
    paths = {fresh.path for fresh in news}
    for old, fresh in zip(olds, news, strict=True):
        fresh.assign(ops.convert_to_numpy(old))
        if not is_inserted:
            fresh.trainable = old.trainable
        elif f"{fresh.path.removesuffix(fresh.name)}lora_{fresh.name}_a" in paths:
            # On JAX, `trainable = True` of a layer also applies to the kernel that LoRA has frozen.
            fresh.trainable = False


def _begins_with(path: str, prefix: str) -> bool:
    """Return True for a path below a prefix that ends in a number."""
    return re.match(rf"{re.escape(prefix)}(?!\d)", path) is not None


def _is_alike(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> bool:
    """Return True if two layers are of the same kind. A call may add attributes to one of them."""
    return all(first[name] == second[name] for name in first.keys() & second.keys())


def _numbered_prefixes(paths: Sequence[str], count: int, stage: int | None) -> list[list[str]]:
    """Return lists of `count` prefixes of paths that differ in one number, such as "transformer_layer_0", ...

    With a stage, the first number of the prefixes is that of the stage.
    """
    numbers: dict[str, set[int]] = {}
    for path in paths:
        for match in re.finditer(r"\d+", path):
            numbers.setdefault(path[: match.start()], set()).add(int(match[0]))
    starts: list[str] = []
    for start, values in sorted(numbers.items(), key=lambda item: len(item[0])):
        first = re.search(r"\d+", start)
        is_stage = stage is None or (first is not None and int(first[0]) == stage)
        is_range = len(values) == count == max(values) - min(values) + 1
        if is_stage and is_range and not start.startswith(tuple(starts)):
            starts.append(start)
    # The layers of encoders and decoders are counted from the same number, unlike other layers of equal number.
    largest = max(starts, key=lambda start: sum(path.startswith(start) for path in paths), default="")
    rows = [sorted(numbers[start]) for start in starts]
    return [
        [f"{start}{number}" for number in row]
        for start, row in zip(starts, rows, strict=True)
        if row[0] == min(numbers[largest])
    ]
