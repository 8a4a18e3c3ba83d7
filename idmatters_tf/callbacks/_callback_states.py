"""What the other callbacks of a `fit` remember, and how it is saved.

Keras' own are known one by one. A callback of somebody else may have `get_state()` and `set_state(state)`; otherwise
those of its attributes that have changed since training began are saved, as long as they are plain data.
"""

import hashlib
import inspect
import json
import logging
import pathlib
import re
import types
from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._keras_internals import CALLBACK_SETTINGS, CALLBACK_STATES, layers_within
from idmatters_tf.callbacks._encoding import Encoder, NotPlainData
from idmatters_tf.callbacks._model_parts import find_optimizers

# Of a `CSVLogger`: what stands in its file.
_TEXT = "text of the file"
# Values that are settings: they hold nothing that training changes, or nothing that changes training.
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
    """Saves and restores what one callback remembers.

    To be made when training begins, behind the callback's own `on_train_begin`.

    Args:
        callback: one of a `fit`.
        name: its name among those of the `fit`, see `named`.

    Raises:
        ValueError: something that it keeps cannot be saved.
    """

    def __init__(self, callback: keras.callbacks.Callback, name: str):
        self.callback, self.name = callback, name
        conflicting = getattr(keras.callbacks, "BackupAndRestore", ())
        if conflicting and isinstance(callback, conflicting):
            raise ValueError(
                "ExactResume and BackupAndRestore both decide where training goes on. Remove BackupAndRestore from the "
                "callbacks."
            )
        known = next((kind for kind in type(callback).__mro__ if kind in CALLBACK_STATES), None)
        self._remembered = () if known is None else CALLBACK_STATES[known]
        self._is_keras_own = type(callback) is known
        self._asks = all(callable(getattr(callback, method, None)) for method in ("get_state", "set_state"))
        self._before: dict[str, str] = {}
        if not self._asks and not self._is_keras_own:
            self._before = self._fingerprints()

    def get(self) -> Any:
        """What the callback remembers now; None where that is nothing.

        Raises:
            ValueError: something that it keeps has become what cannot be saved.
        """
        callback: Any = self.callback
        if self._asks:
            return self._checked(callback.get_state())
        state = {name: getattr(callback, name) for name in self._remembered if hasattr(callback, name)}
        if isinstance(callback, keras.callbacks.CSVLogger):
            state[_TEXT] = _text_of(callback)
        if not self._is_keras_own:
            now = self._fingerprints()
            state |= {name: getattr(callback, name) for name in now if now[name] != self._before.get(name)}
        return self._checked(state) if state else None

    def set(self, state: Any) -> None:
        """Makes the callback remember what another one of its kind did."""
        callback: Any = self.callback
        if self._asks:
            callback.set_state(state)
            return
        for name, value in state.items():
            if name == _TEXT:
                _write_again(callback, value)
            else:
                setattr(callback, name, value)

    def _checked(self, state):
        try:
            Encoder().encode(state)
        except NotPlainData as error:
            raise ValueError(f"The state of the callback {self.name} holds {error}. {_REMEDY}") from error
        return state

    def _fingerprints(self):
        """A checksum of each attribute that is plain data."""
        found = {}
        known = {*CALLBACK_SETTINGS, *self._remembered}
        for name, value in vars(self.callback).items():
            if name in known or self._is_setting(value):
                continue
            encoder = Encoder()
            try:
                text = json.dumps(encoder.encode(value))
            except NotPlainData as error:
                raise ValueError(
                    f"The callback {self.name} cannot be restored: it keeps {error} in `{name}`. {_REMEDY}"
                ) from error
            checksum = hashlib.sha256(text.encode())
            for array in encoder.arrays.values():
                checksum.update(array.tobytes())
            found[name] = checksum.hexdigest()
        return found

    def _is_setting(self, value):
        if isinstance(value, (list, tuple)) and value:
            return all(self._is_setting(each) for each in value)
        if inspect.ismethod(value):
            return value.__self__ is self.callback or self._is_setting(value.__self__)
        model: Any = self.callback.model
        if isinstance(value, keras.layers.Layer):
            return value is model or any(value is layer for layer in layers_within(model))
        if isinstance(value, keras.optimizers.Optimizer):
            return any(value is each for each in find_optimizers(model).values())
        return isinstance(value, _SETTINGS)


_REMEDY = "Give it methods `get_state()`, which returns plain data and arrays, and `set_state(state)`."


def named(callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, keras.callbacks.Callback]:
    """The callbacks by their class and, from the second of a class on, a number."""
    found: dict[str, keras.callbacks.Callback] = {}
    for callback in callbacks:
        name = type(callback).__qualname__
        same = sum(type(other).__qualname__ == name for other in found.values())
        found[f"{name} {same + 1}" if same else name] = callback
    return found


def _text_of(logger):
    """What a `CSVLogger` has written so far."""
    if logger.csv_file is None or logger.csv_file.closed:
        return None
    logger.csv_file.flush()
    # As bytes, since its lines end with \r\n.
    return pathlib.Path(logger.filename).read_bytes().decode()


def _write_again(logger, text):
    """Has a `CSVLogger` go on behind what it had written: its `on_train_begin` may have begun a new file."""
    if text is None:
        return
    logger.csv_file.close()
    pathlib.Path(logger.filename).write_bytes(text.encode())
    logger.csv_file = open(logger.filename, "a")  # noqa: SIM115 - closed by the logger
    logger.append_header = not text
