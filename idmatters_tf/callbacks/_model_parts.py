"""Optimizers and random generators of a model, including custom training steps and layers."""

import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import outside_graphs
from idmatters_tf._tensorflow_internals.training import is_random_generator
from idmatters_tf.callbacks import _devices

# Objects of these packages are not searched, except for Keras' layers, optimizers and maps of optimizers.
_OTHERS = ("jax", "keras", "numpy", "tensorflow")
# Whether values of a class may own optimizers or generators. A model is searched several times for each checkpoint.
_MAY_OWN: dict[tuple[type, type], bool] = {}
_NO_OWNERS = (str, bytes, np.ndarray, types.ModuleType, types.FunctionType, types.MethodType, type, keras.Variable)


def find_optimizers(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Return all optimizers found on a model, by attribute path.

    The search covers attributes of the model, its layers and nested models, lists, tuples and dicts, optimizers that
    wrap others, and objects of the user. The compiled optimizer comes first, under the name "optimizer".
    """
    return {path: part for path, part in _find(model).items() if isinstance(part, keras.optimizers.Optimizer)}


def find_generators(model: keras.Model) -> dict[str, Any]:
    """Return all `tf.random.Generator`s found on a model like optimizers, by attribute path."""
    return {path: part for path, part in _find(model).items() if is_random_generator(part)}


def _find(model: keras.Model) -> dict[str, Any]:
    """Return the layers, optimizers, generators, containers and objects found on a model, by attribute path."""
    compiled: Any = getattr(model, "optimizer", None)
    found: dict[str, Any] = {} if compiled is None else {"optimizer": compiled}
    seen, queue = {id(model), id(compiled)}, [("", model), ("optimizer", compiled)]
    # Breadth first, so that the shortest path is the name.
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
        # TensorFlow's list of dependencies repeats the attributes.
        own = [(name, value) for name, value in vars(owner).items() if not name.startswith("_self_")]
        yield from ((f".{name}", value) for name, value in sorted(own, key=lambda each: each[0].startswith("_")))


def _may_own(value: Any) -> bool:
    # The classes of a value and of the object that a proxy wraps.
    classes = type(value), value.__class__
    if classes not in _MAY_OWN:
        _MAY_OWN[classes] = _decide(value)
    return _MAY_OWN[classes]


def _decide(value: Any) -> bool:
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
        optimizer: an optimizer that is not built.
        name: its path on the model.
        variables: function that returns the optimizer's variables.
        values: values of all variables of the built optimizer. Existing variables are assigned immediately.
        described: their descriptions by `_training_state.describe_variables`.
    """

    def __init__(self, optimizer: Any, name: str, variables: Any, values: list[Any], described: list[list[Any]]):
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
            if [list(each.shape) for each in variables] != [shape for _, shape, _ in self.described]:
                raise ValueError(
                    f"The optimizer {self._name} was built for other variables than those of the checkpoint. Start the "
                    f"same script as before, or pass another folder to ExactResume."
                )
            for variable, value in zip(variables, self.values, strict=True):
                _devices.assign(variable, value)
        self.is_built = True
