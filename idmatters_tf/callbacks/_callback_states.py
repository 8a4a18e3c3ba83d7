"""Serialization of the state of callbacks.

The state of Keras' callbacks is a fixed list of attributes for each class. Other callbacks may implement `get_state()`
and `set_state(state)`. Otherwise the attributes that have changed since training began are saved, see `_encoding`.
"""

import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import keras

from idmatters_tf._keras_internals import CALLBACK_SETTINGS, CALLBACK_STATES, flush_events
from idmatters_tf._names import make_unique_name
from idmatters_tf.callbacks._encoding import NotPlainData, Snapshot
from idmatters_tf.callbacks._known_objects import KnownObjects

# Parts of a state that are not attributes: the content of the file of a `CSVLogger`, the result of `get_state`, and the
# names of the attributes that the callback has deleted.
_TEXT, _STATE, _DELETED = "text of the file", "get_state()", "deleted attributes"


class CallbackStates:
    """States of several callbacks, which can be saved and restored, without attributes "Class.attribute" in `ignore`.

    Create it when training begins, after the `on_train_begin` of the callbacks.

    Raises:
        ValueError: the state of a callback cannot be saved.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], model: keras.Model, ignore: Collection[str] = ()):
        self._known = KnownObjects(model)
        # By the class, with a number from the second instance on.
        named: dict[str, keras.callbacks.Callback] = {}
        for callback in callbacks:
            name = make_unique_name(type(callback).__qualname__, named, " ")
            named[name] = callback
            self._known.add(f"callback {name}", callback)
        for module in ("builtins", *(type(callback).__module__ for callback in callbacks)):
            self._known.add_settings(module)
        self._states = {name: _CallbackState(each, name, self._known, ignore) for name, each in named.items()}

    def get(self, unchanged: bool = False) -> dict[str, Any]:
        """Return the current states as a `Snapshot`, and "texts" with the results of `get_state` that are strings.

        With `unchanged`, they include the attributes that have not changed since training began.
        """
        states = {name: state.get(unchanged) for name, state in self._states.items()}
        texts = {name: state.get(_STATE) for name, state in states.items() if state}
        texts = {name: text if isinstance(text, str) else None for name, text in texts.items()}
        return {"texts": texts, "states": Snapshot(states, self._known)}

    def set(self, saved: dict[str, Any]) -> None:
        """Restore states that `get` returned for callbacks of the same classes. They can be restored repeatedly."""
        for name, state in saved["states"].restore(self._known).items():
            if state and name in self._states:
                self._states[name].set(state)

    def find_lost(self, saved: dict[str, Any]) -> list[str]:
        """Return the names of the missing callbacks that have a saved state."""
        return [name for name in saved["texts"] if name not in self._states]


class _CallbackState:
    """State of one callback."""

    def __init__(self, callback: keras.callbacks.Callback, name: str, known: KnownObjects, ignore: Collection[str]):
        self._callback: Any = callback
        self._name = name
        self._known = known
        self._ignore = ignore
        kind = next((kind for kind in type(callback).__mro__ if kind in CALLBACK_STATES), None)
        self._attributes = () if kind is None else CALLBACK_STATES[kind]
        self._has_methods = all(callable(getattr(callback, method, None)) for method in ("get_state", "set_state"))
        self._is_described = self._has_methods or type(callback) is kind
        self._log = _LogFile(callback) if isinstance(callback, keras.callbacks.CSVLogger) else None
        self._before = self._fingerprints(adds_names=True)
        self._restored = self._list_attributes()

    def get(self, unchanged: bool) -> dict[str, Any]:
        """Return the current state."""
        callback = self._callback
        if self._has_methods:
            state = callback.get_state()
            self._take_snapshot(_STATE, state)
            # Without a state, `set_state` is not called.
            return {} if state is None else {_STATE: state}
        state = {name: getattr(callback, name) for name in self._attributes if hasattr(callback, name)}
        if self._log is not None:
            state[_TEXT] = self._log.read()
        if isinstance(callback, keras.callbacks.TensorBoard):
            # A resumed process does not write the points before the checkpoint again.
            flush_events(callback)
        now = self._fingerprints()
        state |= {name: getattr(callback, name) for name in now if unchanged or now[name] != self._before.get(name)}
        if self._before.keys() - now.keys():
            state[_DELETED] = tuple(self._before.keys() - now.keys())
        return state

    def set(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        # The callback creates other attributes if it handles the beginning of an epoch between two restorations.
        for name in (self._list_attributes() - self._restored) | set(state.pop(_DELETED, ())):
            vars(self._callback).pop(name, None)
        for name, value in state.items():
            if name == _STATE:
                self._callback.set_state(value)
            elif name == _TEXT and self._log is not None:
                self._log.restore(value)
            else:
                setattr(self._callback, name, value)
        self._restored = self._list_attributes()

    def _list_attributes(self):
        """Return the names of the attributes that are neither settings nor restored in another way."""
        excluded = vars(self._callback) if self._is_described else (*CALLBACK_SETTINGS, *self._attributes)
        names = vars(self._callback).keys() - excluded
        return {name for name in names if f"{self._name}.{name}" not in self._ignore}

    def _fingerprints(self, adds_names=False):
        """Return a checksum of each attribute that may be state, in the order of their creation."""
        names = self._list_attributes()
        attributes = {name: value for name, value in vars(self._callback).items() if name in names}
        return {name: self._take_snapshot(name, value, adds_names).checksum() for name, value in attributes.items()}

    def _take_snapshot(self, name, value, adds_names=False):
        path = f"{self._name}.{name}"
        try:
            return Snapshot(value, self._known, path, adds_names)
        except NotPlainData as error:
            raise ValueError(
                f"The callback {self._name} cannot be restored: its attribute `{name}` contains {error}. Add methods "
                f"`get_state()`, which returns plain data and arrays, and `set_state(state)`. If it does not affect "
                f"training, pass ignore=[{path!r}] to ExactResume."
            ) from error


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
