"""Serialization of the state of callbacks.

The state of Keras' callbacks is a fixed list of attributes for each class. Other callbacks may implement `get_state()`
and `set_state(state)`. Otherwise the attributes that have changed since training began are saved, if they are plain
data. The value of a variable in an attribute is assigned to the variable.
"""

import inspect
import logging
import pathlib
import re
import types
from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._keras_internals import CALLBACK_SETTINGS, CALLBACK_STATES, flush_events, layers_within
from idmatters_tf._names import make_unique_name
from idmatters_tf.callbacks import _devices
from idmatters_tf.callbacks._encoding import NotPlainData, Snapshot, is_variable
from idmatters_tf.callbacks._model_parts import find_optimizers

# Content of the file of a `CSVLogger`.
_TEXT = "text of the file"
# Types of settings: training does not change their values, or their values do not affect training.
_SETTINGS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    pathlib.PurePath,
    re.Pattern,
    logging.Logger,
    keras.losses.Loss,
    keras.initializers.Initializer,
    keras.optimizers.schedules.LearningRateSchedule,
)


class CallbackState:
    """State of one callback, which can be saved and restored.

    Create it when training begins, after the callback's `on_train_begin`. Raises ValueError if the state cannot be
    saved.
    """

    def __init__(self, callback: keras.callbacks.Callback, name: str):
        self.callback, self.name = callback, name
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "ExactResume and BackupAndRestore cannot be used together. Remove BackupAndRestore from the callbacks."
            )
        known = next((kind for kind in type(callback).__mro__ if kind in CALLBACK_STATES), None)
        self._attributes = () if known is None else CALLBACK_STATES[known]
        self._is_keras_own = type(callback) is known
        self._has_methods = all(callable(getattr(callback, method, None)) for method in ("get_state", "set_state"))
        self._log = _LogFile(callback) if isinstance(callback, keras.callbacks.CSVLogger) else None
        self._variables = {name for name, value in vars(callback).items() if is_variable(value)}
        self._before = {} if self._has_methods or self._is_keras_own else self._fingerprints()

    def get(self) -> Any:
        """Return the current state of the callback, or None if it is empty.

        Raises:
            ValueError: the state cannot be saved.
        """
        callback: Any = self.callback
        state = callback.get_state() if self._has_methods else self._read_attributes()
        try:
            Snapshot(state)
        except NotPlainData as error:
            raise ValueError(f"The state of the callback {self.name} contains {error}. {_REMEDY}") from error
        return state

    def _read_attributes(self):
        callback: Any = self.callback
        state = {name: self._read(name) for name in self._attributes if hasattr(callback, name)}
        if self._log is not None:
            state[_TEXT] = self._log.read()
        if isinstance(callback, keras.callbacks.TensorBoard):
            # A resumed process does not write the points before the checkpoint again.
            flush_events(callback)
        if not self._is_keras_own:
            now = self._fingerprints()
            changed = [name for name in now if now[name] != self._before.get(name)]
            state |= {name: self._read(name) for name in changed}
        return state or None

    def set(self, state: Any) -> None:
        """Restore a state that `get` returned for a callback of the same class."""
        callback: Any = self.callback
        if self._has_methods:
            callback.set_state(state)
            return
        for name, value in state.items():
            if name == _TEXT and self._log is not None:
                self._log.restore(value)
            elif is_variable(vars(callback).get(name)):
                _devices.assign(vars(callback)[name], value)
            else:
                setattr(callback, name, value)

    def _read(self, name):
        """Return an attribute, or its value if it is a variable. A restarted process cannot restore later variables."""
        value = getattr(self.callback, name)
        return _devices.read(value) if name in self._variables else value

    def _fingerprints(self):
        """Return a checksum of each attribute that is not a setting."""
        checksums = {}
        for name, value in vars(self.callback).items():
            if name in CALLBACK_SETTINGS or name in self._attributes or self._is_setting(value):
                continue
            try:
                checksums[name] = Snapshot(self._read(name)).checksum()
            except NotPlainData as error:
                raise ValueError(
                    f"The callback {self.name} cannot be restored: its attribute `{name}` contains {error}. {_REMEDY}"
                ) from error
        return checksums

    def _is_setting(self, value):
        if isinstance(value, (list, tuple)) and value:
            return all(self._is_setting(item) for item in value)
        if inspect.ismethod(value):
            return value.__self__ is self.callback or self._is_setting(value.__self__)
        model: Any = self.callback.model
        if isinstance(value, keras.layers.Layer):
            return value is model or any(value is layer for layer in layers_within(model))
        if isinstance(value, keras.optimizers.Optimizer):
            return any(value is optimizer for optimizer in find_optimizers(model).values())
        return isinstance(value, _SETTINGS)


_REMEDY = "Add methods `get_state()`, which returns plain data and arrays, and `set_state(state)`."


def name_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, keras.callbacks.Callback]:
    """Return callbacks by name: the class, with a number from the second instance on."""
    named: dict[str, keras.callbacks.Callback] = {}
    for callback in callbacks:
        named[make_unique_name(type(callback).__qualname__, named, " ")] = callback
    return named


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
