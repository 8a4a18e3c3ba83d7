"""Contexts in which layers and models are evaluated or trained without changing them."""

import contextlib
from collections.abc import Iterable, Iterator

import keras

from idmatters_tf._keras_internals.keras_source import get_stateless_scope
from idmatters_tf._keras_types import Tensor
from idmatters_tf._tensorflow_internals.patching import Patch


class _NestedScope(keras.StatelessScope):
    """A `keras.StatelessScope` that can be nested.

    Keras looks up variables in the innermost scope only. The regularizers of missing variables receive None.

    Losses of the layers that are called inside are restored at the end.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, Tensor]], others: dict[int, keras.Variable]):
        super().__init__(values, collect_losses=True)
        self._others = others
        self._before: dict[int, tuple[keras.layers.Layer, list[Tensor], set[int]]] = {}

    def get_current_value(self, variable: keras.Variable) -> Tensor | None:
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:
            value = self.original_scope.get_current_value(variable)
        if value is None:
            self._others[id(variable)] = variable
        return variable._value if value is None else value

    def keep_losses(self, layer: keras.layers.Layer) -> None:
        self._before.setdefault(id(layer), (layer, list(layer._losses), set(layer._loss_ids)))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for layer, losses, identities in self._before.values():
            layer._losses[:] = losses
            layer._loss_ids.clear()
            layer._loss_ids.update(identities)


def _keep_and_clear_losses(layer: keras.layers.Layer) -> None:
    scope = get_stateless_scope()
    while scope is not None and not isinstance(scope, _NestedScope):
        scope = scope.original_scope
    if scope is not None:
        scope.keep_losses(layer)
    _clear_losses(layer)


_clear_losses = keras.layers.Layer._clear_losses
_patch = Patch((keras.layers.Layer, "_clear_losses", _keep_and_clear_losses))


@contextlib.contextmanager
def substitute_values(values: Iterable[tuple[keras.Variable, Tensor]] = ()) -> Iterator[dict[int, keras.Variable]]:
    """Evaluate layers at given values of variables, without changing the layers.

    Updates of variables (moving averages, states of random generators, metrics) are discarded. Inside the context,
    `model.losses` contains the losses of the calls inside. After the context it has its previous value.

    Args:
        values: pairs (variable, tensor) of variables with other values inside the context.

    Yields:
        The other variables that are read inside the context, by identity. It is filled during the context.
    """
    others: dict[int, keras.Variable] = {}
    with _patch, _NestedScope(values, others):
        yield others


@contextlib.contextmanager
def kept_training_state(model: keras.Model) -> Iterator[None]:
    """Restore weights, metrics, optimizer, compiled functions and other attributes of a model at the end.

    Compiled metrics are left out inside of the context.
    """
    attributes, metrics = dict(vars(model)), list(model._metrics)
    variables = [*model.variables, *model.metrics_variables]
    values = [keras.ops.convert_to_numpy(variable) for variable in variables]
    if attributes.get("_compile_metrics") is not None:
        model._compile_metrics = None
    try:
        yield
    finally:
        # By `setattr`, so that TensorFlow's checkpoints contain the old objects again.
        for name in list(vars(model)):
            if name not in attributes:
                delattr(model, name)
            elif vars(model)[name] is not attributes[name]:
                setattr(model, name, attributes[name])
                # TensorFlow wraps dicts.
                model.__dict__[name] = attributes[name]
        model._metrics[:] = metrics
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
