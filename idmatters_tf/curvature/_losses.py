"""Losses of batches: values for examples or elements, and the factors that combine them over all data.

The loss is that of all data as one batch, for any division into batches of equal or unequal sizes. Keras assigns
losses, weights and labels to outputs, see `idmatters_tf._keras_internals.losses`. Masks, sample weights and reductions
are those of `keras.losses.Loss`.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Tensor

# Losses of probabilities unless `from_logits` is set: of several classes, and binary.
CATEGORICAL = ("categorical_crossentropy", "sparse_categorical_crossentropy", "categorical_focal_crossentropy")
BINARY = ("binary_crossentropy", "binary_focal_crossentropy")
# Losses that are quotients of sums over the examples of a batch.
COUPLING = ("dice", "tversky")


@dataclasses.dataclass(frozen=True)
class Term:
    """Loss of one output.

    Attributes:
        loss: a Keras loss, or a callable of labels and outputs.
        weight: factor in the sum over the outputs.
        is_scalar: True if the loss returns one number for a batch, the mean over its examples.
    """

    loss: Any
    weight: float = 1.0
    is_scalar: bool = False

    @property
    def reduction(self) -> str:
        """Reduction of the elements to one number: "mean", "sum", "mean_with_sample_weight" or "none"."""
        if self.is_scalar or not isinstance(self.loss, keras.losses.Loss):
            return "mean"
        if self.is_opaque:
            return "none"
        return {"sum_over_batch_size": "mean", None: "none"}.get(self.loss.reduction, self.loss.reduction)

    @property
    def is_opaque(self) -> bool:
        """True for a loss with its own `__call__`, which handles sample weights and masks."""
        return isinstance(self.loss, keras.losses.Loss) and type(self.loss).__call__ is not keras.losses.Loss.__call__

    @property
    def expects(self) -> str | None:
        """Kind of probabilities that the loss expects, "categorical" or "binary", or None for other losses."""
        function = _keras_internals.plain_function(self.loss)
        if function is None and isinstance(self.loss, keras.losses.Loss):
            # Keras 3.16 stores it only in the configuration.
            if self.loss.get_config().get("from_logits", getattr(self.loss, "from_logits", False)):
                return None
            function = getattr(self.loss, "fn", None)
        name = getattr(function or self.loss, "__name__", "")
        return "categorical" if name in CATEGORICAL else "binary" if name in BINARY else None

    @property
    def couples_examples(self) -> bool:
        """True if the loss couples the examples of a batch and cannot be summed over batches."""
        if isinstance(self.loss, (keras.losses.Dice, keras.losses.Tversky)):
            return self.loss.axis is None or 0 in keras.tree.flatten(self.loss.axis)
        return self.counts_by_outputs or _function_name(self.loss) in COUPLING

    @property
    def counts_by_outputs(self) -> bool:
        """True if the counted elements depend on the outputs, as in Keras' `Circle`."""
        return isinstance(self.loss, keras.losses.Circle) or _function_name(self.loss) == "circle"

    def elements(self, y: Any, output: Any, weights: Any, dtype: str | None = None) -> "Elements":
        """Return the values of the loss on a batch, with their mask and sample weights.

        Args:
            y: labels of the batch.
            output: output of the model.
            weights: sample weights.
            dtype: dtype of the computation; if None, that of the output, but at least float32, because bfloat16 cannot
                represent the labels of more than 256 classes. (`Loss.__call__` would round to the dtype of the loss,
                float32 by default.)
        """
        dtype = dtype or loss_dtype(output)
        if self.is_opaque:
            return Elements(_check_values(self.loss(y, output, weights)), None, None)
        function = self.loss.call if isinstance(self.loss, keras.losses.Loss) else self.loss
        values = _check_values(function(cast(y, dtype), cast(output, dtype)))
        # Labels of `ignore_class` do not count, nor do pairs without a loss in `Circle`.
        mask, counted = _keras_internals.get_mask(output), _keras_internals.get_mask(values)
        if counted is not None:
            mask = counted if mask is None else ops.logical_and(mask, counted)
        if not _rank(values):
            if weights is not None or (mask is not None and self.reduction != "mean"):
                raise ValueError(no_example_losses(values))
            return Elements(values, None, None)
        if weights is not None and mask is not None:
            mask, weights = _align(mask, ops.cast(weights, dtype), "sample weights", "the mask")
        if mask is not None:
            values, mask = _align(values, mask, "a mask", "the loss")
        if weights is not None:
            values, weights = _align(values, ops.cast(weights, dtype), "sample weights", "the loss")
        return Elements(values, mask, weights)

    def divisor(self, total: float, unmasked: float, weight: float) -> float:
        """Return the divisor of the sum of the elements, given the sums of `Elements.counts`."""
        return {"mean": unmasked, "none": total, "sum": 1.0, "mean_with_sample_weight": weight}[self.reduction]


@dataclasses.dataclass(frozen=True)
class Elements:
    """Values of a loss on a batch, (batch, ...) or a scalar, with mask and weights of the same rank."""

    values: Tensor
    mask: Tensor | None
    weights: Tensor | None

    def scaled(self, dtype: str, weighted: bool = True) -> Tensor:
        """Return the values times mask and weights."""
        values: Tensor = ops.cast(self.values, dtype)
        if self.mask is not None:
            zeros: Tensor = ops.zeros_like(values)
            values = ops.where(ops.cast(self.mask, "bool"), values, zeros)
        if self.weights is not None and weighted:
            values = values * ops.cast(self.weights, dtype)
        return values

    def counts(self, count: Tensor, dtype: str) -> Tensor:
        """Return (number of elements, number of unmasked elements, sum of weights).

        The sums over the data determine the factor of the term.
        """
        if not _rank(self.values):
            return ops.stack([count, count, count])
        total: Tensor = ops.cast(ops.size(self.values), dtype)
        unmasked, weight = total, total
        mask = None if self.mask is None else ops.cast(self.mask, dtype)
        weights = None if self.weights is None else ops.cast(self.weights, dtype)
        if mask is not None:
            size: Tensor = ops.cast(ops.size(mask), dtype)
            unmasked = ops.sum(mask) * (total / size)
        if mask is not None or weights is not None:
            product: Tensor = mask if weights is None else weights
            weight = ops.sum(product if mask is None or weights is None else mask * weights)
        return ops.stack([total, unmasked, weight])


@dataclasses.dataclass(frozen=True)
class Batch:
    """Batch in the format of `model.fit`; missing parts are None."""

    x: Any
    y: Any = None
    weights: Any = None


class DataLoss:
    """Loss of the labels and the model's outputs, or of the model and the batch.

    Args:
        model: model with the compiled loss, or an overridden `compute_loss`, for `loss=None`.
        loss: a Keras loss or its name; a dict or list of these by output, as in `model.compile`; a callable
            `loss(y, outputs)` that returns either a value for each example (with the batch as the first axis) or a
            scalar, the mean over the batch; or a callable `loss(model, batch)`, with a first parameter named `model`,
            that returns a scalar, the mean over the batch.

    Attributes:
        takes_model: True for a loss of the model and the batch.
        is_compute_loss: True for the model's `compute_loss`, which includes the penalties.
        terms: one `Term` for each output with a loss. Losses of the outputs have terms after `build`.
        keras_value: value of Keras on the batch of `build`; None for losses that Keras cannot compute.
    """

    def __init__(self, model: keras.Model, loss: Any):
        self._loss: Any = loss
        self.is_compute_loss = loss is None and _keras_internals.overrides_compute_loss(model)
        if loss is None and not self.is_compute_loss and not _keras_internals.has_compiled_loss(model):
            raise ValueError(
                f"Argument `loss` is required: the model {model.name!r} was not compiled with a loss. Pass a Keras "
                f"loss, a callable loss(y, outputs), or a callable loss(model, batch)."
            )
        for part in keras.tree.flatten(loss):
            if not (part is None or isinstance(part, (str, keras.losses.Loss)) or callable(part)):
                raise ValueError(
                    f"Argument `loss` must be a Keras loss or its name, a dict or list of these by output, a callable "
                    f"loss(y, outputs), or a callable loss(model, batch). Received: loss={loss!r}"
                )
        self._is_function = callable(loss) and not isinstance(loss, keras.losses.Loss)
        self.takes_model = self.is_compute_loss or (self._is_function and _first_parameter(self._loss) == "model")
        self.terms: tuple[Term, ...] = (Term(_second, is_scalar=True),) if self.takes_model else ()
        self.keras_value: float | None = None
        self._compiled: _keras_internals.CompiledLosses | None = None
        self._model_name = model.name

    def __repr__(self) -> str:
        if self.is_compute_loss:
            return f"compute_loss of {self._model_name!r}"
        named = [_loss_name(self._loss if self.takes_model else term.loss) for term in self.terms]
        return named[0] if len(named) == 1 else f"[{', '.join(named)}]"

    def build(self, model: keras.Model, batch: Any, outputs: Any) -> None:
        """Determine the terms of a loss of the outputs from a batch and the model's outputs for it.

        Raises:
            ValueError: if Keras cannot compute the loss, or labels, sample weights or values do not fit.
        """
        batch = split_batch(batch)
        y, weights = cast((batch.y, batch.weights), loss_dtype(outputs), floats_only=True)
        if self._is_function:
            aligned = batch.y is not None and not keras.tree.is_nested(outputs) and not keras.tree.is_nested(y)
            self.terms = (Term(_keras_internals.wrapped_function(self._loss) if aligned else self._loss),)
        else:
            if batch.y is None:
                raise ValueError(
                    "Argument `data` must contain batches (x, y) or (x, y, sample_weight) for this loss. Received: "
                    "batches without labels. Pass arrays as a tuple (x, y), because a list is a list of batches."
                )
            try:
                self._compiled = _keras_internals.CompiledLosses(
                    model, self._loss, y, outputs, weights, loss_dtype(outputs)
                )
            except Exception as error:
                raise ValueError(_keras_error_message(model, error, y, outputs, weights)) from error
            self.keras_value = self._compiled.value
            pairs = zip(self._compiled.losses, self._compiled.weights, strict=True)
            self.terms = tuple(Term(loss, weight) for loss, weight in pairs)
            if not self.terms:
                raise ValueError(
                    f"Argument `loss` must contain a loss with a non-zero weight for at least one output of "
                    f"{model.name!r}. Received: loss={self._loss!r}"
                )
        parts = self.parts(Batch(batch.x, y, weights), outputs)
        self.terms = tuple(
            dataclasses.replace(term, is_scalar=not _rank(term.elements(*part).values))
            for term, part in zip(self.terms, parts, strict=True)
        )

    def parts(self, batch: Any, outputs: Any) -> list[tuple[Any, Any, Any]]:
        """Return (labels, output, sample weights) of each term; the value in place of the output if `takes_model`."""
        if self.takes_model:
            return [(None, outputs, None)]
        batch = split_batch(batch)
        y, weights = cast((batch.y, batch.weights), loss_dtype(outputs), floats_only=True)
        return [(y, outputs, weights)] if self._compiled is None else self._compiled.split(y, outputs, weights)

    def value_in_dtype_of_keras(self, batch: Any, outputs: Any) -> tuple[float, float, float]:
        """Return (value, size, eps) of the loss of a single batch, for a comparison with `keras_value`.

        Each loss is computed in its own dtype, as in Keras. `size` is the sum of the magnitudes of the terms, and `eps`
        their rounding.
        """
        value, size, eps = 0.0, 0.0, 2.0**-23
        for term, part in zip(self.terms, self.parts(batch, outputs), strict=True):
            elements = term.elements(*part, dtype=term.loss.dtype)
            scaled = np.asarray(ops.convert_to_numpy(elements.scaled("float32")), np.float64)
            counts: Any = ops.convert_to_numpy(elements.counts(ops.ones((), "float32"), "float32"))
            divisor = term.divisor(*map(float, counts))
            # In Keras, the mean of no elements is 0.
            factor = term.weight / divisor if divisor else 0.0
            value, size = value + factor * scaled.sum(), size + abs(factor) * float(np.abs(scaled).sum())
            eps = eps if term.loss.dtype in ("float32", "float64") else 2.0**-7
        return value, size, eps

    def evaluate(self, model: keras.Model, batch: Any, training: bool) -> Tensor:
        """Return the value of a loss of the model and the batch, a scalar."""
        if self.is_compute_loss:
            parts = split_batch(batch)
            outputs = model(parts.x, training=training)
            x, y, weights = cast((parts.x, parts.y, parts.weights), loss_dtype(outputs), floats_only=True)
            try:
                value = _keras_internals.compute_loss(model, x, y, outputs, weights, training)
            except Exception as error:
                raise ValueError(_keras_error_message(model, error, y, outputs, weights)) from error
        else:
            value = self._loss(model, batch)
        if not ops.is_tensor(value) or _rank(value):
            what = "`compute_loss` of the model" if self.is_compute_loss else "Argument `loss`, a callable of the model"
            raise ValueError(
                f"{what} and the batch, must return a scalar tensor, the mean over the batch. Received: "
                f"{_describe(value)}"
            )
        return value

    def factors(self, counts: Sequence[Sequence[float]]) -> list[float]:
        """Return the factor of each term's sum over the data, including its weight.

        Args:
            counts: sums of `Elements.counts` over the data, for each term.
        """
        factors = []
        for term, (total, unmasked, weight) in zip(self.terms, counts, strict=True):
            if not total:
                raise ValueError("Argument `data` must contain at least one example. Received: empty data.")
            if not unmasked > 0:
                raise ValueError("Argument `data` must have unmasked elements. Received: data that are fully masked.")
            if not weight > 0:
                raise ValueError(
                    f"Argument `data` must have a positive sum of sample weights. Received: sample weights that sum to "
                    f"{weight:g}"
                )
            factors.append(term.weight / term.divisor(total, unmasked, weight))
        return factors


def split_batch(batch: Any) -> Batch:
    """Return the parts of a batch `x`, `(x, y)` or `(x, y, sample_weight)`."""
    if isinstance(batch, Batch):
        return batch
    if not isinstance(batch, (tuple, list)):
        return Batch(batch)
    if len(batch) > 3:
        raise ValueError(
            f"Argument `data` must contain batches (x, y) or (x, y, sample_weight). Received: {len(batch)} parts. "
            f"Combine several inputs into one tuple or dict: ((x1, x2), y)."
        )
    return Batch(*batch)


def loss_dtype(outputs: Any) -> str:
    """Return the dtype in which the loss of outputs is computed, that of the outputs but at least float32."""
    dtype = keras.backend.standardize_dtype(keras.tree.flatten(outputs)[0].dtype)
    return "float64" if dtype == "float64" else "float32"


def cast(structure: Any, dtype: str, floats_only: bool = False) -> Any:
    """Return tensors cast to a dtype, as losses do; with `floats_only`, integers stay as in `fit`."""

    def leaf(part: Any) -> Any:
        part = None if part is None else ops.convert_to_tensor(part)
        keep = part is None or (floats_only and not _is_float(part))
        return part if keep else ops.cast(part, dtype)

    return keras.tree.map_structure(leaf, structure)


def _describe(value: Any) -> str:
    """Return the shape and dtype of a tensor in words."""
    if not ops.is_tensor(value):
        return repr(value)
    return f"a tensor of shape {tuple(value.shape)}, {keras.backend.standardize_dtype(value.dtype)}"


def no_example_losses(values: Tensor) -> str:
    """Return the message for a loss that returns a mean where values for each example are required."""
    return (
        f"Argument `loss` must return a value for each example with sample weights and for the Fisher matrix. "
        f"Received: a loss of shape {tuple(values.shape)} for a batch."
    )


def _keras_error_message(model: keras.Model, error: Exception, y: Any, outputs: Any, weights: Any) -> str:
    shapes = [
        keras.tree.map_structure(lambda part: None if part is None else tuple(part.shape), structure)
        for structure in (outputs, y, weights)
    ]
    reason = textwrap.shorten(" ".join(str(error).split()), 300)
    return (
        f"Keras cannot compute the loss of {model.name!r} on a batch: {type(error).__name__}: {reason} Received: "
        f"outputs {shapes[0]}, labels {shapes[1]}, sample weights {shapes[2]}. Use the formats of `model.compile` and "
        f"`model.fit`."
    )


def _check_values(values: Any) -> Tensor:
    if not ops.is_tensor(values) or not _is_float(values):
        raise ValueError(
            f"Argument `loss` must return a tensor of floating-point numbers. Received: {_describe(values)}"
        )
    return values


def _align(values: Tensor, other: Tensor, name: str, of: str) -> tuple[Tensor, Tensor]:
    """Return both tensors with the same rank, as Keras' losses do.

    Raises:
        ValueError: if broadcasting would multiply entries of different examples.
    """
    first, second = _keras_internals.same_rank(values, other)
    sizes = zip(first.shape, second.shape, strict=False)
    if _rank(first) != _rank(second) or any(b not in (a, 1) for a, b in sizes if None not in (a, b)):
        raise ValueError(
            f"Argument `data` must have one weight for each entry, or (examples, 1, ...) with as many axes. Received: "
            f"{name} of shape {tuple(other.shape)} for {of} of shape {tuple(values.shape)}"
        )
    return first, second


def _rank(tensor: Tensor) -> int:
    return len(tensor.shape)


def _is_float(tensor: Tensor) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))


def _second(_: Any, value: Tensor) -> Tensor:
    return value


def _first_parameter(function: Callable[..., Any]) -> str | None:
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None


def _function_name(loss: Any) -> str:
    return getattr(_keras_internals.plain_function(loss) or loss, "__name__", "")


def _loss_name(loss: Any) -> str:
    name = _function_name(loss)
    if name or not isinstance(loss, keras.losses.Loss):
        return name or repr(loss)
    shown = {name: value for name, value in loss.get_config().items() if name in ("from_logits", "reduction")}
    return f"{type(loss).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
