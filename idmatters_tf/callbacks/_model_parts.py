"""Optimizers and random generators of a model, including custom training steps and layers."""

import functools
from collections.abc import Mapping
from typing import Any

import keras

from idmatters_tf._keras_internals import outside_graphs
from idmatters_tf._tensorflow_internals.training import is_random_generator
from idmatters_tf.callbacks import _devices

# Objects of these packages are not searched, except for Keras' layers, optimizers and maps of optimizers.
_OTHERS = ("builtins", "jax", "jaxlib", "keras", "numpy", "tensorflow")
_OWNERS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.optimizers.OptimizerMap, Mapping, list, tuple)


def find_optimizers(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Return all optimizers found on a model, by attribute path.

    The search covers attributes of the model, its layers and nested models, lists, tuples and dicts, optimizers that
    wrap others, and objects of the user. The compiled optimizer comes first, under the name "optimizer".
    """
    return {path: part for path, part in _find(model).items() if isinstance(part, keras.optimizers.Optimizer)}


def find_generators(model: keras.Model) -> dict[str, Any]:
    """Return all `tf.random.Generator`s found on a model like optimizers, by attribute path."""
    return {path: part for path, part in _find(model).items() if is_random_generator(type(part))}


def _find(model: keras.Model) -> dict[str, Any]:
    """Return the layers, optimizers, generators, containers and objects found on a model, by attribute path."""
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
    """Return True if values of a class, or of the class that a proxy wraps, may own optimizers or generators."""
    if issubclass(wrapped, _OWNERS) or is_random_generator(kind):
        return True
    return not issubclass(wrapped, (type, keras.Variable)) and kind.__module__.partition(".")[0] not in _OTHERS


class WaitingOptimizer:
    """Values for the variables of an optimizer that its first step builds.

    Args:
        optimizer: an optimizer that is not built.
        name: its path on the model.
        variables: function that returns the optimizer's variables.
        values: values of all variables of the built optimizer. Existing variables are assigned immediately.
        described: their descriptions by `_training_state.describe_variables`.
    """

    def __init__(self, optimizer: Any, name: str, variables: Any, values: list[Any], described: list[list[str]]):
        self.values, self.described, self.is_built = values, described, False
        self._optimizer, self._name, self._variables = optimizer, name, variables
        for variable, value in zip(variables(), values, strict=False):
            _devices.assign(variable, value)
        optimizer.build = self._build

    def drop(self) -> None:
        """Restore the `build` method of the optimizer."""
        vars(self._optimizer).pop("build", None)

    def _build(self, *args: Any, **kwargs: Any) -> None:
        self.drop()
        # Variables created inside of a graph receive their values when it first runs.
        with outside_graphs():
            self._optimizer.build(*args, **kwargs)
            variables = self._variables()
            if [str(tuple(variable.shape)) for variable in variables] != [shape for _, shape, _ in self.described]:
                raise ValueError(
                    f"The optimizer {self._name} was built for other variables than those of the checkpoint. Start the "
                    f"same script as before, or pass another folder to ExactResume."
                )
            for variable, value in zip(variables, self.values, strict=True):
                _devices.assign(variable, value)
        self.is_built = True
