"""Plain data as JSON and NumPy arrays, without pickle.

Mutable objects are numbered, so that shared objects stay shared. `Known` objects are restored in place.
"""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import random
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.callbacks import _devices
from idmatters_tf.checkpointing import OtherRun

# Number of the entries of a checkpoint, to be increased with each change; its negative for one without state of `fit`.
FORMAT = 4
ARRAYS, STATE = "arrays.npz", "state.json"
_LEAVES = (type(None), bool, int, float, str)
# Kinds of objects that cannot be created: variables, and other objects of Keras and TensorFlow, which may own them.
_VARIABLE, _OWNER = "variable", "owner"


class NotPlainData(TypeError):
    """A value is not plain data."""


def _get_generator(generator):
    bits: Any = generator.bit_generator
    # `spawn` changes the seed sequence.
    return type(bits).__name__, bits.state, bits.seed_seq.state


def _set_generator(generator, content):
    generator.bit_generator.__setstate__((content[1], np.random.SeedSequence(**content[2])))


# Functions that return the content of a mutable object as plain data, and that restore it. Containers are empty before.
_KINDS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    list: (tuple, list.extend),
    dict: (lambda value: tuple(value.items()), dict.update),
    collections.deque: (lambda value: (value.maxlen, *value), lambda value, content: value.extend(content[1:])),
    np.ndarray: (lambda array: array, lambda array, content: array is content or np.copyto(array, content)),
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (_get_generator, _set_generator),
}
_TYPES = {kind.__name__: kind for kind in _KINDS}
# Functions of the first item of the content that return a new object. Other types need no arguments.
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "deque": lambda length: collections.deque(maxlen=length),
    "Generator": lambda name: np.random.Generator(getattr(np.random, name)()),
}


def is_variable(value: Any) -> bool:
    """Return True for a `keras.Variable` or `tf.Variable`."""
    return isinstance(value, keras.Variable) or (keras.ops.is_tensor(value) and hasattr(value, "assign"))


def find_variables(value: Any) -> tuple[Any, ...] | None:
    """Return the variables of an object of Keras or TensorFlow, which may be one; None for tensors and other values."""
    if is_variable(value):
        return (value,)
    packages = {base.__module__.partition(".")[0] for base in type(value).__mro__}
    if keras.ops.is_tensor(value) or not packages & {"keras", "tensorflow"}:
        return None
    # Of layers, metrics and optimizers, or of random generators.
    state = getattr(value, "state", None)
    variables = getattr(value, "variables", [state] if is_variable(state) else None)
    return tuple(filter(is_variable, variables if isinstance(variables, (list, tuple)) else ()))


def _get_content(value):
    """Return the kind and the content of a mutable object, plain data and variables; None and the value for others."""
    kind = type(value)
    if kind in _KINDS:
        return kind.__name__, _KINDS[kind][0](value)
    variables = None if kind in _LEAVES else find_variables(value)
    if variables is None:
        return None, value
    return (_VARIABLE, value) if is_variable(value) else (_OWNER, variables)


class Known(dict[int, tuple[str, Any]]):
    """Paths and values of the mutable objects that exist when training begins, by `id`.

    Args:
        restored: variables that are restored with the model.
    """

    def __init__(self, restored: Iterable[Any] = ()):
        super().__init__({id(each): (f"the model[{index}]", each) for index, each in enumerate(restored)})
        self._restored = set(self)

    def add(self, path: str, value: Any) -> None:
        """Add the objects in a value."""
        if id(value) in self:
            return
        kind, content = _get_content(value)
        if kind is not None:
            self[id(value)] = path, value
        for index, part in enumerate(content if type(content) is tuple else ()):
            self.add(f"{path}[{index}]", part)

    def read(self, variable: Any) -> tuple[Any, ...] | None:
        """Return the values of a variable on its devices, one if they are equal; None if the model restores it."""
        return None if id(variable) in self._restored else tuple(_devices.split(_devices.read(variable), 1))


class Snapshot:
    """A copy of plain data in host memory. Arrays that own their data and are read-only are not copied.

    Args:
        value: None, a number, string, tensor, array, generator of Python or NumPy, or a tuple, list, dict or deque of
            such values. Others raise NotPlainData.
        known: objects that are restored in place, also variables and their owners.
        views: if False, writable views of arrays raise NotPlainData.
    """

    def __init__(self, value: Any, known: Known | None = None, views: bool = True):
        self.arrays: dict[str, NDArray[Any]] = {}
        self._known = Known() if known is None else known
        self._views = views
        # Kind, path of a known object, and content of each object.
        self._objects: list[Any] = []
        # The objects are kept, since their `id` identifies them.
        self._numbers: dict[int, tuple[int, Any]] = {}
        self.text = json.dumps({"value": self._encode(value), "objects": self._objects})

    def _encode(self, value):
        """Return a value in the form that `json` accepts."""
        if type(value) in _LEAVES:
            return value
        if type(value) is tuple:
            return {"tuple": list(map(self._encode, value))}
        if isinstance(value, np.generic):
            return {"scalar": self._store(np.asarray(value))}
        if id(value) not in self._numbers:
            kind, content = _get_content(value)
            path, _ = self._known.get(id(value), (None, None))
            if kind not in _TYPES and (kind is None or path is None):
                # Not a tensor of a function that is traced.
                with contextlib.suppress(NotImplementedError, TypeError):
                    if kind is None and keras.ops.is_tensor(value):
                        return {"tensor": self._store(np.asarray(keras.ops.convert_to_numpy(value)))}
                kind = type(value)
                raise NotPlainData(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
            self._numbers[id(value)] = len(self._objects), value
            self._objects.append(encoded := [kind, path])
            content = self._known.read(value) if kind == _VARIABLE else content
            encoded.append(self._store(value) if content is value else self._encode(content))
        return {"object": self._numbers[id(value)][0]}

    def _store(self, array):
        """Return the name of a copy of an array, and its type if NumPy's files do not support it."""
        if array.dtype.isbuiltin != 2 and array.dtype.kind not in "biufcSUMm":
            raise NotPlainData(f"an array of the type {array.dtype}")
        if not self._views and array.flags.writeable and not array.flags.owndata:
            raise NotPlainData("a view of an array")
        name = f"a{len(self.arrays)}"
        is_constant = array.flags.owndata and not array.flags.writeable
        self.arrays[name] = array if is_constant else array.copy(order="K")
        if array.dtype.isbuiltin != 2:
            return [name]
        # bfloat16 and other types of `ml_dtypes`.
        self.arrays[name] = self.arrays[name].view(f"u{array.itemsize}")
        return [name, array.dtype.name]

    @property
    def digest(self) -> bytes:
        """Checksum of the data."""
        checksum = hashlib.sha256(self.text.encode())
        for array in self.arrays.values():
            checksum.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        return checksum.digest()

    def write(self, folder: str | os.PathLike) -> None:
        """Write the copy to the files `state.json` and `arrays.npz` in a folder. Raises OSError."""
        folder = pathlib.Path(folder)
        np.savez(folder / ARRAYS, allow_pickle=False, **self.arrays)
        (folder / STATE).write_text(self.text, encoding="utf-8")


class _Decoder:
    """Restoration of a value that `Snapshot` has encoded."""

    def __init__(self, text: str, arrays: dict[str, NDArray[Any]], known: Known | None):
        data = json.loads(text)
        self._objects, self._arrays = data["objects"], arrays
        self._known = dict((known or {}).values())
        self._decoded: dict[int, Any] = {}
        self.value = self._decode(data["value"])

    def _decode(self, encoded):
        if not isinstance(encoded, dict):
            return encoded
        [(kind, content)] = encoded.items()
        if kind == "tuple":
            return tuple(map(self._decode, content))
        if kind == "object":
            if content not in self._decoded:
                self._restore(content, *self._objects[content])
            return self._decoded[content]
        array = self._load(content)
        return array[()] if kind == "scalar" else keras.ops.convert_to_tensor(array)

    def _restore(self, number, kind, path, content):
        """Restore an object. It is decoded before its content, which may refer to it."""
        target: Any = self._known.get(path)
        if kind == np.ndarray.__name__:
            content = self._load(content)
            form = content.shape, content.dtype, True
            if type(target) is not np.ndarray or (target.shape, target.dtype, target.flags.writeable) != form:
                # Arrays of callbacks must own their data.
                target = content.copy("K") if self._known else content
        elif kind in _TYPES and type(target) is not _TYPES[kind]:
            target = _MAKERS[kind](content["tuple"][0]) if kind in _MAKERS else _TYPES[kind]()
        elif target is None:
            raise ValueError(f"The checkpoint contains {path}, which does not exist. Start the same script again.")
        self._decoded[number] = target
        decoded: Any = self._decode(content)
        if kind == _VARIABLE and decoded is not None:
            _devices.assign(target, list(decoded) if len(decoded) > 1 else decoded[0])
        elif kind in _TYPES:
            getattr(target, "clear", tuple)()
            _KINDS[_TYPES[kind]][1](target, decoded)

    def _load(self, stored):
        name, *dtype = stored
        return self._arrays[name].view(*dtype)


def restore(text: str, arrays: dict[str, NDArray[Any]], known: Known | None = None) -> Any:
    """Return the value of a `Snapshot` with a text and arrays, once. Known objects are restored in place."""
    return _Decoder(text, arrays, known).value


def _read_text(folder):
    text = (pathlib.Path(folder) / STATE).read_text(encoding="utf-8")
    if '"objects"' not in text:
        remedy = "Use that version, or another folder."
        raise OtherRun(pathlib.Path(folder), "is a checkpoint of an earlier version of idmatters_tf", remedy)
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
