"""Optimizers and random generators of a model, those of custom training steps and layers included."""

import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import outside_of_graphs
from idmatters_tf._tensorflow_internals.training import is_random_generator
from idmatters_tf.callbacks import _devices

# Packages whose objects hold neither, other than Keras' layers, optimizers and maps of optimizers.
_OTHERS = ("jax", "keras", "numpy", "tensorflow")
_NO_OWNERS = (str, bytes, np.ndarray, types.ModuleType, types.FunctionType, types.MethodType, type, keras.Variable)


def find_optimizers(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Return all optimizers found on a model, by the path of attributes to them.

    Attributes are searched in the model, its layers and nested models, in lists, tuples and dicts, in optimizers
    that wrap others, and in the user's own objects. The compiled optimizer comes first and is called "optimizer".
    """
    return {path: part for path, part in _find(model).items() if isinstance(part, keras.optimizers.Optimizer)}


def find_generators(model: keras.Model) -> dict[str, Any]:
    """Return all `tf.random.Generator`s found on a model, in the same places, by the path of attributes to them."""
    return {path: part for path, part in _find(model).items() if is_random_generator(part)}


def _find(model: keras.Model) -> dict[str, Any]:
    """Return the layers, optimizers, generators, containers and objects on a model that may hold others."""
    compiled: Any = getattr(model, "optimizer", None)
    found: dict[str, Any] = {} if compiled is None else {"optimizer": compiled}
    seen, queue = {id(model), id(compiled)}, [("", model), ("optimizer", compiled)]
    # Breadth first: the shortest path is the name.
    for path, owner in queue:
        for name, value in _parts(owner):
            if id(value) in seen or not _may_own(value):
                continue
            seen.add(id(value))
            inner = f"{path}{name}".lstrip(".")
            queue.append((inner, value))
            found[inner] = value
    return found


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, Mapping) and not isinstance(owner, keras.optimizers.OptimizerMap):
        yield from ((f"[{key!r}]", value) for key, value in owner.items())
    elif isinstance(owner, (list, tuple)):
        yield from ((f"[{place}]", value) for place, value in enumerate(owner))
    elif owner is not None:
        # TensorFlow's own list of dependencies repeats the attributes.
        own = [(name, value) for name, value in vars(owner).items() if not name.startswith("_self_")]
        yield from ((f".{name}", value) for name, value in sorted(own, key=lambda each: each[0].startswith("_")))


def _may_own(value: Any) -> bool:
    if isinstance(value, (keras.layers.Layer, keras.optimizers.Optimizer, keras.optimizers.OptimizerMap)):
        return True
    if isinstance(value, (Mapping, list, tuple)) or is_random_generator(value):
        return True
    return (
        not isinstance(value, _NO_OWNERS)
        and type(value).__module__.partition(".")[0] not in _OTHERS
        and isinstance(getattr(value, "__dict__", None), dict)
    )


class WaitingOptimizer:
    """Values for the variables of an optimizer that its first step builds.

    Args:
        optimizer: not built.
        name: its path on the model.
        variables: a function that returns the optimizer's variables.
        values: for all of them, once it is built. Those that exist are assigned at once.
        described: what `training_state.description` returned for them.
    """

    def __init__(self, optimizer: Any, name: str, variables: Any, values: list[Any], described: list[list[Any]]):
        self.values, self.described, self.is_built = values, described, False
        self._optimizer, self._name, self._variables = optimizer, name, variables
        for variable, value in zip(variables(), values, strict=False):
            _devices.assign(variable, value)
        optimizer.build = self._build

    def drop(self) -> None:
        """Leave the optimizer as it is."""
        vars(self._optimizer).pop("build", None)

    def _build(self, *args: Any, **kwargs: Any) -> None:
        self.drop()
        # Variables made inside of a graph get their values when it first runs.
        with outside_of_graphs():
            self._optimizer.build(*args, **kwargs)
            variables = self._variables()
            if [list(each.shape) for each in variables] != [shape for _, shape, _ in self.described]:
                raise ValueError(
                    f"The optimizer {self._name} has been built for other variables than before. Start the same script "
                    f"as before, or give ExactResume another folder."
                )
            for variable, value in zip(variables, self.values, strict=True):
                _devices.assign(variable, value)
        self.is_built = True
