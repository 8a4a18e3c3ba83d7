"""One walk over the objects that a run can reach: model, optimizers, losses, callbacks and everything in them.

`walk(roots)` yields (path, kind, value) in an order that is the same in each process that executes the same script:

variable  a variable of Keras or TensorFlow
plain     data that can be saved and restored: numbers, texts, arrays, containers, generators, objects of own classes
other     everything else, such as files, locks, iterators and functions, which have no content that could be saved

`Nodes` is the same walk with one node for each object that has an identity, so that two walks can be compared.
"""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import operator
import pathlib
import random
import sys
import types
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import keras
import numpy as np

from idmatters_tf._arguments import make_unique_name
from idmatters_tf._keras_internals import CALLBACK_INTERNALS, OPTIMIZER_MAPS_SINCE_3_15, state_attributes
from idmatters_tf.callbacks._checksums import checksum

LEAVES = (type(None), bool, int, float, str)
Kind = Literal["variable", "plain", "other"]


def _get_generator(generator):
    bits = generator.bit_generator
    # `spawn` changes the seed sequence.
    return type(bits).__name__, bits.state, bits.seed_seq.state


def _set_generator(generator, content):
    generator.bit_generator.__setstate__((content[1], np.random.SeedSequence(**content[2])))


def _refill(container, content):
    container.clear()
    (container.update if hasattr(container, "update") else container.extend)(content)


# Functions that return the content of a mutable object as plain data, and that restore it.
FORMS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    list: (tuple, _refill),
    dict: (lambda value: tuple(value.items()), lambda value, content: _refill(value, dict(content))),
    set: (tuple, _refill),
    collections.deque: (tuple, _refill),
    bytearray: (bytes, _refill),
    np.ndarray: (lambda array: array, lambda array, content: array is content or np.copyto(array, content)),
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (_get_generator, _set_generator),
}
# Immutable values, with functions that convert them to JSON and back.
_AS_TEXT = (complex, decimal.Decimal, fractions.Fraction, uuid.UUID, type(pathlib.Path()), type(pathlib.PurePath()))
VALUES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: (bytes.hex, bytes.fromhex),
    range: (lambda value: [value.start, value.stop, value.step], lambda content: range(*content)),
    datetime.timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda content: datetime.timedelta(*content),
    ),
    **{kind: (kind.isoformat, kind.fromisoformat) for kind in (datetime.date, datetime.datetime, datetime.time)},
    **{kind: (str, kind) for kind in _AS_TEXT},
}
# Containers of the standard library, and attributes that they have beside their items.
_CONTAINERS: dict[type, tuple[str, ...]] = {
    collections.Counter: (),
    collections.OrderedDict: (),
    collections.defaultdict: ("default_factory",),
}
# The attributes of objects of these packages are not searched.
_OPAQUE = {*sys.stdlib_module_names, "jax", "jaxlib", "keras", "numpy", "tensorflow"}
# Objects of Keras whose attributes are searched, see `state_attributes`.
KERAS = (
    keras.layers.Layer,
    keras.optimizers.Optimizer,
    keras.metrics.Metric,
    keras.losses.Loss,
    keras.random.SeedGenerator,
    *OPTIMIZER_MAPS_SINCE_3_15,
)
_SEARCHED = (*KERAS, keras.callbacks.Callback)


def is_variable(value: object) -> bool:
    """Return True for a `keras.Variable` or `tf.Variable`."""
    return isinstance(value, keras.Variable) or (hasattr(value, "assign") and keras.ops.is_tensor(value))


def is_own_class(kind: type) -> bool:
    """Return True for a class outside of Keras, the backends, NumPy and the standard library."""
    return kind.__module__.partition(".")[0] not in _OPAQUE or kind is types.SimpleNamespace


@functools.cache
def form_of(kind: type) -> type | None:
    """Return the type in FORMS by which objects of a class are saved, `object` if by attributes only, or None.

    None for classes whose objects have fields that Python cannot read, as most classes written in C.
    """
    if kind in FORMS:
        return kind
    base = next((each for each in kind.__mro__ if each in FORMS), object)
    if kind in _CONTAINERS or (base is not object and not is_own_class(kind)):
        # Also the lists, dicts and sets of Keras and TensorFlow that track variables.
        return base if kind in _CONTAINERS or kind.__module__.partition(".")[0] in ("keras", "tensorflow") else None
    if not is_own_class(kind) or issubclass(kind, (type, tuple, BaseException, types.ModuleType)):
        return None
    # Size of an object in memory with its base, slots, and pointers to `__dict__` and to weak references.
    size = base.__basicsize__ + np.dtype(np.intp).itemsize * (
        len(list_slots(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    )
    return base if kind.__basicsize__ == size or kind is types.SimpleNamespace else None


def list_slots(kind: type) -> list[str]:
    """Return the names of the attributes in `__slots__` of a class and its bases."""
    own = (vars(each) for each in kind.__mro__ if is_own_class(each))
    return [
        name
        for each in own
        for name, value in each.items()
        if isinstance(value, types.MemberDescriptorType) and not name.startswith("__")
    ]


def attributes_of(value: object, in_step: bool = False) -> dict[str, object] | None:
    """Return the attributes of an object that may be state; None for values without attributes.

    With `in_step`, objects of Keras are returned without the variables that the model lists.
    """
    if isinstance(value, type):
        # Neither methods nor properties.
        own = {} if not is_own_class(value) or issubclass(value, (tuple, enum.Enum)) else vars(value)
        return {
            name: each for name, each in own.items() if not name.startswith("__") and not hasattr(type(each), "__get__")
        }
    if isinstance(value, KERAS):
        return state_attributes(value, not in_step)
    if isinstance(value, keras.callbacks.Callback):
        internal = _internal_attributes(type(value))
        found = {name: each for name, each in vars(value).items() if name not in internal}
    elif form_of(type(value)) is None:
        return _variables_of_tensorflow(value)
    elif type(value) in FORMS or not (is_own_class(type(value)) or type(value) in _CONTAINERS):
        return None
    else:
        found = dict(getattr(value, "__dict__", {}))
    names = [*list_slots(type(value)), *_CONTAINERS.get(type(value), ())]
    return found | {name: getattr(value, name) for name in names if hasattr(value, name)}


def _variables_of_tensorflow(value: Any) -> dict[str, object] | None:
    """Return the variables of a `tf.Module` or `tf.random.Generator` as one attribute; None for other values."""
    kind = type(value)
    if keras.ops.is_tensor(value) or "tensorflow" not in {each.__module__.partition(".")[0] for each in kind.__mro__}:
        return None
    found = value.variables if hasattr(kind, "variables") else [value.state] if hasattr(kind, "state") else ()
    return {"variables": tuple(filter(is_variable, found))} if isinstance(found, (list, tuple)) and found else None


@functools.cache
def _internal_attributes(kind: type) -> frozenset[str]:
    """Return the attributes of Keras' callbacks that are not state, for a class of callbacks."""
    return frozenset().union(*(CALLBACK_INTERNALS.get(each, ()) for each in kind.__mro__))


def find_global(name: str) -> Any:
    """Return the class, function or module with a name "module:qualified.name" if it has been imported, or None."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in filter(None, qualified.split(".")):
        found = getattr(found, part, None)
    return found


def global_name(value: object) -> str | None:
    """Return the name by which `find_global` finds a class, function or module, or None."""
    if isinstance(value, types.ModuleType):
        name = f"{value.__name__}:"
    else:
        name = f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', None)}"
    return name if find_global(name) is value else None


def inner_values(value: object) -> tuple[object, ...] | None:
    """Return the values in an immutable container, a bound method or a `functools.partial`; None for others."""
    if isinstance(value, (tuple, frozenset)):
        return tuple(value)
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    if type(value) is functools.partial:
        return value.func, value.args, value.keywords
    return None


def is_leaf(value: object) -> bool:
    """Return True for immutable data."""
    return type(value) in LEAVES or type(value) in VALUES or isinstance(value, (np.generic, enum.Enum))


def is_moving(value: object) -> bool:
    """Return True for an iterator whose position cannot be read."""
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase) and attributes_of(value) is None


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """An object with an identity, and its path, such as "Logger.meter" or "class Logger"."""

    path: str
    kind: Kind
    value: object
    # True if the object was reached from the model, so that a compiled step may contain its attributes.
    in_step: bool
    # True for what a callback with `get_state` and `set_state` reaches.
    has_methods: bool
    # Content by a function of FORMS, in another form for arrays and generators; None without.
    items: object = None
    attributes: dict[str, object] = dataclasses.field(default_factory=dict)
    # Attributes of a layer of the model, which has the same node if they are the same.
    signature: tuple[object, ...] = ()
    # Paths and values of the parts that are no immutable data.
    children: Sequence[tuple[str, object]] | None = None

    @property
    def label(self) -> str:
        """Path for messages and `ignore`."""
        return self.path.removeprefix("class ")

    def parts(self) -> Iterator[tuple[str, object]]:
        """Yield the items and attributes with the ends of their paths, such as "[0]" and ".file"."""
        form = form_of(type(self.value))
        if isinstance(self.items, tuple) and form is not np.ndarray:
            pairs = ((repr(key), each) for key, each in self.items) if form is dict else enumerate(self.items)
            yield from ((f"[{key}]", each) for key, each in pairs)
        yield from ((f".{name}", each) for name, each in self.attributes.items())


class Nodes(dict[int, Node]):
    """Nodes of all objects that can be reached, by `id`, breadth first.

    Layers, optimizers, metrics and losses of the model and callbacks are named by their class, as "Dense 2".

    Args:
        model: the model with its optimizers and losses, in any order; the first roots.
        callbacks: the other roots.
        ignore: paths that are left out, such as "Logger" or "Logger.file".
        closed: objects that are not searched.
        earlier: an earlier walk, whose paths are kept.
    """

    def __init__(
        self,
        model: Collection[object] = (),
        callbacks: Collection[object] = (),
        ignore: Collection[str] = (),
        closed: Collection[object] = (),
        earlier: "Nodes | None" = None,
    ):
        super().__init__()
        self._closed = set(map(id, closed))
        self._earlier: Mapping[int, Node] = {} if earlier is None else earlier
        self._ignore = frozenset(ignore)
        self.names: set[str] = set() if earlier is None else set(earlier.names)
        for roots, in_step in ((model, True), (callbacks, False)):
            queue: list[tuple[str | None, object, bool, bool]] = [
                (None, root, in_step, not in_step and has_methods(root)) for root in roots
            ]
            for entry in queue:
                queue += self._visit(*entry)

    def _visit(self, path, value, in_step, methods):
        """Add the node of an object. Return its children."""
        if is_leaf(value) or id(value) in self:
            return ()
        inner = inner_values(value)
        if inner is not None:
            return [(f"{path}[{index}]", each, in_step, methods) for index, each in enumerate(inner)]
        earlier = self._earlier.get(id(value))
        if earlier is not None:
            path = earlier.path
        elif path is None or (in_step and isinstance(value, KERAS)):
            path = self._name(type(value))
            if path in self._ignore:
                return ()
        node = self._make(path, value, in_step, methods, earlier)
        self[id(value)] = node
        if node.children is None:
            node.children = [*self._list_children(node)]
        return [(name, each, in_step, methods) for name, each in node.children]

    def _name(self, kind):
        name = make_unique_name(kind.__qualname__.rpartition(".")[2], self.names, " ")
        self.names.add(name)
        return name

    def _make(self, path: str, value: Any, in_step: bool, methods: bool, earlier: Node | None) -> Node:
        if earlier is not None and earlier.kind != "plain":
            return earlier
        if is_variable(value):
            return Node(path, "variable", value, in_step, methods)
        if id(value) in self._closed:
            return Node(path, "other", value, in_step, methods)
        signature = ()
        if isinstance(value, KERAS) and in_step:
            # Layers are many, and change rarely.
            signature = (*vars(value).values(), getattr(value, "trainable", None))
            known = () if earlier is None else earlier.signature
            if earlier is not None and len(signature) == len(known) and all(map(operator.is_, signature, known)):
                return earlier
        form, attributes = form_of(type(value)), attributes_of(value, in_step) or {}
        if form in (None, object) or isinstance(value, type):
            kind: Kind = "plain" if attributes or form is object or isinstance(value, _SEARCHED) else "other"
            return Node(path, kind, value, in_step, methods, None, attributes, signature)
        items = describe_array(value) if form is np.ndarray else FORMS[form][0](value)
        if form in (random.Random, np.random.RandomState, np.random.Generator):
            with np.printoptions(threshold=sys.maxsize):
                items = repr(items)
        return Node(path, "plain", value, in_step, methods, items, attributes, signature)

    def _list_children(self, node):
        for name, each in node.parts():
            label = node.label + name
            if not is_leaf(each) and label not in self._ignore:
                yield label, each
        for kind in type(node.value).__mro__ if node.attributes and not isinstance(node.value, type) else ():
            if is_own_class(kind) and kind is not types.SimpleNamespace:
                yield f"class {kind.__qualname__.rpartition('.')[2]}", kind


def has_methods(callback: object) -> bool:
    """Return True for a callback that implements `get_state` and `set_state`."""
    return all(callable(getattr(callback, method, None)) for method in ("get_state", "set_state"))


def describe_array(array: np.ndarray) -> tuple[object, ...]:
    """Return the type, the shape and a checksum of an array."""
    if array.dtype.hasobject:
        return (str(array.dtype), id(array))
    return str(array.dtype), array.shape, array.flags.writeable, checksum(array)


def are_equal(one: object, other: object) -> bool:
    """Return True if two values are the same object, or equal immutable data with the same objects in it."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if is_leaf(one):
        # Distinguishes -0.0, and NaN is equal to itself.
        return repr(one) == repr(other)
    inner, others = inner_values(one), inner_values(other)
    if inner is None or others is None or len(inner) != len(others):
        return False
    if isinstance(one, types.MethodType) and isinstance(other, types.MethodType) and one.__func__ is not other.__func__:
        return False
    return all(map(are_equal, inner, others))


def walk(
    model: Collection[object] = (), callbacks: Collection[object] = (), ignore: Collection[str] = ()
) -> Iterator[tuple[str, Kind, object]]:
    """Yield (path, kind, value) of all that can be reached from a model with its parts, and from callbacks.

    Plain containers and objects are followed by the immutable data in them.
    """
    for node in Nodes(model, callbacks, ignore).values():
        yield node.path, node.kind, node.value
        queue = [*node.parts()] if node.kind == "plain" else []
        for name, each in queue:
            if is_leaf(each) and node.label + name not in ignore:
                yield node.path + name, "plain", each
            queue += [(f"{name}[{index}]", part) for index, part in enumerate(inner_values(each) or ())]
