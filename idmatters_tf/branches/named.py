"""Last weights that the user names, by the argument `last` of `scale_depth`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import keras

from idmatters_tf._keras_internals import layers_within, own_trainable_variables
from idmatters_tf._keras_internals.structure import Step

# Layers or variables of one sum, by name: one, or several in a tuple; an empty one for a layer that passes a factor on.
SumNames: TypeAlias = str | tuple[str, ...]
# Sums of a layer or, for None, a layer without sums, or an addition that is no residual sum.
BlockNames: TypeAlias = SumNames | list[SumNames] | None
LastNames: TypeAlias = Mapping[str | type[keras.layers.Layer], BlockNames]
Sums: TypeAlias = list[list[keras.Variable]]


class NamedWeights:
    """The argument `last` of `scale_depth` for one model.

    Args:
        last: dict from names of layers and additions, or classes of layers, to names of layers, variables or
            attributes in them.
    """

    def __init__(self, last: LastNames | None):
        self._last: LastNames = last or {}
        self._unused = set(self._last)

    def __contains__(self, step: Step) -> bool:
        return self._key(step) is not None

    def is_excluded(self, step: Step) -> bool:
        """Return True for a step that is named as None."""
        key = self._key(step)
        return key is not None and self._last[key] is None

    def sums(self, step: Step, operations: Iterable[object]) -> Sums:
        """Return the last weights of each sum that is named for a step.

        Args:
            step: a step among those named.
            operations: the layers in which the names are looked up.
        """
        key = self._key(step)
        names = None if key is None else self._last[key]
        if names is None:
            return []
        inside = [operation for operation in operations if isinstance(operation, keras.layers.Layer)]
        entries = names if isinstance(names, list) else [names]
        return [find_weights(step.name, inside, (entry,) if isinstance(entry, str) else entry) for entry in entries]

    def check_used(self) -> None:
        """Raise a ValueError for names that are not in the model."""
        if self._unused:
            names = ", ".join(repr(key) if isinstance(key, str) else key.__name__ for key in self._unused)
            raise ValueError(
                f"Argument `last` must name layers and additions of the model, or classes of its layers. Received: "
                f"{names}, which are not on the way from its inputs to its outputs."
            )

    def _key(self, step: Step) -> str | type[keras.layers.Layer] | None:
        kind = type(step.operation)
        kinds = [kind] if issubclass(kind, keras.layers.Layer) else []
        for key in (step.name, step.name.rpartition("/")[2], *kinds):
            if key in self._last:
                self._unused.discard(key)
                return key
        return None


def find_weights(block: str, inside: Sequence[keras.layers.Layer], names: Iterable[str]) -> list[keras.Variable]:
    """Return the trainable variables of layers, attributes and variables with given names in some layers."""
    parts = {id(part): part for layer in inside for part in layers_within(layer)}.values()
    found: dict[int, keras.Variable] = {}
    for name in names:
        attributes = [getattr(layer, name, None) for layer in inside] if name.isidentifier() else []
        matches = [item for item in attributes if isinstance(item, (keras.layers.Layer, keras.Variable))]
        matches += [part for part in parts if part.name == name]
        variables = [variable for part in parts for variable in own_trainable_variables(part)]
        matches += [variable for variable in variables if name in (variable.name, variable.path)]
        distinct = list({id(match): match for match in matches}.values())
        weights = [] if len(distinct) != 1 else _weights(distinct[0])
        if not weights:
            choices = ", ".join(dict.fromkeys(part.name for part in parts if own_trainable_variables(part)))
            raise ValueError(
                f"Argument `last` must name one layer with weights, or one variable, in {block!r}. Received: {name!r}, "
                f"which {len(distinct)} have. Its layers with weights: {choices}"
            )
        found |= {id(variable): variable for variable in weights}
    return list(found.values())


def _weights(match: keras.layers.Layer | keras.Variable) -> list[keras.Variable]:
    if isinstance(match, keras.Variable):
        return [match]
    return [variable for part in layers_within(match) for variable in own_trainable_variables(part)]
