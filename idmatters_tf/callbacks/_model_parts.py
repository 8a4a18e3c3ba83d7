"""Optimizers of a model, also of custom training steps and layers, and attributes of its parts."""

import functools
import types
from collections.abc import Mapping
from typing import Any

import keras

from idmatters_tf._keras_internals import compile_arguments, is_internal_attribute, layers_within
from idmatters_tf._names import make_unique_name
from idmatters_tf.callbacks._encoding import Snapshot, is_variable

# Objects of these packages are not searched, except for Keras' layers, optimizers and maps of optimizers.
_OTHERS = ("builtins", "jax", "jaxlib", "keras", "numpy", "tensorflow")
_OWNERS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.optimizers.OptimizerMap, Mapping, list, tuple)


def find_optimizers(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Return all optimizers found on a model, by attribute path.

    The search covers attributes of the model, its layers and nested models, lists, tuples and dicts, optimizers that
    wrap others, and objects of the user. The compiled optimizer comes first, under the name "optimizer".
    """
    return {path: part for path, part in _find(model).items() if isinstance(part, keras.optimizers.Optimizer)}


def _find(model: keras.Model) -> dict[str, Any]:
    """Return the layers, optimizers, containers and objects found on a model, by attribute path."""
    compiled: Any = getattr(model, "optimizer", None)
    parts: dict[str, Any] = {} if compiled is None else {"optimizer": compiled}
    seen, queue = {id(model), id(compiled)}, [("", model), *parts.items()]
    # Breadth first, so that the shortest path is the name.
    for path, owner in queue:
        for name, value in _parts(owner):
            if id(value) in seen or not _may_own(type(value), value.__class__):
                continue
            seen.add(id(value))
            inner = f"{path}{name}".lstrip(".")
            queue.append((inner, value))
            parts[inner] = value
    return parts


def _parts(owner: Any) -> list[tuple[str, Any]]:
    if isinstance(owner, Mapping) and not isinstance(owner, keras.optimizers.OptimizerMap):
        return [(f"[{key!r}]", value) for key, value in owner.items()]
    if isinstance(owner, (list, tuple)):
        return [(f"[{place}]", value) for place, value in enumerate(owner)]
    # TensorFlow's list of dependencies repeats the attributes.
    own = [name for name in getattr(owner, "__dict__", ()) if not name.startswith("_self_")]
    return [(f".{name}", vars(owner)[name]) for name in sorted(own, key=lambda name: name.startswith("_"))]


# A model is searched several times for each checkpoint.
@functools.cache
def _may_own(kind: type, wrapped: type) -> bool:
    """Return True if values of a class, or of the class that a proxy wraps, may own optimizers."""
    if issubclass(wrapped, _OWNERS):
        return True
    return not issubclass(wrapped, (type, keras.Variable)) and kind.__module__.partition(".")[0] not in _OTHERS


def describe_attributes(model: keras.Model, start: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the attributes of layers, optimizers, metrics and losses, and of objects in them, as "Class.attribute".

    Functions and plain data are described, the latter by their value or its checksum. Variables and Keras' own internal
    attributes are left out.

    Args:
        model: built and compiled model.
        start: an earlier result. Tensors that it does not contain, such as features kept by a layer, are left out.
    """
    losses = keras.tree.flatten((compile_arguments(model) or {}).get("loss"))
    owners: dict[str, Any] = {}
    for owner in [*layers_within(model), *find_optimizers(model).values(), *model.metrics, *losses]:
        owners[make_unique_name(type(owner).__name__, owners, " ")] = owner
    described: dict[str, Any] = {}
    seen, queue = set(map(id, owners.values())), list(owners.items())
    for path, owner in queue:
        for name, value in _parts(owner):
            is_new = start is not None and path + name not in start
            if value is None or is_variable(value) or (is_new and keras.ops.is_tensor(value)):
                continue
            if is_internal_attribute(owner, name.lstrip(".")):
                continue
            try:
                is_short = isinstance(value, (bool, int, float, str, types.FunctionType))
                described[path + name] = value if is_short else f"SHA-256 {Snapshot(value).checksum()}"
            except (TypeError, NotImplementedError):
                # An object, or a tensor of a function that is traced.
                if id(value) not in seen and _may_own(type(value), value.__class__):
                    seen.add(id(value))
                    queue.append((path + name, value))
    return described
