"""Mutable objects of callbacks as plain data, and their restoration in place.

Objects that exist when training begins have a name, by which a restarted process finds its own ones. The restoration
replaces their content, so that all references to them stay valid, and creates the objects of later origin. An object
that several attributes or callbacks share stays shared.
"""

import collections
import functools
import logging
import random
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import layers_within
from idmatters_tf.callbacks import _devices, _training_state
from idmatters_tf.callbacks._encoding import NotPlainData, is_variable
from idmatters_tf.callbacks._model_parts import find_optimizers

# Training does not change objects of these types, or their values do not affect training.
_SETTINGS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    re.Pattern,
    logging.Logger,
    np.dtype,
    keras.losses.Loss,
    keras.initializers.Initializer,
    keras.optimizers.schedules.LearningRateSchedule,
)
# Kinds of objects that a restarted process must have: variables and objects with variables, and others.
_VARIABLES, _OTHER = "variables", "other"


def _fill(target, items):
    target.clear()
    (target.extend if hasattr(target, "extend") else target.update)(items)


def _fill_dict(target, items):
    target.clear()
    for key, value in items:
        target[key] = value


def _keep(target, content):
    """Leave an immutable object as it is."""


# By type: function that returns the arguments of the constructor and the content, constructor, function that replaces
# the content.
_Kind = tuple[Callable[[Any], tuple[tuple[Any, ...], Any]], Callable[..., Any], Callable[[Any, Any], object]]
_CONTAINERS: dict[type, _Kind] = {
    list: (lambda value: ((), tuple(value)), list, _fill),
    set: (lambda value: ((), tuple(value)), set, _fill),
    frozenset: (lambda value: ((tuple(value),), ()), frozenset, _keep),
    collections.deque: (lambda value: (((), value.maxlen), tuple(value)), collections.deque, _fill),
    **{
        kind: (lambda value: ((), tuple(value.items())), kind, _fill_dict)
        for kind in (dict, collections.OrderedDict, collections.Counter)
    },
    collections.defaultdict: (
        lambda value: ((value.default_factory,), tuple(value.items())),
        collections.defaultdict,
        _fill_dict,
    ),
    types.SimpleNamespace: (
        lambda value: ((), tuple(vars(value).items())),
        types.SimpleNamespace,
        lambda target, items: _fill_dict(vars(target), items),
    ),
    functools.partial: (
        lambda value: ((value.func, value.args, tuple(value.keywords.items())), ()),
        lambda function, arguments, options: functools.partial(function, *arguments, **dict(options)),
        _keep,
    ),
    types.MethodType: (lambda value: ((value.__self__, value.__name__), ()), getattr, _keep),
}
# The content of these objects is plain data.
_PLAIN: dict[type, _Kind] = {
    np.ndarray: (lambda value: ((), value), np.empty, np.copyto),
    np.random.Generator: (
        # `spawn` changes the seed sequence.
        lambda value: (
            (type(value.bit_generator).__name__,),
            (value.bit_generator.state, value.bit_generator.seed_seq.state),
        ),
        lambda name: np.random.Generator(getattr(np.random, name)()),
        lambda target, content: target.bit_generator.__setstate__((content[0], np.random.SeedSequence(**content[1]))),
    ),
    np.random.RandomState: (
        lambda value: ((), value.get_state()),
        np.random.RandomState,
        np.random.RandomState.set_state,
    ),
    random.Random: (lambda value: ((), value.getstate()), random.Random, random.Random.setstate),
}
_KINDS = _CONTAINERS | _PLAIN
_BY_NAME = {kind.__name__: (kind, *how) for kind, how in _KINDS.items()}


class KnownObjects:
    """Objects that exist when training begins.

    Args:
        model: built and compiled model, whose parts have names from the beginning.

    Attributes:
        names: name of each object, by its `id`.
        objects: the objects by name.
    """

    def __init__(self, model: keras.Model):
        self.names: dict[int, str] = {}
        self.objects: dict[str | None, Any] = {}
        trained = _training_state.variables(model)
        self._trained = {id(variable) for several in trained.values() for variable in several}
        # Numbers of variables by the `id` of the object.
        self._counts: dict[int, int] = {}
        parts = {"layer": layers_within(model), "metric": model.metrics, **trained}
        for group, several in [*parts.items(), *((path, [part]) for path, part in find_optimizers(model).items())]:
            for place, part in enumerate(several):
                self.add(f"{group} {place}", part)

    def add(self, name: str, value: Any) -> None:
        """Name an object that has no name."""
        if id(value) not in self.names:
            self.names[id(value)], self.objects[name] = name, value

    def add_settings(self, module: str) -> None:
        """Name the functions, classes and other settings in the namespace of an imported module."""
        for name, value in vars(sys.modules[module]).items():
            if isinstance(value, _SETTINGS):
                self.add(f"{module}.{name}", value)

    def split(self, value: Any) -> tuple[str, tuple[Any, ...], Any] | None:
        """Return the kind of an object, the arguments that create it and its content; None for immutable data.

        Raises:
            NotPlainData: the object has variables that did not exist when training began.
        """
        kind: type = type(value)
        if kind is types.BuiltinMethodType and not isinstance(value.__self__, (types.ModuleType, types.NoneType, type)):
            kind = types.MethodType
        if kind in _KINDS:
            return str(kind.__name__), *_KINDS[kind][0](value)
        own = self.list_own_variables(value)
        if own is not None:
            if len(own) != self._counts.setdefault(id(value), len(own)):
                raise NotPlainData(f"{kind.__name__} with variables created during training")
            return _VARIABLES, (), [_devices.read(variable) for variable in own]
        return (_OTHER, (), None) if id(value) in self.names or isinstance(value, _SETTINGS) else None

    def list_own_variables(self, value: Any) -> list[Any] | None:
        """Return the variables of an object that are not restored with the model; None if it cannot have any."""
        if not is_variable(value) and not isinstance(
            value, (keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)
        ):
            return None
        return [each for each in ([value] if is_variable(value) else value.variables) if id(each) not in self._trained]


class ObjectGraph:
    """Values as plain data without lists, in which `[number]` refers to an element of `nodes`.

    Args:
        known: named objects.
        nodes: (kind, name, arguments, content) of each object; none for a new graph.
        adds_names: True to name the encoded objects by their paths.
    """

    def __init__(self, known: KnownObjects, nodes: list[Any] | None = None, adds_names: bool = False):
        self._known, self._adds_names = known, adds_names
        self.nodes: list[Any] = nodes or []
        # The objects are kept, since their `id` identifies them.
        self._encoded: dict[int, tuple[Any, int]] = {}
        self._decoded: dict[int, Any] = {}

    def encode(self, value: Any, path: str = "") -> Any:
        """Return a value as plain data. Raise NotPlainData if it contains an object that cannot be restored."""
        if _is_plain_tuple(value):
            return _map(value, [self.encode(item, f"{path}[{place}]") for place, item in enumerate(value)])
        if id(value) in self._encoded:
            return [self._encoded[id(value)][1]]
        parts = self._known.split(value)
        if parts is None:
            return value
        kind, arguments, content = parts
        if self._adds_names:
            self._known.add(path, value)
        name = self._known.names.get(id(value))
        if name is None and kind in (_OTHER, _VARIABLES):
            raise NotPlainData(f"{type(value).__module__}.{type(value).__qualname__}, created during training")
        number = len(self.nodes)
        self._encoded[id(value)] = value, number
        self.nodes.append(None)
        if kind in _BY_NAME and _BY_NAME[kind][0] in _CONTAINERS:
            content = self.encode(content, path)
        self.nodes[number] = kind, name, self.encode(arguments, f"{path}()"), content
        return [number]

    def decode(self, value: Any) -> Any:
        """Return the value that was encoded. Raise ValueError if it refers to an object that does not exist."""
        if _is_plain_tuple(value):
            return _map(value, [self.decode(item) for item in value])
        if not isinstance(value, list):
            return value
        if value[0] not in self._decoded:
            self._restore(*value, *self.nodes[value[0]])
        return self._decoded[value[0]]

    def _restore(self, number, kind, name, arguments, content):
        target: Any = self._known.objects.get(name)
        self._decoded[number] = target
        if kind not in _BY_NAME:
            if target is None:
                raise ValueError(f"The checkpoint refers to {name}, which does not exist. Start the same script again.")
            for variable, saved in zip(self._known.list_own_variables(target) or (), content or (), strict=True):
                _devices.assign(variable, saved)
            return
        wanted, _, make, fill = _BY_NAME[kind]
        arguments = self.decode(arguments)
        fits = type(target) is wanted
        if wanted is np.ndarray:
            make, arguments = content.copy, ("K",)
            fits = fits and (target.shape, target.dtype, target.flags.writeable) == (content.shape, content.dtype, True)
        if not fits:
            target = make(*arguments)
        self._decoded[number] = target
        fill(target, self.decode(content) if wanted in _CONTAINERS else content)


def _is_plain_tuple(value):
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make"))


def _map(value, items):
    return tuple(items) if type(value) is tuple else value._make(items)
