"""Internals of Keras for losses: compiled losses, and their labels and weights."""

from collections.abc import Callable
from typing import Any

import keras

from idmatters_tf._keras_internals.keras_source import CompileLoss, LossFunctionWrapper, data_adapters, loss_functions
from idmatters_tf._keras_types import Loss, Structure, Tensor

# Losses that are quotients of sums over the examples of a batch by default, or sums over pairs of examples.
_COUPLING = (keras.losses.Circle, keras.losses.Dice, keras.losses.Tversky)
_COUPLING_FUNCTIONS = (keras.losses.circle, keras.losses.dice, keras.losses.tversky)


def has_compiled_loss(model: keras.Model) -> bool:
    """Return True if the model was compiled with a loss."""
    return getattr(model, "_compile_loss", None) is not None


def overrides_compute_loss(model: keras.Model) -> bool:
    """Return True if `compute_loss` of the model is not that of `keras.Model`."""
    return "compute_loss" in vars(model) or type(model).compute_loss is not keras.Model.compute_loss


def compute_loss(
    model: keras.Model, x: Structure, y: Structure, outputs: Structure, sample_weight: Structure, training: bool
) -> Tensor:
    """Return `model.compute_loss` on a batch. An override may lack the argument `training`."""
    return model._compute_loss(x, y, outputs, sample_weight=sample_weight, training=training)


class CompiledLosses:
    """Losses of the outputs, as created by `model.compile` from its arguments `loss` and `loss_weights`.

    Keras' `CompileLoss` assigns losses, weights, labels and sample weights to the outputs. This class uses a copy of
    it, built on one batch, so that the model does not change.

    Args:
        model: model of the outputs.
        loss: argument `loss` of `model.compile`; None for the loss that the model was compiled with.
        y, outputs, sample_weight: labels, outputs and sample weights of a batch, for which Keras computes the loss.

    Attributes:
        terms: (loss, weight, reduction) of each `keras.losses.Loss` with a weight other than zero.
    """

    def __init__(self, model: keras.Model, loss: Loss, y: Structure, outputs: Structure, sample_weight: Structure):
        given = (loss, None)
        if loss is None:
            given = model._compile_loss._user_loss, model._compile_loss._user_loss_weights
        self._compiled: Any = CompileLoss(*given, output_names=getattr(model, "output_names", None))
        self._compiled(y, outputs, sample_weight)
        entries = self._compiled._flat_losses
        # Without metrics, which would be updated in `split`.
        self._compiled._metrics = [None] * len(entries)
        # Keras counts only the first of several losses of a single output.
        is_single = not keras.tree.is_nested(y) and not keras.tree.is_nested(outputs)
        weights = [1.0 if entry.loss_weights is None else float(entry.loss_weights) for entry in entries]
        self._indices = [index for index, weight in enumerate(weights[:1] if is_single else weights) if weight]
        self.terms = [(entries[index].loss, weights[index], _reduction(entries[index].loss)) for index in self._indices]

    def split(self, y: Structure, outputs: Structure, sample_weight: Structure) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the arguments (labels, outputs, sample weights) that Keras passes to each loss."""
        arguments: list[tuple[Tensor, Tensor, Tensor]] = []

        def keep(y: Tensor, output: Tensor, sample_weight: Tensor) -> Tensor:
            arguments.append((y, output, sample_weight))
            return keras.ops.zeros(())

        compiled = self._compiled
        compiled._flat_losses = [entry._replace(loss=keep, loss_weights=None) for entry in compiled._flat_losses]
        compiled(y, outputs, sample_weight)
        return [arguments[index] for index in self._indices]


def _reduction(loss: keras.losses.Loss) -> str:
    """Return "mean", "sum", "mean_with_sample_weight" or "none"; "none" for a loss with its own `__call__`."""
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        return "none"
    names: dict[str | None, str] = {"sum_over_batch_size": "mean", None: "none"}
    return names.get(loss.reduction, str(loss.reduction))


def weighted(
    values: Tensor, mask: Tensor | None, sample_weight: Tensor | None, dtype: str
) -> tuple[Tensor, Tensor | None]:
    """Return the values of a loss times mask and sample weights as in `Loss.__call__`, and these factors."""
    if sample_weight is not None:
        sample_weight = keras.ops.convert_to_tensor(sample_weight, dtype=dtype)
    factors: Tensor | None = loss_functions.apply_mask(sample_weight, mask, dtype, "sum")
    if factors is None:
        return values, None
    values, factors = loss_functions.squeeze_or_expand_to_same_rank(values, factors)
    return values * factors, factors


def checked_arrays(data: tuple[Structure, ...]) -> tuple[Structure, ...]:
    """Return a tuple of arrays of equal length, with sample weights repeated for each output as in `fit`."""
    make = data_adapters.ArrayDataAdapter
    adapter = make(*data) if len(data) == 3 else make(data)
    return adapter._inputs if len(data) == 3 else data


def plain_function(loss: object) -> Callable[..., Tensor] | None:
    """Return the function of a loss that was given as a function or by name; None for other losses."""
    return loss.fn if type(loss) is LossFunctionWrapper else None


def couples_examples(loss: object, output: Structure) -> bool:
    """Return True if a loss couples the examples of a batch, for example by a reduction over the first axis."""
    axis = getattr(loss, "_fn_kwargs", {}).get("axis")
    if axis is None:
        return isinstance(loss, _COUPLING) or (plain_function(loss) or loss) in _COUPLING_FUNCTIONS
    rank = len(keras.tree.flatten(output)[0].shape)
    return any(part == 0 or part == -rank < -1 for part in keras.tree.flatten(axis))
