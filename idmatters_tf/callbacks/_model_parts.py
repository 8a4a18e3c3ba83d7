"""Optimizers of a model, also of custom training steps and layers."""

import functools
from collections.abc import Mapping
from typing import Any

import keras

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
