"""Contract for the state of callbacks.

Keras' callbacks and their subclasses are restored by a list of attributes for each class. Callbacks may implement
`get_state()` and `set_state(state)`. Of other callbacks, and of subclasses, the attributes that have changed since
training began are saved, which must be plain data, see `_encoding`.
"""

import contextlib
import hashlib
import io
import os
import pathlib
import pickle
import types
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import keras

from idmatters_tf import _keras_internals
from idmatters_tf._arguments import make_unique_name
from idmatters_tf._keras_internals import CALLBACK_SETTINGS, CALLBACK_STATES
from idmatters_tf.callbacks import _encoding, _training_state
from idmatters_tf.callbacks._encoding import Known, NotPlainData, Snapshot, find_variables

# Parts of a state that are not attributes: the content of the file of a `CSVLogger`, the result of `get_state`, and the
# names of the attributes that the callback has deleted.
_TEXT, _STATE, _DELETED = "text of the file", "get_state()", "deleted attributes"


class CallbackStates:
    """States of callbacks after their `on_train_begin`, without attributes "Class.attribute" in `ignore`."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], model: keras.Model, ignore: Collection[str] = ()):
        trained = _training_state.variables(model)
        self._known = Known(variable for several in trained.values() for variable in several)
        # By the class, with a number from the second instance on.
        self._states: dict[str, _CallbackState] = {}
        for callback in callbacks:
            name = make_unique_name(type(callback).__qualname__, self._states, " ")
            self._states[name] = _CallbackState(callback, name, self._known, ignore)

    @property
    def variables(self) -> list[Any]:
        """Variables of the callbacks and of the model."""
        return [value for _, value in self._known.values() if _encoding.is_variable(value)]

    def get(self, unchanged: bool = False) -> dict[str, Any]:
        """Return the current states as plain data, and "texts" with the results of `get_state` that are strings.

        With `unchanged`, they include plain attributes that have not changed since training began.

        Raises:
            ValueError: attributes have changed that are not plain data.
        """
        others: dict[str, str] = {}
        states = {name: state.get(unchanged, others) for name, state in self._states.items()}
        if others and not unchanged:
            listed = ", ".join(f"{name} ({kind})" for name, kind in others.items())
            raise ValueError(
                f"Callbacks have changed attributes that ExactResume cannot restore: {listed}. Add `get_state()`, "
                f"which returns plain data and arrays, and `set_state(state)`. If they do not affect training, pass "
                f"ExactResume(..., ignore={list(others)})."
            )
        texts = {name: state.get(_STATE) for name, state in states.items() if state}
        texts = {name: text if isinstance(text, str) else None for name, text in texts.items()}
        # A snapshot of its own, in which known objects have names.
        snapshot = Snapshot(states, self._known)
        return {"texts": texts, "text": snapshot.text, "arrays": snapshot.arrays}

    def set(self, saved: dict[str, Any]) -> None:
        """Restore states that `get` returned for callbacks of the same classes."""
        for name, state in _encoding.restore(saved["text"], saved["arrays"], self._known).items():
            if state and name in self._states:
                self._states[name].set(state)

    def find_lost(self, saved: dict[str, Any]) -> list[str]:
        """Return the names of the missing callbacks that have a saved state."""
        return [name for name in saved["texts"] if name not in self._states]


class _CallbackState:
    """State of one callback."""

    def __init__(self, callback: keras.callbacks.Callback, name: str, known: Known, ignore: Collection[str]):
        self._callback: Any = callback
        self._name = name
        self._known = known
        self._ignore = ignore
        kinds = type(callback).__mro__
        kind = next((each for each in kinds if each in CALLBACK_STATES), keras.callbacks.Callback)
        self._attributes = CALLBACK_STATES.get(kind, ())
        self._assigned_by_keras = _keras_internals.assigned_attributes(kind)
        self._has_methods = all(callable(getattr(callback, method, None)) for method in ("get_state", "set_state"))
        self._is_described = self._has_methods or type(callback) is kind
        self._log = _LogFile(callback) if isinstance(callback, keras.callbacks.CSVLogger) else None
        # Objects with attributes, by the prefix of the names.
        own = [each for each in kinds if each.__module__.partition(".")[0] not in ("builtins", "keras")]
        self._owners: dict[str, Any] = {"": callback, **{each.__qualname__: each for each in own}}
        # The loss may use a variable of a callback with methods.
        for key, value in (vars(callback) if self._has_methods else self._list_attributes()).items():
            known.add(f"{name}.{key}", value)
        self._before = {key: _Description(value, known) for key, value in self._list_attributes().items()}
        self._restored = set(self._before)

    def get(self, unchanged: bool, others: dict[str, str]) -> dict[str, Any]:
        """Return the current state. Add "Class.attribute" and type of other changed attributes to `others`."""
        callback: Any = self._callback
        state = {key: getattr(callback, key) for key in self._attributes if hasattr(callback, key)}
        if self._log is not None:
            state[_TEXT] = self._log.read()
        if isinstance(callback, keras.callbacks.TensorBoard):
            # A resumed process does not write the points before the checkpoint again.
            _keras_internals.flush_events(callback)
        if self._has_methods:
            own = self._callback.get_state()
            try:
                Snapshot(own)
            except NotPlainData as error:
                raise ValueError(
                    f"`get_state` of the callback {self._name} must return plain data and arrays. Received: {error}"
                ) from error
            # Without a state, `set_state` is not called.
            return state if own is None else {**state, _STATE: own}
        values = self._list_attributes()
        for key, value in values.items():
            found = _Description(value, self._known)
            if not unchanged and key in self._before and self._before[key].digest == found.digest:
                continue
            if found.other is None:
                state[key] = value
            elif key not in self._assigned_by_keras:
                others[self._label(key)] = found.other
        if self._before.keys() - values.keys():
            state[_DELETED] = tuple(self._before.keys() - values.keys())
        return state

    def set(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        # The callback creates other attributes if it handles the beginning of an epoch between two restorations.
        for key in (self._list_attributes().keys() - self._restored) | set(state.pop(_DELETED, ())):
            with contextlib.suppress(AttributeError):
                delattr(*self._find(key))
        for key, value in state.items():
            if key == _STATE:
                self._callback.set_state(value)
            elif key == _TEXT and self._log is not None:
                self._log.restore(value)
            else:
                setattr(*self._find(key), value)
        self._restored = set(self._list_attributes())

    def _list_attributes(self):
        """Return the attributes that may be state, those of a class as "Class.name"."""
        if self._is_described:
            return {}
        internal = {key for key in self._assigned_by_keras if key.startswith("_") or key in CALLBACK_SETTINGS}
        excluded = {*self._attributes, *internal}
        found = {key: value for key, value in vars(self._callback).items() if key not in excluded}
        for prefix, owner in list(self._owners.items())[1:]:
            for key, value in vars(owner).items():
                if isinstance(value, types.MemberDescriptorType) and hasattr(self._callback, key):
                    # Of `__slots__`.
                    found[key] = getattr(self._callback, key)
                elif not key.startswith("__") and not hasattr(type(value), "__get__"):
                    # Neither a method nor a property.
                    found[f"{prefix}.{key}"] = value
        return {key: value for key, value in found.items() if self._label(key) not in self._ignore}

    def _find(self, key):
        """Return the owner and the name of an attribute."""
        prefix, _, name = key.rpartition(".")
        return self._owners[prefix], name

    def _label(self, key):
        return key if "." in key else f"{self._name}.{key}"


class _LogFile:
    """File of a `CSVLogger`.

    Without `append`, the file belongs to the run. With `append`, other runs may have added rows after the checkpoint,
    which are kept. Rows of this run after the checkpoint are written again with the same values, and the second of two
    equal rows is removed.
    """

    def __init__(self, logger: Any):
        self._logger = logger
        # Absolute, since the program may change the current folder during `fit`.
        self._path = pathlib.Path(logger.filename).absolute()
        # Length of the text of the first checkpoint that was restored. Later rows may be repeated.
        self._length: int | None = None

    def read(self) -> tuple[str, int | None] | None:
        """Return the content of the file with this length, or None if the file is not open."""
        if self._logger.csv_file is None or self._logger.csv_file.closed:
            return None
        self._logger.csv_file.flush()
        # Reading bytes preserves the line ends \r\n.
        text = self._path.read_bytes().decode()
        if self._length is not None:
            rows = text[self._length :].splitlines(keepends=True)
            content = "".join([text[: self._length], *dict.fromkeys(rows)])
            if content != text:
                self._write(content)
            return content, self._length
        return text, None

    def restore(self, state: tuple[str, int | None] | None) -> None:
        """Restore the result of `read`. The logger's `on_train_begin` may have created a new file."""
        if state is None:
            return
        text, length = state
        if not self._logger.append:
            self._write(text)
        elif self._path.read_bytes().startswith(text.encode()):
            self._length = len(text) if length is None else length

    def _write(self, text):
        self._logger.csv_file.close()
        self._path.write_bytes(text.encode())
        self._logger.csv_file = open(self._path, "a")  # noqa: SIM115 - closed by the logger
        self._logger.writer, self._logger.append_header = None, not text


class _Description(pickle.Pickler):
    """Checksum `digest` of an attribute, and the type of a part `other` that is not plain data.

    Others are compared by the parts that Python would copy, and objects that cannot be copied by their identity, for
    which this object keeps them. Nothing is unpickled.
    """

    def __init__(self, value: Any, known: Known):
        checksum = hashlib.sha256()
        file: Any = types.SimpleNamespace(write=checksum.update)
        super().__init__(file, protocol=4)
        self._known = known
        self.other: str | None = None
        try:
            checksum.update(Snapshot(value, known, views=False).digest)
        except NotPlainData as error:
            self.other = str(error)
            try:
                self.dump(value)
            except Exception:
                # It may have changed.
                checksum.update(os.urandom(8))
        self.digest = checksum.digest()

    def reducer_override(self, obj: Any) -> Any:
        """Return the parts of an object, for `pickle`."""
        if obj is tuple:
            return NotImplemented
        variables = find_variables(obj)
        with contextlib.suppress(Exception):
            parts = obj.__reduce_ex__(4) if variables is None else None
            if isinstance(parts, tuple):
                return parts
        # The positions of iterators cannot be compared.
        is_iterator = isinstance(obj, Iterator) and not isinstance(obj, io.IOBase)
        return tuple, ([os.urandom(8) if is_iterator else id(obj), *map(self._known.read, variables or ())],)
