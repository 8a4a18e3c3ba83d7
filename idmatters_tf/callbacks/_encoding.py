"""Serialization of plain data as JSON and NumPy arrays, without pickle."""

import dataclasses
import datetime
import enum
import functools
import hashlib
import importlib
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

ARRAYS, STATE = "arrays.npz", "state.json"
# Package of the dataclasses that may be restored. A file must not instantiate other classes.
_PACKAGE = __name__.partition(".")[0]
# Conversions of other immutable values to plain data and back.
_VALUES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: (lambda value: value.decode("latin-1"), lambda text: text.encode("latin-1")),
    complex: (lambda value: (value.real, value.imag), lambda parts: complex(*parts)),
    range: (lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    datetime.timedelta: (
        lambda value: (value.days, value.seconds, value.microseconds),
        lambda parts: datetime.timedelta(*parts),
    ),
    **{kind: (kind.isoformat, kind.fromisoformat) for kind in (datetime.datetime, datetime.date, datetime.time)},
    type(pathlib.Path()): (str, pathlib.Path),
}
_VALUES_BY_NAME = {kind.__name__: conversions for kind, conversions in _VALUES.items()}


class NotPlainData(TypeError):
    """A value is not a number, string or array, nor a list, tuple, set or dict of these."""


def is_variable(value: Any) -> bool:
    """Return True for a `keras.Variable` or `tf.Variable`."""
    return isinstance(value, keras.Variable) or (keras.ops.is_tensor(value) and hasattr(value, "assign"))


class Snapshot:
    """A copy of a value in host memory, which is independent of later changes.

    Arrays that own their data and are read-only are not copied.

    Args:
        value: None, a number, string, array, tensor of the backend, date, path, range, member of an enumeration or
            dataclass of this package, or a list, tuple, named tuple, set or dict of these.

    Raises:
        NotPlainData: the value is or contains something else.
    """

    def __init__(self, value: Any) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._text = json.dumps(self._encode(value))

    def _encode(self, value):
        """Return a value in the form that `json` accepts, with names in place of arrays."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [self._encode(item) for item in value]
        if kind is tuple:
            return {"tuple": [self._encode(item) for item in value]}
        if kind in (set, frozenset):
            return {kind.__name__: sorted((self._encode(item) for item in value), key=json.dumps)}
        if kind is dict:
            return {"dict": [[self._encode(key), self._encode(item)] for key, item in value.items()]}
        if kind is np.ndarray or isinstance(value, np.generic):
            return self._store("array" if kind is np.ndarray else "scalar", np.asarray(value))
        if kind in _VALUES:
            encode, decode = _VALUES[kind]
            # The time zone of a date may differ.
            if repr(decode(encode(value))) != repr(value):
                raise NotPlainData(repr(value))
            return {kind.__name__: self._encode(encode(value))}
        location = [kind.__module__, kind.__qualname__]
        if isinstance(value, enum.Enum) and _find_class(*location) is kind:
            return {"enum": location, "value": self._encode(value.value)}
        if isinstance(value, tuple) and hasattr(kind, "_make") and _find_class(*location) is kind:
            return {"named tuple": location, "items": [self._encode(item) for item in value]}
        if dataclasses.is_dataclass(kind) and kind.__module__.startswith(f"{_PACKAGE}."):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind) if field.init}
            return {"dataclass": location, "fields": self._encode(fields)}
        # On TensorFlow a variable is a tensor as well. Its value alone would replace it by a constant.
        if keras.ops.is_tensor(value) and not is_variable(value):
            return self._store("tensor", keras.ops.convert_to_numpy(value))
        raise NotPlainData(f"{kind.__module__}.{kind.__qualname__}")

    def _store(self, kind, array):
        name = f"a{len(self._arrays)}"
        encoded = {kind: name}
        if array.dtype.isbuiltin == 2:
            # NumPy's files do not support bfloat16 and other types of `ml_dtypes`.
            encoded |= {"dtype": array.dtype.name, "shape": list(array.shape)}
            array = np.frombuffer(array.tobytes(), np.uint8)
        elif array.dtype.kind not in "biufcSUMm":
            raise NotPlainData(f"an array of the type {array.dtype}")
        elif array.flags.writeable or not array.flags.owndata:
            array = array.copy(order="K")
        self._arrays[name] = array
        return encoded

    def restore(self) -> Any:
        """Return the value. Its arrays belong to the copy."""
        return _decode(json.loads(self._text), self._arrays)

    def checksum(self) -> str:
        """Return the SHA-256 sum of the value."""
        digest = hashlib.sha256(self._text.encode())
        for array in self._arrays.values():
            digest.update(array.tobytes())
        return digest.hexdigest()

    def write(self, folder: str | os.PathLike) -> None:
        """Write the copy to the files `state.json` and `arrays.npz` in a folder. Raises OSError."""
        folder = pathlib.Path(folder)
        np.savez(folder / ARRAYS, allow_pickle=False, **self._arrays)
        (folder / STATE).write_text(self._text, encoding="utf-8")


def _decode(encoded, arrays):
    """Return the value that `Snapshot` has encoded."""
    if isinstance(encoded, list):
        return [_decode(item, arrays) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    kind, content = next(iter(encoded.items()))
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](_decode(item, arrays) for item in content)
    if kind == "dict":
        return {_decode(key, arrays): _decode(item, arrays) for key, item in content}
    if kind in _VALUES_BY_NAME:
        return _VALUES_BY_NAME[kind][1](_decode(content, arrays))
    if kind == "enum":
        return _find_class(*content)(_decode(encoded["value"], arrays))
    if kind == "named tuple":
        return _find_class(*content)._make(_decode(encoded["items"], arrays))
    if kind == "dataclass":
        return _find_class(*content)(**_decode(encoded["fields"], arrays))
    array = arrays[content]
    if "dtype" in encoded:
        array = np.frombuffer(array.tobytes(), np.dtype(encoded["dtype"])).reshape(encoded["shape"])
    if kind == "tensor":
        return keras.ops.convert_to_tensor(array)
    return array[()] if kind == "scalar" else array


def read(folder: str | os.PathLike) -> Any:
    """Return the value that `Snapshot.write` has written to a folder."""
    folder = pathlib.Path(folder)
    with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
        return _decode(
            json.loads((folder / STATE).read_text(encoding="utf-8")), {name: arrays[name] for name in arrays}
        )


def read_plain(folder: str | os.PathLike) -> dict[str, Any]:
    """Return the strings and numbers of a dict that `Snapshot.write` has written to a folder, without the arrays."""
    items = json.loads((pathlib.Path(folder) / STATE).read_text(encoding="utf-8"))["dict"]
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
