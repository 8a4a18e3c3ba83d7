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
from typing import Any, NamedTuple

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
# Objects with variables.
_OWNERS = (keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, keras.random.SeedGenerator)
# Kinds of objects that a restarted process must have: objects with variables, and others.
_VARIABLES, _OTHER = "variables", "other"


class _Kind(NamedTuple):
    """Conversion of the objects of a type.

    Attributes:
        split: return the arguments of `make` and the content of an object.
        make: create an object.
        fill: replace the content of an object.
        is_plain: True if the content is plain data without references to objects.
    """

    split: Callable[[Any], tuple[tuple[Any, ...], Any]]
    make: Callable[..., Any]
    fill: Callable[[Any, Any], object] = lambda target, content: None
    is_plain: bool = False


def _fill(target, items):
    target.clear()
    (target.extend if hasattr(target, "extend") else target.update)(items)


def _fill_dict(target, items):
    target.clear()
    for key, value in items:
        target[key] = value


_KINDS: dict[type, _Kind] = {
    list: _Kind(lambda value: ((), tuple(value)), list, _fill),
    set: _Kind(lambda value: ((), tuple(value)), set, _fill),
    frozenset: _Kind(lambda value: ((tuple(value),), ()), frozenset),
    bytearray: _Kind(lambda value: ((), bytes(value)), bytearray, _fill, is_plain=True),
    collections.deque: _Kind(lambda value: (((), value.maxlen), tuple(value)), collections.deque, _fill),
    dict: _Kind(lambda value: ((), tuple(value.items())), dict, _fill_dict),
    collections.OrderedDict: _Kind(lambda value: ((), tuple(value.items())), collections.OrderedDict, _fill_dict),
    collections.Counter: _Kind(lambda value: ((), tuple(value.items())), collections.Counter, _fill_dict),
    collections.defaultdict: _Kind(
        lambda value: ((value.default_factory,), tuple(value.items())), collections.defaultdict, _fill_dict
    ),
    types.SimpleNamespace: _Kind(
        lambda value: ((), tuple(vars(value).items())),
        types.SimpleNamespace,
        lambda target, items: _fill_dict(vars(target), items),
    ),
    functools.partial: _Kind(
        lambda value: ((value.func, value.args, tuple(value.keywords.items())), ()),
        lambda function, arguments, options: functools.partial(function, *arguments, **dict(options)),
    ),
    types.MethodType: _Kind(lambda value: ((value.__self__, value.__name__), ()), getattr),
    np.ndarray: _Kind(lambda value: ((), _copy(value)), np.empty, np.copyto, is_plain=True),
    np.random.Generator: _Kind(
        lambda value: ((type(value.bit_generator).__name__,), _read_generator(value)),
        lambda name: np.random.Generator(getattr(np.random, name)()),
        lambda target, state: _assign_generator(target, *state),
        is_plain=True,
    ),
    np.random.RandomState: _Kind(
        lambda value: ((), value.get_state()), np.random.RandomState, np.random.RandomState.set_state, is_plain=True
    ),
    random.Random: _Kind(lambda value: ((), value.getstate()), random.Random, random.Random.setstate, is_plain=True),
}
_KINDS_BY_NAME = {kind.__name__: how for kind, how in _KINDS.items()}


def _copy(array):
    copied = array.copy(order="K")
    # `Snapshot` does not copy it again.
    copied.flags.writeable = False
    return copied


def _read_generator(generator):
    """Return the state of a generator and, because `spawn` counts, that of its seed sequence."""
    state, seeds = generator.bit_generator.__getstate__()
    return state, seeds.state if isinstance(seeds, np.random.SeedSequence) else None


def _assign_generator(generator, state, seeds):
    bits = generator.bit_generator
    bits.__setstate__((state, bits.seed_seq if seeds is None else np.random.SeedSequence(**seeds)))


class KnownObjects:
    """Objects that exist when training begins, by name.

    Args:
        model: built and compiled model, whose parts have names from the beginning.
    """

    def __init__(self, model: keras.Model):
        self._names: dict[int, str] = {}
        self._objects: dict[str, Any] = {}
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
        if id(value) not in self._names:
            self._names[id(value)], self._objects[name] = name, value

    def add_settings(self, module: str) -> None:
        """Name the functions, classes and other settings in the namespace of an imported module."""
        for name, value in vars(sys.modules[module]).items():
            if isinstance(value, _SETTINGS):
                self.add(f"{module}.{name}", value)

    def find_name(self, value: Any) -> str | None:
        """Return the name of an object, or None."""
        return self._names.get(id(value))

    def find(self, name: str | None) -> Any:
        """Return the object of a name, or None."""
        return self._objects.get(name)

    def split(self, value: Any) -> tuple[str, tuple[Any, ...], Any] | None:
        """Return the kind of a mutable object, the arguments that create it and its content; None for other values.

        Raises:
            NotPlainData: the object has new variables.
        """
        kind = type(value)
        if kind is types.BuiltinMethodType and not isinstance(value.__self__, (types.ModuleType, types.NoneType, type)):
            kind = types.MethodType
        if kind in _KINDS:
            return kind.__name__, *_KINDS[kind].split(value)
        if is_variable(value) or isinstance(value, _OWNERS):
            own = self._list_own_variables(value)
            if len(own) != self._counts.setdefault(id(value), len(own)):
                raise NotPlainData(f"{kind.__name__} with variables created during training")
            return _VARIABLES, (), [_devices.read(variable) for variable in own]
        return (_OTHER, (), None) if id(value) in self._names or isinstance(value, _SETTINGS) else None

    def assign(self, value: Any, content: list[Any]) -> None:
        """Assign the content that `split` returned for an object with variables."""
        for variable, saved in zip(self._list_own_variables(value), content, strict=True):
            _devices.assign(variable, saved)

    def _list_own_variables(self, value):
        """Return the variables of an object that are not restored with the model."""
        if is_variable(value):
            variables = [value]
        else:
            variables = [value.state] if isinstance(value, keras.random.SeedGenerator) else value.variables
        return [variable for variable in variables if id(variable) not in self._trained]


class Encoder:
    """Conversion of values to plain data without lists, in which `[number]` refers to an element of `nodes`.

    Args:
        known: named objects.
        adds_names: True to name all objects by their paths.

    Attributes:
        nodes: (kind, name, arguments, content) of each mutable object.
    """

    def __init__(self, known: KnownObjects, adds_names: bool = False):
        self._known, self._adds_names = known, adds_names
        self.nodes: list[Any] = []
        # The objects are kept, since their `id` identifies them.
        self._encoded: dict[int, tuple[Any, int]] = {}

    def encode(self, value: Any, path: str = "") -> Any:
        """Return a value as plain data.

        Raises:
            NotPlainData: the value contains an object that cannot be restored.
        """
        if isinstance(value, tuple) and (type(value) is tuple or hasattr(value, "_make")):
            items = [self.encode(item, f"{path}[{place}]") for place, item in enumerate(value)]
            return tuple(items) if type(value) is tuple else value._make(items)
        if id(value) in self._encoded:
            return [self._encoded[id(value)][1]]
        parts = self._known.split(value)
        if parts is None:
            return value
        if self._adds_names:
            self._known.add(path, value)
        name = self._known.find_name(value)
        kind, arguments, content = parts
        if name is None and kind in (_OTHER, _VARIABLES):
            raise NotPlainData(f"{type(value).__module__}.{type(value).__qualname__}, created during training")
        number = len(self.nodes)
        self._encoded[id(value)] = value, number
        self.nodes.append(None)
        if kind in _KINDS_BY_NAME and not _KINDS_BY_NAME[kind].is_plain:
            content = self.encode(content, path)
        self.nodes[number] = kind, name, self.encode(arguments, f"{path}()"), content
        return [number]


class Decoder:
    """Restoration of values that an `Encoder` has converted.

    Args:
        known: named objects, whose content is replaced.
        nodes: attribute of the encoder.
    """

    def __init__(self, known: KnownObjects, nodes: list[Any]):
        self._known, self._nodes = known, nodes
        self._decoded: dict[int, Any] = {}

    def decode(self, value: Any) -> Any:
        """Return the value that was encoded. Raise ValueError if it refers to an object that does not exist."""
        if isinstance(value, tuple):
            items = [self.decode(item) for item in value]
            return tuple(items) if type(value) is tuple else value._make(items)
        if not isinstance(value, list):
            return value
        [number] = value
        if number not in self._decoded:
            self._restore(number)
        return self._decoded[number]

    def _restore(self, number):
        kind, name, arguments, content = self._nodes[number]
        target = self._known.find(name)
        arguments = self.decode(arguments)
        if kind in (_OTHER, _VARIABLES):
            if target is None:
                raise ValueError(f"The checkpoint refers to {name}, which does not exist. Start the same script again.")
            if kind == _VARIABLES:
                self._known.assign(target, content)
            self._decoded[number] = target
            return
        how, is_array = _KINDS_BY_NAME[kind], kind == np.ndarray.__name__
        fits = type(target).__name__ == kind
        if is_array and fits:
            fits = (target.shape, target.dtype, target.flags.writeable) == (content.shape, content.dtype, True)
        if not fits:
            target = content.copy(order="K") if is_array else how.make(*arguments)
        self._decoded[number] = target
        how.fill(target, content if how.is_plain else self.decode(content))
