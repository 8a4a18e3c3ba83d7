"""Serialization of plain data as JSON and NumPy arrays, without pickle.

Numbers, strings and tuples are encoded where they occur. Mutable objects (`_OBJECTS`) are numbered, so that shared
objects stay shared. Objects that existed when training began (`KnownObjects`) are restored in place.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import io
import json
import os
import pathlib
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.callbacks import _devices

# Number of the entries of a checkpoint, to be increased with each change; its negative for one without state of `fit`.
FORMAT = 3
ARRAYS, STATE = "arrays.npz", "state.json"
# Package of the dataclasses that may be restored. A file must not instantiate other classes.
_PACKAGE = __name__.partition(".")[0]
_KINDS = (list, dict, collections.OrderedDict, collections.Counter, collections.defaultdict, collections.deque)
_KINDS += (np.ndarray, random.Random, np.random.RandomState, np.random.Generator)
_OBJECTS = {kind.__name__: kind for kind in _KINDS}
# Kind of variables, and of objects of Keras and TensorFlow that own variables.
_VARIABLES = "variables"
_OWNERS = {"keras", "tensorflow"}
# Objects of these packages, and those of the types below, are compared by their identity.
_OPAQUE_PACKAGES = _OWNERS | {"jax", "jaxlib"}
_OPAQUE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


class NotPlainData(TypeError):
    """A value is not plain data."""


def is_variable(value: Any) -> bool:
    """Return True for a `keras.Variable` or `tf.Variable`."""
    return isinstance(value, keras.Variable) or (keras.ops.is_tensor(value) and hasattr(value, "assign"))


class KnownObjects:
    """Mutable `objects` that exist when training begins, by their paths.

    Args:
        restored: variables that are restored with the model.
    """

    def __init__(self, restored: Iterable[Any] = ()):
        self._restored = set(map(id, restored))
        self._paths: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        self.objects: dict[str, Any] = {}

    def add(self, path: str, value: Any) -> None:
        """Name an object that has no name."""
        if id(value) not in self._paths and path not in self.objects:
            self._paths[id(value)], self.objects[path] = path, value
            self._counts[path] = len(self.variables(value) or ())

    def path(self, value: Any) -> str | None:
        """Return the path of an object; None if it or one of its variables did not exist."""
        path = self._paths.get(id(value))
        return None if path is None or self._counts[path] != len(self.variables(value) or ()) else path

    def variables(self, value: Any) -> list[Any] | None:
        """Return the variables of an object that are not restored with the model; None if it cannot have any."""
        if is_variable(value):
            variables = [value]
        elif not _find_packages(type(value)) & _OWNERS:
            return None
        else:
            # Of layers, metrics and optimizers, or of random generators.
            state = getattr(value, "state", None)
            variables = getattr(value, "variables", [state] if is_variable(state) else None)
        if not isinstance(variables, (list, tuple)):
            return None
        return [each for each in variables if id(each) not in self._restored]


class _Encoder:
    """Conversion of values to the form that `json` accepts, with names of arrays and numbers of objects."""

    def __init__(self, known: KnownObjects | None = None, adds: bool = False):
        self.known = KnownObjects() if known is None else known
        self.arrays: dict[str, NDArray[Any]] = {}
        # Kind, path of a known object, and content of each object.
        self.objects: list[Any] = []
        self._adds = adds
        # The objects are kept, since their `id` identifies them.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def encode(self, value: Any, path: str = "") -> Any:
        """Return a value in the form that `json` accepts. Raise NotPlainData for other values."""
        kind: Any = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if id(value) in self._numbers:
            return {"object": self._numbers[id(value)][0]}
        if kind is tuple:
            return {"tuple": self._encode_items(value, path)}
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return {"scalar": self.store(np.asarray(value))}
        variables = self.known.variables(value)
        if self._adds and (variables is not None or kind in _OBJECTS.values()):
            self.known.add(path, value)
        known = self.known.path(value)
        if variables is not None and known is not None:
            return self._number(value, _VARIABLES, tuple(map(_devices.read, variables)), path)
        if kind is np.ndarray and not value.dtype.hasobject:
            return self.encode_array(value, path)
        # A new `defaultdict` cannot be created without its factory.
        if kind in _OBJECTS.values() and kind is not np.ndarray and (kind is not collections.defaultdict or known):
            return self._number(value, kind.__name__, _get_content(value), path)
        if dataclasses.is_dataclass(value) and kind.__module__.startswith(f"{_PACKAGE}."):
            arguments = [getattr(value, field.name) for field in dataclasses.fields(value) if field.init]
            return {"class": [[kind.__module__, kind.__qualname__], *self._encode_items(arguments, path)]}
        # Not a tensor of a function that is traced. On TensorFlow a variable is a tensor as well.
        if keras.ops.is_tensor(value) and not is_variable(value):
            with contextlib.suppress(NotImplementedError, TypeError):
                numbers: Any = keras.ops.convert_to_numpy(value)
                return {"tensor": self.store(numbers)}
        return self.encode_other(value, path)

    def encode_array(self, array: Any, path: str) -> Any:
        return self._number(array, np.ndarray.__name__, array, path)

    def encode_other(self, value: Any, path: str) -> Any:
        raise NotPlainData(describe_type(value))

    def _encode_items(self, values, path):
        return [self.encode(item, f"{path}[{index}]") for index, item in enumerate(values)]

    def _number(self, value, kind, content, path):
        number = len(self.objects)
        self._numbers[id(value)] = number, value
        self.objects.append(None)
        content = self.store(content) if content is value else self.encode(content, path)
        self.objects[number] = [kind, self.known.path(value), content]
        return {"object": number}

    def store(self, array: NDArray[Any]) -> Any:
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


class Snapshot:
    """A copy of plain data in host memory. Arrays that own their data and are read-only are not copied.

    Args:
        value: None, a number, string, array, generator of Python or NumPy, dataclass of this package, or a tuple, list,
            dict or deque of such values. Others raise NotPlainData.
        known: objects that are restored in place, also variables.
    """

    def __init__(self, value: Any, known: KnownObjects | None = None):
        encoder = _Encoder(known)
        self.text = json.dumps({"value": encoder.encode(value), "objects": encoder.objects})
        self.arrays = encoder.arrays

    def write(self, folder: str | os.PathLike) -> None:
        """Write the copy to the files `state.json` and `arrays.npz` in a folder. Raises OSError."""
        folder = pathlib.Path(folder)
        np.savez(folder / ARRAYS, allow_pickle=False, **self.arrays)
        (folder / STATE).write_text(self.text, encoding="utf-8")


class Fingerprint(_Encoder):
    """Checksum `digest` of any value. The objects in it are added to the known ones if there is a path.

    Parts that are not plain data, whose types are `others`, are described by what `pickle` would save, or else, if
    `is_opaque`, by their identity.
    """

    def __init__(self, value: Any, known: KnownObjects | None = None, path: str | None = None):
        super().__init__(known, adds=path is not None)
        self.others: list[str] = []
        self.is_opaque = False
        self._sum = hashlib.sha256()
        self._sum.update(json.dumps([self.encode(value, path or ""), self.objects]).encode())
        self.digest = self._sum.digest()

    def store(self, array: NDArray[Any]) -> Any:
        self._sum.update(array.tobytes())
        return [str(array.dtype), list(array.shape)]

    def encode_array(self, array: Any, path: str) -> Any:
        if not array.flags.owndata:
            self.others.append("a view of an array")
        return super().encode_array(array, path)

    def encode_other(self, value: Any, path: str) -> Any:
        self.others.append(describe_type(value))
        self._adds, adds = False, self._adds
        number = len(self.objects)
        self._numbers[id(value)] = number, value
        self.objects.append(None)
        parts = _reduce(value)
        self.is_opaque |= parts is None
        # The positions of iterators cannot be compared.
        always_differs = parts is None and isinstance(value, Iterator) and not isinstance(value, io.IOBase)
        token = os.urandom(8).hex() if always_differs else id(value)
        self.objects[number] = [describe_type(value), token if parts is None else self.encode(parts)]
        self._adds = adds
        return {"object": number}


def describe_type(value: Any) -> str:
    """Return the full name of the type of a value."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _find_packages(kind):
    """Return the packages that define a class and its bases."""
    return frozenset(base.__module__.partition(".")[0] for base in kind.__mro__)


def _reduce(value):
    """Return the parts that `pickle` would save, as a tuple; None for an object that is compared by its identity."""
    parts: Any = None
    if not isinstance(value, _OPAQUE) and not _find_packages(type(value)) & _OPAQUE_PACKAGES:
        # Locks, files and others cannot be pickled.
        with contextlib.suppress(Exception):
            parts = value.__reduce_ex__(4)
    if isinstance(parts, tuple):
        return tuple(list(part) if isinstance(part, Iterator) else part for part in parts)
    return None


def _get_content(value):
    """Return the content of a mutable object as plain data."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        generator: Any = value.bit_generator
        # `spawn` changes the seed sequence.
        return type(generator).__name__, generator.state, generator.seed_seq.state
    if isinstance(value, collections.deque):
        return (value.maxlen, *value)
    return tuple(value.items() if isinstance(value, dict) else value)


def _make(kind, content):
    """Return a new object, to be filled with its content."""
    if kind is np.random.Generator:
        return np.random.Generator(getattr(np.random, content["tuple"][0])())
    return collections.deque(maxlen=content["tuple"][0]) if kind is collections.deque else kind()


def _fill(target, content):
    """Replace the content of an object."""
    if isinstance(target, random.Random):
        target.setstate(content)
    elif isinstance(target, np.random.RandomState):
        target.set_state(content)
    elif isinstance(target, np.random.Generator):
        generator: Any = target.bit_generator
        generator.__setstate__((content[1], np.random.SeedSequence(**content[2])))
    else:
        target.clear()
        if isinstance(target, collections.deque):
            target.extend(content[1:])
        elif isinstance(target, list):
            target.extend(content)
        for key, value in content if isinstance(target, dict) else ():
            target[key] = value


class _Decoder:
    """Restoration of a value that `_Encoder` has encoded."""

    def __init__(self, data: dict[str, Any], arrays: dict[str, Any], known: KnownObjects | None):
        self._objects = data["objects"]
        self._arrays = arrays
        self._known = KnownObjects() if known is None else known
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
        if kind == "tuple":
            return tuple(map(self._decode, content))
        if kind in ("scalar", "tensor"):
            array = self._array(content)
            return array[()] if kind == "scalar" else keras.ops.convert_to_tensor(array)
        return _find_class(*content[0])(*map(self._decode, content[1:]))

    def _restore(self, number, kind, path, content):
        """Restore an object. It is known before its content, which may refer to it."""
        target: Any = self._known.objects.get(path)
        if kind == np.ndarray.__name__:
            array = self._array(content)
            form = array.shape, array.dtype, True
            if type(target) is np.ndarray and (target.shape, target.dtype, target.flags.writeable) == form:
                np.copyto(target, array)
            else:
                # A value may be restored again.
                target = array.copy("K") if self._known.objects else array
        elif kind != _VARIABLES and type(target) is not _OBJECTS[kind]:
            target = _make(_OBJECTS[kind], content)
        self._decoded[number] = target
        if kind == _VARIABLES:
            if target is None:
                raise ValueError(f"The checkpoint contains {path}, which does not exist. Start the same script again.")
            values: Any = self._decode(content)
            for variable, value in zip(self._known.variables(target) or (), values, strict=True):
                _devices.assign(variable, value)
        elif kind != np.ndarray.__name__:
            _fill(target, self._decode(content))

    def _array(self, stored):
        name, *form = stored
        array = self._arrays[name]
        return np.frombuffer(array.tobytes(), np.dtype(form[0])).reshape(form[1]) if form else array


def restore(text: str, arrays: dict[str, NDArray[Any]], known: KnownObjects | None = None) -> Any:
    """Return the value of a `Snapshot` with a text and arrays. Known objects are restored in place."""
    return _Decoder(json.loads(text), arrays, known).value


def _read_text(folder):
    text = (pathlib.Path(folder) / STATE).read_text(encoding="utf-8")
    if '"objects"' not in text:
        remedy = "Use that version, or another folder."
        raise ValueError(f"{folder} is a checkpoint of an earlier version of idmatters_tf. {remedy}")
    return text


def describe_format(saved: dict[str, Any]) -> str:
    """Return the difference of the format of a checkpoint from that of this version, for error messages."""
    return f"has format {saved.get('format')} of idmatters_tf {saved.get('version')}, not format {FORMAT}"


def read(folder: str | os.PathLike) -> Any:
    """Return the value that `Snapshot.write` has written to a folder."""
    with np.load(pathlib.Path(folder) / ARRAYS, allow_pickle=False) as arrays:
        return restore(_read_text(folder), dict(arrays))


def read_plain(folder: str | os.PathLike) -> dict[str, Any]:
    """Return the strings and numbers of a dict that `Snapshot.write` has written to a folder, without the arrays."""
    data = json.loads(_read_text(folder))
    *_, content = data["objects"][data["value"]["object"]]
    items = [item["tuple"] for item in content["tuple"]]
    return {key: value for key, value in items if isinstance(value, (int, str))}


def _find_class(module: str, name: str) -> Any:
    """Return a dataclass of this package. Raise NotPlainData for another class."""
    is_own = module.startswith(f"{_PACKAGE}.")
    kind: Any = getattr(importlib.import_module(module), name, None) if is_own else None
    if not dataclasses.is_dataclass(kind):
        raise NotPlainData(f"{module}.{name}, not a dataclass of {_PACKAGE}")
    return kind
