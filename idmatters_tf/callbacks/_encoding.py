"""Plain data as JSON and NumPy arrays, without pickle.

Objects are numbered, so that shared objects stay shared. Known objects are restored in place. Objects of classes that
have been imported are created without a call of their methods.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import json
import os
import pathlib
import types
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.callbacks import _devices
from idmatters_tf.callbacks.walk import (
    FORMS,
    KERAS,
    LEAVES,
    VALUES,
    Node,
    attributes_of,
    find_global,
    form_of,
    global_name,
    inner_values,
    is_moving,
)

# Arrays by name, and a part of a checkpoint: plain data and arrays by name.
Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
Saved: TypeAlias = dict[str, Any]
# Number of the entries of a checkpoint, to be increased with each change; its negative for one without state of `fit`.
FORMAT = 7
# The arrays follow each other in one file in NumPy's format, which is faster than the archive of `numpy.savez`.
ARRAYS, STATE = "arrays.npy", "state.json"
_BUILTINS = {kind.__name__: kind for kind in FORMS}
_VALUES = {kind.__name__: convert for kind, (_, convert) in VALUES.items()}
# Functions of the name of a bit generator or of the maximal length that return a new object.
_MAKERS = {
    "deque": lambda length: collections.deque(maxlen=length),
    "Generator": lambda name: np.random.Generator(getattr(np.random, name)()),
}


@dataclasses.dataclass(eq=False)
class Json:
    """Data that JSON represents exactly, which are not searched for objects. They are restored without this class."""

    data: object


class NotPlainData(TypeError):
    """A value is not plain data."""


class Snapshot:
    """A copy of plain data in host memory. Arrays that own their data and are read-only are not copied.

    Args:
        value: plain data, see `walk`. Others raise NotPlainData.
        known: nodes of objects that are restored in place, by `id`. Also variables and others can be known.
    """

    def __init__(self, value: object = None, known: Mapping[int, Node] | None = None):
        self.arrays: dict[str, NDArray[np.generic]] = {}
        self._known = {} if known is None else known
        self._is_graph = known is not None
        # Form, class, content and attributes of each object, or its path if it is known.
        self._objects: list[object] = []
        # The objects are kept, since their `id` identifies them.
        self._numbers: dict[int, tuple[int, object]] = {}
        # Views by the `id` of the array that owns their data.
        self._views: dict[int, object] = {}
        self._changes: list[object] = []
        self._value = self._encode(value)

    @property
    def text(self) -> str:
        """Content other than arrays, as JSON."""
        return json.dumps({"value": self._value, "objects": self._objects, "changes": self._changes})

    @property
    def saved(self) -> Saved:
        """Content for `restore`."""
        return {"text": self.text, "arrays": self.arrays}

    def add_change(self, node: Node, names: Iterable[str], deleted: Iterable[str], has_items: bool) -> dict[str, str]:
        """Add attributes of a known object, names of deleted ones, and its items or value.

        Return the types of what is not plain data by attribute, "" for the items.
        """
        others: dict[str, str] = {}
        encoded: dict[str, object] = {}
        for name in [*names, *([""] if has_items else [])]:
            try:
                encoded[name] = self._encode(node.attributes[name]) if name else self._encode_items(node.value)
            except NotPlainData as error:
                others[name] = str(error)
        self._changes.append([node.path, encoded.pop("", None), [*encoded.items()], [*deleted]])
        return others

    def _encode_items(self, value):
        form = form_of(type(value))
        if form is None:
            return self._encode(tuple(_devices.split(_devices.read(value), 1)))
        return self._store(value) if form is np.ndarray else self._encode(FORMS[form][0](value))

    def _encode(self, value):
        """Return a value in the form that `json` accepts."""
        if type(value) in LEAVES:
            return value
        if type(value) is tuple:
            return {"tuple": list(map(self._encode, value))}
        if type(value) is Json:
            return {"json": value.data}
        if isinstance(value, np.generic):
            return {"scalar": self._store(np.asarray(value))}
        if type(value) in VALUES:
            if getattr(value, "tzinfo", None) is not None:
                raise NotPlainData("a time with a time zone")
            return {"value": [type(value).__name__, VALUES[type(value)][0](value)]}
        if id(value) in self._known or id(value) in self._numbers:
            return {"object": self._number(value)}
        name = global_name(value)
        if name is not None:
            return {"global": name}
        inner = inner_values(value)
        if inner is not None:
            content = list(map(self._encode, inner))
            if isinstance(value, types.MethodType):
                return {"method": [*content, value.__name__]}
            is_partial = type(value) is functools.partial
            return {"partial": content} if is_partial else {"immutable": [self._class_name(type(value)), content]}
        if isinstance(value, enum.Enum):
            return {"enum": [self._class_name(type(value)), value.name]}
        if form_of(type(value)) is not None and not isinstance(value, type):
            return {"object": self._number(value)}
        if type(value).__name__ == "TensorShape" and value.rank is not None:
            return {"shape": value.as_list()}
        # Not a tensor of a function that is traced.
        with contextlib.suppress(NotImplementedError, TypeError):
            if keras.ops.is_tensor(value) and not hasattr(value, "assign"):
                return {"tensor": self._store(np.asarray(keras.ops.convert_to_numpy(value)))}
        raise NotPlainData(describe_type(value))

    def _class_name(self, kind):
        name = global_name(kind)
        if name is None:
            raise NotPlainData(f"an object of {kind.__qualname__}, which is not defined in a module")
        return name

    def _number(self, value):
        """Return the number of a mutable object. It is numbered before its content, which may refer to it."""
        if id(value) in self._numbers:
            return self._numbers[id(value)][0]
        number = len(self._objects)
        self._numbers[id(value)] = number, value
        node = self._known.get(id(value))
        if node is not None:
            self._objects.append(node.path)
            return number
        kind = type(value)
        form: Any = form_of(kind)
        # The lists, dicts and sets of Keras are created by the assignment of an attribute.
        is_builtin = kind in FORMS or kind.__module__.partition(".")[0] in ("keras", "tensorflow")
        self._objects.append(encoded := [form.__name__, None if is_builtin else self._class_name(kind)])
        try:
            encoded.append(None if form is object else self._encode_items(value))
            attributes = (attributes_of(value) or {}).items()
            encoded.append([[name, self._encode(each)] for name, each in attributes])
            encoded.append(value.maxlen if form is collections.deque else None)
        except NotPlainData as error:
            del self._numbers[id(value)]
            raise error if form is not object else NotPlainData(f"{describe_type(value)} with {error}") from error
        return number

    def _store(self, array):
        """Return the name of a copy of an array, and its type if NumPy's files do not support it."""
        if array.dtype.isbuiltin != 2 and array.dtype.kind not in "biufcSUMm":
            raise NotPlainData(f"an array of the type {array.dtype}")
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if self._is_graph and owner is not array and id(array) not in self._known:
            shares = id(owner) in self._known or id(owner) in self._numbers
            if shares or self._views.setdefault(id(owner), array) is not array:
                raise NotPlainData("a view of an array that something else contains as well")
        copied = array if array.flags.owndata and not array.flags.writeable else array.copy(order="K")
        # bfloat16 and other types of `ml_dtypes`.
        is_extension = array.dtype.isbuiltin == 2
        name = f"a{len(self.arrays)}"
        self.arrays[name] = copied.view(f"u{array.itemsize}") if is_extension else copied
        return [name, array.dtype.name] if is_extension else [name]

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write the copy to the files `state.json` and `arrays.npy` in a folder. Raises OSError."""
        folder = pathlib.Path(folder)
        with open(folder / ARRAYS, "wb") as file:
            for array in self.arrays.values():
                np.lib.format.write_array(file, array, allow_pickle=False)
        (folder / STATE).write_text(self.text, encoding="utf-8")


def describe_type(value: object) -> str:
    """Return the type of a value for messages."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return f"the iterator {name}" if is_moving(value) else name


class _Decoder:
    """Restoration of a value that `Snapshot` has encoded."""

    def __init__(self, text: str, arrays: Arrays, known: Mapping[str, object], is_partial: bool):
        data = json.loads(text)
        self._objects, self._arrays, self._known = data["objects"], arrays, known
        self._decoded: dict[int, Any] = {}
        self.value = self._decode(data["value"])
        for path, items, attributes, deleted in data["changes"]:
            if is_partial and path not in known:
                continue
            target = self._find(path)
            if items is not None:
                self._fill(target, items)
            for name in deleted:
                with contextlib.suppress(AttributeError):
                    delattr(target, name)
            self._set_attributes(target, attributes)

    def _find(self, path):
        if path not in self._known:
            raise ValueError(f"The checkpoint contains {path}, which does not exist. Start the same script again.")
        return self._known[path]

    def _decode(self, encoded):
        if not isinstance(encoded, dict):
            return encoded
        [(kind, content)] = encoded.items()
        if kind == "json":
            return content
        if kind == "object":
            return self._decoded[content] if content in self._decoded else self._make(content)
        if kind in ("scalar", "tensor"):
            array = self._load(content)
            return array[()] if kind == "scalar" else keras.ops.convert_to_tensor(array)
        if kind == "value":
            return _VALUES[content[0]](content[1])
        if kind == "global":
            return self._load_global(content)
        if kind == "shape":
            import tensorflow as tf

            return tf.TensorShape(content)
        if kind == "enum":
            return self._load_global(content[0])[content[1]]
        if kind == "method":
            return getattr(self._decode(content[0]), content[1])
        if kind == "partial":
            function, arguments, keywords = map(self._decode, content)
            return functools.partial(function, *arguments, **keywords)
        if kind == "immutable":
            made = self._load_global(content[0])
            base: Any = tuple if issubclass(made, tuple) else frozenset
            return base.__new__(made, map(self._decode, content[1]))
        return tuple(map(self._decode, content))

    def _load_global(self, name):
        found = find_global(name)
        if found is None:
            raise ValueError(f"The checkpoint contains {name}, which is not imported. Start the same script again.")
        return found

    def _make(self, number):
        """Create an object, or find a known one. It exists before its content, which may refer to it."""
        if isinstance(self._objects[number], str):
            made = self._find(self._objects[number])
            return self._decoded.setdefault(number, made)
        form, name, items, attributes, length = self._objects[number]
        if form == np.ndarray.__name__:
            # Arrays of callbacks must own their data.
            array = self._load(items)
            return self._decoded.setdefault(number, array.copy("K") if self._known else array)
        base: Any = _BUILTINS.get(form, object)
        kind: Any = base if name is None else self._load_global(name)
        if form in _MAKERS:
            made = _MAKERS[form](items["tuple"][0] if form == "Generator" else length)
        else:
            # Without a call of methods of the user.
            made = kind() if kind in (base, types.SimpleNamespace) else base.__new__(kind)
        self._decoded[number] = made
        if items is not None:
            self._fill(made, items)
        self._set_attributes(made, attributes)
        return made

    def _fill(self, target, items):
        form = form_of(type(target))
        content: Any = self._load(items) if form is np.ndarray else self._decode(items)
        if form is None:
            _devices.assign(target, list(content) if len(content) > 1 else content[0])
        else:
            FORMS[form][1](target, content)

    def _set_attributes(self, target, attributes):
        for name, encoded in attributes:
            value = self._decode(encoded)
            if isinstance(target, (type, *KERAS)):
                setattr(target, name, value)
            else:
                # Also of frozen dataclasses.
                object.__setattr__(target, name, value)

    def _load(self, stored):
        name, *dtype = stored
        return self._arrays[name].view(*dtype)


def restore(saved: Saved, known: Mapping[str, object] = types.MappingProxyType({}), is_partial: bool = False) -> Any:
    """Return the value of the result of `Snapshot.saved`, once. Known objects are restored in place, by path.

    With `is_partial`, changes of objects that are not known are left out instead of an error.
    """
    return _Decoder(saved["text"], saved["arrays"], known, is_partial).value


def encode_state(state: object, owner: str) -> Saved:
    """Return the state that `get_state` of an owner has returned, for `restore`."""
    try:
        return Snapshot(state).saved
    except NotPlainData as error:
        raise ValueError(f"`get_state` of {owner} must return plain data and arrays. Received: {error}") from error


def _read_text(folder: str | os.PathLike[str]) -> str:
    return (pathlib.Path(folder) / STATE).read_text(encoding="utf-8")


def describe_format(saved: Saved) -> str:
    """Return the difference of the format of a checkpoint from that of this version, for error messages."""
    return f"has format {saved.get('format')} of idmatters_tf {saved.get('version')}, not format {FORMAT}"


def read(folder: str | os.PathLike[str]) -> Any:
    """Return the value that `Snapshot.write` has written to a folder."""
    return restore({"text": _read_text(folder), "arrays": read_arrays(folder)})


def read_arrays(folder: str | os.PathLike[str]) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a checkpoint by name, "a0", "a1" and so on."""
    arrays: dict[str, NDArray[np.generic]] = {}
    with open(pathlib.Path(folder) / ARRAYS, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        while file.tell() < end:
            arrays[f"a{len(arrays)}"] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


def read_plain(folder: str | os.PathLike[str]) -> Saved:
    """Return the strings and numbers of a dict that `Snapshot.write` has written to a folder, without the arrays."""
    data = json.loads(_read_text(folder))
    *_, items, _, _ = data["objects"][data["value"]["object"]]
    return {key: value for key, value in (item["tuple"] for item in items["tuple"]) if isinstance(value, (int, str))}
