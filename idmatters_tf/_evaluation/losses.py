"""Losses of batches: values for examples or elements, and the factors that combine them over all data.

The loss is that of all data as one batch, for any division into batches of equal or unequal sizes. Keras assigns
losses, weights and labels to outputs and applies masks and sample weights, see `idmatters_tf._keras_internals.losses`.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Loss, Structure, Tensor


@dataclasses.dataclass(frozen=True)
class Term:
    """Loss of one output.

    Attributes:
        loss: a Keras loss, or a callable of labels and outputs.
        weight: factor in the sum over the outputs.
        reduction: reduction of the elements to one number, "mean", "sum", "mean_with_sample_weight" or "none". A loss
            that returns one number for a batch is a mean over its examples.
        couples_examples: True if the loss couples the examples of a batch and cannot be summed over batches.
    """

    loss: Callable[..., Tensor]
    weight: float = 1.0
    reduction: str = "mean"
    couples_examples: bool = False

    @property
    def expects_probabilities(self) -> bool:
        """True for a loss with an argument `from_logits` that is False."""
        function = _keras_internals.plain_function(self.loss)
        if function is not None:
            argument = inspect.signature(function).parameters.get("from_logits")
            return argument is not None and argument.default is False
        return isinstance(self.loss, keras.losses.Loss) and self.loss.get_config().get("from_logits") is False

    def elements(self, y: Structure, output: Structure, weights: Structure, dtype: str) -> tuple[Tensor, Tensor | None]:
        """Return (values, divisor) of a batch: the loss times mask and sample weights, in a dtype, (batch, ...).

        A loss that returns one number for a batch gives a scalar and None. The sum of the values over all data, divided
        by the sum of the divisors, is the loss. The computation is in the dtype of the output, but at least float32,
        because bfloat16 cannot represent the labels of more than 256 classes. (`Loss.__call__` would round to the dtype
        of the loss, float32 by default.)
        """
        is_loss = isinstance(self.loss, keras.losses.Loss)
        if is_loss and type(self.loss).__call__ is not keras.losses.Loss.__call__:
            # The loss handles masks and sample weights itself.
            values: Tensor = self.loss(y, output, weights)
            mask = weights = None
        else:
            function = getattr(self.loss, "call", self.loss) if is_loss else self.loss
            # A cast removes the mask of the output.
            given = output
            y, output = _cast((y, output), loss_dtype(output))
            values = function(y, output)
            # Labels of `ignore_class` do not count, nor do pairs without a loss in `Circle`.
            masks = [part for part in map(_keras_internals.get_mask, (given, values)) if part is not None]
            mask = ops.logical_and(masks[0], masks[-1]) if masks else None
        values = ops.cast(values, dtype)
        if not len(values.shape):
            if weights is not None or (mask is not None and self.reduction != "mean"):
                raise ValueError(
                    f"Argument `loss` must return a value for each example with sample weights. Received: a loss of "
                    f"shape {tuple(values.shape)} for a batch."
                )
            return values, None
        total: Tensor = ops.cast(ops.size(values), dtype)
        values, weights = _keras_internals.weighted(values, mask, weights, dtype)
        if self.reduction == "mean" and mask is not None:
            size: Tensor = ops.cast(ops.size(mask), dtype)
            return values, ops.sum(ops.cast(mask, dtype)) * (total / size)
        if self.reduction == "mean_with_sample_weight" and weights is not None:
            return values, ops.sum(weights)
        return values, total


class DataLoss:
    """Loss of the labels and the model's outputs, or of the model and the batch.

    Args: see `idmatters_tf.curvature.HessianOperator`.

    Attributes:
        takes_model: True for a loss of the model and the batch.
        is_compute_loss: True for the model's `compute_loss`, which includes the penalties.
        terms: one `Term` for each output with a loss. Losses of the outputs have terms after `build`.
    """

    def __init__(self, model: keras.Model, loss: Loss):
        self._loss: Any = loss
        self.is_compute_loss = loss is None and _keras_internals.overrides_compute_loss(model)
        if loss is None and not self.is_compute_loss and not _keras_internals.has_compiled_loss(model):
            raise ValueError(
                f"Argument `loss` is required: the model {model.name!r} was not compiled with a loss. Pass a Keras "
                f"loss, a callable loss(y, outputs), or a callable loss(model, batch)."
            )
        self._is_function = callable(loss) and not isinstance(loss, keras.losses.Loss)
        self.takes_model = self.is_compute_loss or (self._is_function and _first_parameter(self._loss) == "model")
        self.terms: tuple[Term, ...] = (Term(lambda _, value: value),) if self.takes_model else ()
        self._compiled: _keras_internals.CompiledLosses | None = None
        self._model_name = model.name

    def __repr__(self) -> str:
        if self.is_compute_loss:
            return f"compute_loss of {self._model_name!r}"
        losses = [self._loss] if self.takes_model else [term.loss for term in self.terms]
        functions = [_keras_internals.plain_function(loss) or loss for loss in losses]
        names = [getattr(function, "__name__", type(function).__name__) for function in functions]
        return names[0] if len(names) == 1 else f"[{', '.join(names)}]"

    @property
    def coupling(self) -> str | None:
        """Subject of an error message, if a term couples the examples of a batch; None otherwise."""
        return f"The loss {self!r}" if any(term.couples_examples for term in self.terms) else None

    def build(self, model: keras.Model, batch: Structure, outputs: Structure) -> None:
        """Determine the terms of a loss of the outputs from a batch and the model's outputs for it.

        Raises:
            ValueError: if Keras cannot compute the loss, or it returns a scalar for a batch with sample weights.
        """
        _, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if self._is_function and (y is None or keras.tree.is_nested(outputs) or keras.tree.is_nested(y)):
            terms = [Term(self._loss)]
        else:
            with _errors_of_keras(model):
                self._compiled = _keras_internals.CompiledLosses(model, self._loss, y, outputs, weights)
            terms = [Term(*part) for part in self._compiled.terms]
            if not terms:
                raise ValueError(
                    f"Argument `loss` must contain a loss with a non-zero weight for at least one output of "
                    f"{model.name!r}. Received: loss={self._loss!r}"
                )
        for index, part in enumerate(self.parts(batch, outputs)):
            term = terms[index]
            couples = _keras_internals.couples_examples(term.loss, part[1])
            is_mean = term.elements(*part, loss_dtype(outputs))[1] is None
            reduction = "mean" if is_mean else term.reduction
            terms[index] = dataclasses.replace(term, reduction=reduction, couples_examples=couples)
        self.terms = tuple(terms)

    def parts(self, batch: Structure, outputs: Structure) -> list[tuple[Structure, Structure, Structure]]:
        """Return (labels, output, sample weights) of each term; the value in place of the output if `takes_model`."""
        if self.takes_model:
            return [(None, outputs, None)]
        _, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        return [(y, outputs, weights)] if self._compiled is None else self._compiled.split(y, outputs, weights)

    def evaluate(self, model: keras.Model, batch: Structure, training: bool) -> Tensor:
        """Return the value of a loss of the model and the batch, a scalar."""
        if self.is_compute_loss:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
            outputs = model(x, training=training)
            x, y, weights = _cast((x, y, weights), loss_dtype(outputs), floats_only=True)
            with _errors_of_keras(model):
                value = _keras_internals.compute_loss(model, x, y, outputs, weights, training)
        else:
            value = self._loss(model, batch)
        if not ops.is_tensor(value) or len(value.shape):
            raise ValueError(
                f"A loss of the model and the batch must return a scalar tensor, the mean over the batch. Received: "
                f"{f'shape {tuple(value.shape)}' if ops.is_tensor(value) else repr(value)}"
            )
        return value

    def factors(self, divisors: Sequence[float]) -> list[float]:
        """Return the factor of each term's sum over the data, for the sums of the divisors of `Term.elements`."""
        if not all(divisor > 0 for divisor in divisors):
            raise ValueError(
                f"Argument `data` must contain unmasked elements, and sample weights with a positive sum. Received: "
                f"sums of {', '.join(f'{divisor:g}' for divisor in divisors)}"
            )
        pairs = zip(self.terms, divisors, strict=True)
        return [term.weight / (1.0 if term.reduction == "sum" else divisor) for term, divisor in pairs]


def loss_dtype(outputs: Structure) -> str:
    """Return the dtype in which the loss of outputs is computed, that of the outputs but at least float32."""
    dtype = keras.backend.standardize_dtype(keras.tree.flatten(outputs)[0].dtype)
    return "float64" if dtype == "float64" else "float32"


def check_single_batch(coupling: str | None, sizes: Sequence[int]) -> None:
    """Raise ValueError if something, the subject of the message, couples the examples of batches of given sizes."""
    if coupling and len(sizes) > 1:
        raise ValueError(
            f"{coupling} couples the examples of a batch and requires a single batch. Received: data in {len(sizes)} "
            f"batches. Pass batch_size={sum(sizes)} for arrays, otherwise one batch of {sum(sizes)} examples."
        )


def _cast(structure: Structure, dtype: str, floats_only: bool = False) -> Structure:
    """Return tensors cast to a dtype, as losses do; with `floats_only`, integers stay as in `fit`."""

    def leaf(part: Tensor | None) -> Tensor | None:
        part = None if part is None else ops.convert_to_tensor(part)
        keep = part is None or (
            floats_only and not keras.backend.is_float_dtype(keras.backend.standardize_dtype(part.dtype))
        )
        return part if keep else ops.cast(part, dtype)

    return keras.tree.map_structure(leaf, structure)


@contextlib.contextmanager
def _errors_of_keras(model: keras.Model) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"Keras cannot compute the loss of {model.name!r} on a batch: {type(error).__name__}: "
            f"{' '.join(str(error).split())} Use the formats of `model.compile` and `model.fit`. Pass arrays as a "
            f"tuple (x, y), because a list is a list of batches."
        ) from error


def _first_parameter(function: Callable[..., Tensor]) -> str | None:
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None
