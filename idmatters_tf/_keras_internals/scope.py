"""Scope for evaluating layers and models without changing them."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import keras

from idmatters_tf._keras_types import Tensor


class _NestedScope(keras.StatelessScope):
    """A `keras.StatelessScope` that can be nested.

    Keras looks up variables in the innermost scope only. The regularizers of missing variables receive None.
    """

    def get_current_value(self, variable: Any) -> Tensor | None:
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:
            value = self.original_scope.get_current_value(variable)
        return variable._value if value is None else value


@contextlib.contextmanager
def substitute_values(values: Iterable[tuple[keras.Variable, Tensor]] = ()) -> Iterator[None]:
    """Evaluate layers at given values of variables, without changing the layers.

    Updates of variables (moving averages, states of random generators, metrics) are discarded. Inside the context,
    `model.losses` contains the losses of the calls inside. After the context it has its previous value.

    Args:
        values: pairs (variable, tensor) of variables with other values inside the context.
    """
    layer: Any = keras.layers.Layer
    clear = layer._clear_losses
    before: dict[int, tuple[Any, list[Any], set[int]]] = {}

    def keep_and_clear(self: Any) -> None:
        before.setdefault(id(self), (self, list(self._losses), set(self._loss_ids)))
        clear(self)

    try:
        with mock.patch.object(layer, "_clear_losses", keep_and_clear), _NestedScope(values, collect_losses=True):
            yield
    finally:
        for called, losses, identities in before.values():
            called._losses[:] = losses
            called._loss_ids.clear()
            called._loss_ids.update(identities)
