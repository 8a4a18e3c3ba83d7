"""Serialization of values as JSON and NumPy arrays, without pickle.

Immutable values (`_VALUES`) are encoded where they occur. Mutable objects (`_OBJECTS`) and arrays are numbered, so that
shared objects stay shared, and may be restored in place.
"""

import collections
import dataclasses
import datetime
import enum
import functools
import hashlib
import importlib
import json
import os
import pathlib
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

# Number of the entries of a checkpoint, to be increased with each change; its negative for one without state of `fit`.
FORMAT = 2
ARRAYS, STATE = "arrays.npz", "state.json"
# Package of the dataclasses that may be restored. A file must not instantiate other classes.
_PACKAGE = __name__.partition(".")[0]


class NotPlainData(TypeError):
    """A value is not of a supported kind."""


def is_variable(value: Any) -> bool:
    """Return True for a `keras.Variable` or `tf.Variable`."""
    return isinstance(value, keras.Variable) or (keras.ops.is_tensor(value) and hasattr(value, "assign"))


def _arguments(value):
    """Return the arguments with which `copy` and `pickle` call the class of an immutable value."""
    return value.__reduce_ex__(2)[1]


_BY_ARGUMENTS: tuple[type, ...] = (range, frozenset, type(pathlib.Path()), datetime.date, datetime.time)
_BY_ARGUMENTS += (datetime.datetime, datetime.timedelta, datetime.timezone)
# Immutable values by type: conversions to other values and back.
_VALUES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: (lambda value: value.decode("latin-1"), lambda text: text.encode("latin-1")),
    functools.partial: (
        lambda value: (value.func, value.args, tuple(value.keywords.items())),
        lambda parts: functools.partial(parts[0], *parts[1], **dict(parts[2])),
    ),
    types.MethodType: (_arguments, lambda arguments: getattr(*arguments)),
    **{kind: (_arguments, lambda arguments, kind=kind: kind(*arguments)) for kind in _BY_ARGUMENTS},
}
# Mutable objects, see `_split` and `_fill`.
_OBJECTS = (list, set, collections.deque, dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_OBJECTS += (np.random.Generator, random.Random)
_VALUE_NAMES, _OBJECT_NAMES = ({kind.__name__: kind for kind in kinds} for kinds in (_VALUES, _OBJECTS))
# Objects that exist before the restoration, arrays, and tuples.
_KNOWN, _ARRAY, _TUPLE = "known", "ndarray", "tuple"


def _split(value):
    """Return the arguments of an object's constructor and its content."""
    if isinstance(value, random.Random):
        return (), value.getstate()
    if isinstance(value, np.random.Generator):
        generator: Any = value.bit_generator
        # `spawn` changes the seed sequence.
        return (type(generator).__name__,), (generator.state, generator.seed_seq.state)
    arguments = ((), value.maxlen) if isinstance(value, collections.deque) else ()
    if isinstance(value, collections.defaultdict):
        arguments = (value.default_factory,)
    return arguments, tuple(value.items() if isinstance(value, dict) else value)


def _make(kind, arguments):
    """Return an object from the arguments that `_split` returned."""
    if kind is np.random.Generator:
        return np.random.Generator(getattr(np.random, arguments[0])())
    return kind(*arguments)


def _fill(target, content):
    """Replace the content of an object."""
    if isinstance(target, random.Random):
        target.setstate(content)
    elif isinstance(target, np.random.Generator):
        generator: Any = target.bit_generator
        generator.__setstate__((content[0], np.random.SeedSequence(**content[1])))
    elif isinstance(target, dict):
        target.clear()
        for key, value in content:
            target[key] = value
    else:
        target.clear()
        (target.update if isinstance(target, set) else target.extend)(content)


def _class_arguments(value):
    """Return the arguments of a member of an enumeration, named tuple or dataclass of this package; None for others."""
    kind: Any = type(value)
    location = kind.__module__, kind.__qualname__
    if isinstance(value, enum.Enum):
        arguments = (value.value,)
    elif isinstance(value, tuple) and hasattr(kind, "_make"):
        arguments = tuple(value)
    elif dataclasses.is_dataclass(value) and kind.__module__.startswith(f"{_PACKAGE}."):
        arguments = tuple(getattr(value, field.name) for field in dataclasses.fields(kind) if field.init)
    else:
        return None
    return arguments if _find_class(*location) is kind else None


class Snapshot:
    """A copy of a value in host memory, which is independent of later changes.

    Arrays that own their data and are read-only are not copied.

    Args:
        value: None, a number, string, array, tensor of the backend, member of an enumeration, dataclass of this
            package, another `Snapshot`, or a value of one of the kinds in this module, which may contain others.
        known: `KnownObjects`, which are saved as references.
        path: name of the value.
        adds_names: True to add all objects in the value to `known`, under their paths.

    Raises:
        NotPlainData: the value is or contains something else.
    """

    def __init__(self, value: Any, known: Any = None, path: str = "", adds_names: bool = False) -> None:
        encoder = _Encoder(known, adds_names)
        self.text = json.dumps({"value": encoder.encode(value, path), "objects": encoder.objects})
        self.arrays = encoder.arrays

    @classmethod
    def load(cls, text: str, arrays: dict[str, NDArray[Any]]) -> "Snapshot":
        """Return a snapshot from its JSON text and its arrays."""
        snapshot = cls.__new__(cls)
        snapshot.text, snapshot.arrays = text, arrays
        return snapshot

    def restore(self, known: Any = None) -> Any:
        """Return the value. Its arrays belong to the copy.

        Args:
            known: objects that are restored in place. Without them, references to known objects are None.
        """
        return _Decoder(json.loads(self.text), self.arrays, known).value

    def checksum(self) -> str:
        """Return the SHA-256 sum of the value."""
        digest = hashlib.sha256(self.text.encode())
        for array in self.arrays.values():
            digest.update(array.tobytes())
        return digest.hexdigest()

    def write(self, folder: str | os.PathLike) -> None:
        """Write the copy to the files `state.json` and `arrays.npz` in a folder. Raises OSError."""
        folder = pathlib.Path(folder)
        np.savez(folder / ARRAYS, allow_pickle=False, **self.arrays)
        (folder / STATE).write_text(self.text, encoding="utf-8")


class _Encoder:
    """Conversion of values to the form that `json` accepts, with names of arrays and numbers of objects."""

    def __init__(self, known: Any, adds_names: bool):
        self.arrays: dict[str, NDArray[Any]] = {}
        self._known = known
        self._adds_names = adds_names
        # Kind, name, arguments and content of each object.
        self.objects: list[Any] = []
        # The objects are kept, since their `id` identifies them.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def encode(self, value, path):
        """Return a value in the form that `json` accepts, with names in place of arrays and numbers of objects."""
        kind: Any = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if id(value) in self._numbers:
            return {"object": self._numbers[id(value)][0]}
        if kind is tuple:
            return {_TUPLE: self._encode_items(value, path)}
        if kind is types.BuiltinMethodType and not isinstance(value.__self__, (types.ModuleType, types.NoneType, type)):
            kind = types.MethodType
        if kind in _VALUES:
            return {kind.__name__: self.encode(_VALUES[kind][0](value), path)}
        if kind in _OBJECTS or kind is np.ndarray:
            return self._add_object(kind.__name__, value, path, None)
        found = None if self._known is None else self._known.describe(value)
        if found is not None:
            return self._add_object(_KNOWN, value, path, *found)
        if isinstance(value, np.generic):
            return {"scalar": self._store(np.asarray(value))}
        arguments = _class_arguments(value)
        if arguments is not None:
            return {"class": [[kind.__module__, kind.__qualname__], *self._encode_items(arguments, path)]}
        if isinstance(value, Snapshot):
            return {"snapshot": [value.text, {name: self._store(array) for name, array in value.arrays.items()}]}
        # On TensorFlow a variable is a tensor as well. Its value alone would replace it by a constant.
        if keras.ops.is_tensor(value) and not is_variable(value):
            return {"tensor": self._store(keras.ops.convert_to_numpy(value))}
        raise NotPlainData(f"{kind.__module__}.{kind.__qualname__}")

    def _encode_items(self, values, path):
        return [self.encode(item, f"{path}[{index}]") for index, item in enumerate(values)]

    def _add_object(self, kind, value, path, content):
        if self._known is not None and self._adds_names:
            self._known.add(path, value)
        name = None if self._known is None else self._known.names.get(id(value))
        if kind == _KNOWN and name is None:
            raise NotPlainData(f"{type(value).__module__}.{type(value).__qualname__}, created during training")
        number = len(self.objects)
        self._numbers[id(value)] = number, value
        self.objects.append(None)
        if kind == _ARRAY:
            arguments, content = None, self._store(value)
        else:
            arguments, content = (None, content) if kind == _KNOWN else _split(value)
            arguments, content = self.encode(arguments, f"{path}()"), self.encode(content, path)
        self.objects[number] = [kind, name, arguments, content]
        return {"object": number}

    def _store(self, array):
        """Return the name of a copy of an array, with its type if NumPy's files do not support it."""
        name = f"a{len(self.arrays)}"
        encoded: list[Any] = [name]
        if array.dtype.isbuiltin == 2:
            # bfloat16 and other types of `ml_dtypes`.
            encoded += [array.dtype.name, list(array.shape)]
            array = np.frombuffer(array.tobytes(), np.uint8)
        elif array.dtype.kind not in "biufcSUMm":
            raise NotPlainData(f"an array of the type {array.dtype}")
        elif array.flags.writeable or not array.flags.owndata:
            array = array.copy(order="K")
        self.arrays[name] = array
        return encoded


class _Decoder:
    """Restoration of a value that `Snapshot` has encoded."""

    def __init__(self, data: dict[str, Any], arrays: dict[str, Any], known: Any):
        self._objects = data["objects"]
        self._arrays = arrays
        self._known = known
        self._decoded: dict[int, Any] = {}
        self.value = self._decode(data["value"])

    def _decode(self, encoded):
        if not isinstance(encoded, dict):
            return encoded
        [(kind, content)] = encoded.items()
        if kind == "object":
            if content not in self._decoded:
                self._restore(content, *self._objects[content])
            return self._decoded[content]
        if kind == _TUPLE:
            return tuple(map(self._decode, content))
        if kind in _VALUE_NAMES:
            return _VALUES[_VALUE_NAMES[kind]][1](self._decode(content))
        if kind == "snapshot":
            return Snapshot.load(content[0], {name: self._array(stored) for name, stored in content[1].items()})
        if kind in ("scalar", "tensor"):
            array = self._array(content)
            return array[()] if kind == "scalar" else keras.ops.convert_to_tensor(array)
        return _find_class(*content[0])(*map(self._decode, content[1:]))

    def _restore(self, number, kind, name, arguments, content):
        """Restore an object. It is known before its content, which may refer to it."""
        if kind == _KNOWN:
            content = self._decode(content)
            self._decoded[number] = None if self._known is None else self._known.restore(name, content)
            return
        target: Any = None if self._known is None else self._known.objects.get(name)
        if kind == _ARRAY:
            array = self._array(content)
            form = array.shape, array.dtype, True
            if type(target) is np.ndarray and (target.shape, target.dtype, target.flags.writeable) == form:
                np.copyto(target, array)
            else:
                # A value may be restored again later.
                target = array if self._known is None else array.copy("K")
            self._decoded[number] = target
            return
        if type(target) is not _OBJECT_NAMES[kind]:
            target = _make(_OBJECT_NAMES[kind], self._decode(arguments))
        self._decoded[number] = target
        _fill(target, self._decode(content))

    def _array(self, stored):
        name, *form = stored
        array = self._arrays[name]
        return np.frombuffer(array.tobytes(), np.dtype(form[0])).reshape(form[1]) if form else array


def _read_state(folder):
    """Return the JSON value in a folder. Raise ValueError if an earlier version of this package has written it."""
    data = json.loads((folder / STATE).read_text(encoding="utf-8"))
    if "objects" not in data:
        raise ValueError(
            f"{folder} is a checkpoint of an earlier version of idmatters_tf. Use that version, or another folder."
        )
    return data


def describe_format(saved: dict[str, Any]) -> str:
    """Return the difference of the format of a checkpoint from that of this version, for error messages."""
    return f"has format {saved.get('format')} of idmatters_tf {saved.get('version')}, not format {FORMAT}"


def read(folder: str | os.PathLike) -> Any:
    """Return the value that `Snapshot.write` has written to a folder. Raise ValueError for earlier versions."""
    folder = pathlib.Path(folder)
    data = _read_state(folder)
    with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
        return _Decoder(data, dict(arrays), None).value


def read_plain(folder: str | os.PathLike) -> dict[str, Any]:
    """Return the strings and numbers of a dict that `Snapshot.write` has written to a folder, without the arrays."""
    data = _read_state(pathlib.Path(folder))
    *_, content = data["objects"][data["value"]["object"]]
    items = [item[_TUPLE] for item in content[_TUPLE]]
    return {key: value for key, value in items if isinstance(value, (int, str))}


def _find_class(module: str, name: str) -> Any:
    """Return an enumeration or named tuple of an imported module, or a dataclass of this package.

    Raises:
        NotPlainData: there is no such class.
    """
    is_own = module.startswith(f"{_PACKAGE}.")
    namespace = importlib.import_module(module) if is_own else sys.modules.get(module)
    kind: Any = functools.reduce(lambda owner, part: getattr(owner, part, None), name.split("."), namespace)
    is_named_tuple = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_make")
    if not (isinstance(kind, enum.EnumType) or is_named_tuple or (is_own and dataclasses.is_dataclass(kind))):
        raise NotPlainData(f"{module}.{name}, not an enumeration, named tuple or dataclass of {_PACKAGE} in a module")
    return kind
