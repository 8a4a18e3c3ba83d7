"""Losses of data in batches, as Keras computes them on all data as one batch.

The loss is that of all data as one batch, for any division into batches of equal or unequal sizes: for each output the
sum of Keras' sums over the batches, divided by what all batches count. Keras assigns losses, weights and labels to the
outputs, see `idmatters_tf._keras_internals.losses`, and applies masks and sample weights.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import keras
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Loss, Structure, Tensor


@dataclasses.dataclass(frozen=True)
class ModelLoss:
    """Loss of a model and a batch, for losses that are no function of labels and outputs.

    Args:
        function: function (model, batch) -> loss, a scalar tensor, the mean over the batch. The batch is that of the
            data: (x, y), (x, y, sample_weight) or x.
    """

    function: Callable[[keras.Model, Structure], Tensor]


@dataclasses.dataclass(frozen=True)
class Term:
    """Loss of one output.

    Attributes:
        loss: a loss of labels and outputs, whose sums Keras computes. Its reduction determines the divisor.
        weight: factor in the sum over the outputs.
        is_mean: True if the loss returns one number for a batch, the mean over its examples.
        couples_examples: True if the loss couples the examples of a batch and cannot be summed over batches.
    """

    loss: keras.losses.Loss
    weight: float = 1.0
    is_mean: bool = False
    couples_examples: bool = False

    def values(self, y: Structure, output: Structure) -> Tensor:
        """Return the values of the loss without masks and sample weights, a scalar if it `is_mean`."""
        return ops.convert_to_tensor(self.loss.call(*_cast((y, output), loss_dtype(output))))

    def total(self, y: Structure, output: Structure, weights: Structure, examples: Tensor) -> Tensor:
        """Return the sum over a batch of so many examples, a scalar in the dtype of `loss_dtype`."""
        if self.is_mean:
            value = self.values(y, output)
            return value * ops.cast(examples, value.dtype)
        return _Reduced(self.loss, "sum", loss_dtype(output))(y, output, weights)

    def divisor(self, y: Structure, output: Structure, weights: Structure, examples: Tensor) -> Tensor:
        """Return the number by which Keras divides the sum over a batch, 0 if it has no unmasked values."""
        if self.is_mean:
            return examples
        given = weights if self.loss.reduction == "mean_with_sample_weight" else None
        total, reduced = (
            _Reduced(self.loss, reduction, loss_dtype(output), of_ones=True)(y, output, given)
            for reduction in ("sum", self.loss.reduction)
        )
        return ops.divide_no_nan(total, _keras_internals.for_one_replica(reduced))

    def factor(self, divisor: float) -> float:
        """Return the factor of the sum over the data in the loss, for the sum of the divisors."""
        is_sum = self.loss.reduction == "sum" and not self.is_mean
        return self.weight if is_sum else self.weight / divisor


class _Reduced(keras.losses.Loss):
    """Reduction by Keras of a loss, or of ones in place of its values, with masks and sample weights.

    Args:
        loss: the loss.
        reduction: the reduction.
        dtype: dtype of the computation.
        of_ones: True for ones.
    """

    def __init__(self, loss: keras.losses.Loss, reduction: str, dtype: str, of_ones: bool = False):
        super().__init__(name="reduced", reduction=reduction, dtype=dtype)
        self._loss, self._of_ones = loss, of_ones

    def call(self, y_true: Structure, y_pred: Structure) -> Tensor:
        values = self._loss.call(y_true, y_pred)
        if not self._of_ones:
            return values
        ones: Tensor = ops.ones_like(values)
        # Labels of `ignore_class` do not count, nor do pairs without a loss in `Circle`.
        _keras_internals.set_mask(ones, _keras_internals.get_mask(values))
        return ones


class _FunctionLoss(keras.losses.Loss):
    """Mean of a function of labels and outputs in any structure."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__(name="function")
        self._function = function

    def call(self, y_true: Structure, y_pred: Structure) -> Tensor:
        return self._function(y_true, y_pred)


class DataLoss:
    """Loss of the labels and the model's outputs, or of the model and the batch.

    Args: see `idmatters_tf.curvature.HessianOperator`.

    Attributes:
        takes_model: True for a loss of the model and the batch.
        is_compute_loss: True for the model's `compute_loss`, which includes the penalties.
        terms: one `Term` for each output with a loss. Losses of the outputs have terms after `build`.
    """

    def __init__(self, model: keras.Model, loss: Loss | ModelLoss):
        self._loss = None if isinstance(loss, ModelLoss) else loss
        self.is_compute_loss = loss is None and _keras_internals.overrides_compute_loss(model)
        if loss is None and not self.is_compute_loss and not _keras_internals.has_compiled_loss(model):
            raise ValueError(
                f"Argument `loss` is required: the model {model.name!r} was not compiled with a loss. Pass a Keras "
                f"loss, a callable loss(y, outputs), or ModelLoss(loss) for a callable loss(model, batch)."
            )
        self._of_model = loss.function if isinstance(loss, ModelLoss) else None
        self._function = loss if callable(loss) and not isinstance(loss, keras.losses.Loss) else None
        self.takes_model = self.is_compute_loss or self._of_model is not None
        value = _FunctionLoss(lambda _, value: value)
        self.terms: tuple[Term, ...] = (Term(value, is_mean=True),) if self.takes_model else ()
        self._compiled: _keras_internals.CompiledLosses | None = None
        self._model_name = model.name

    def __repr__(self) -> str:
        if self.is_compute_loss:
            return f"compute_loss of {self._model_name!r}"
        losses = [term.loss for term in self.terms]
        functions = [self._function or _keras_internals.loss_function(loss) or loss for loss in losses]
        names = [getattr(function, "__name__", type(function).__name__) for function in functions]
        return names[0] if len(names) == 1 else f"[{', '.join(names)}]"

    @property
    def coupling(self) -> str | None:
        """Subject of an error message, if a term couples the examples of a batch; None otherwise."""
        return f"The loss {self!r}" if any(term.couples_examples for term in self.terms) else None

    def build(self, model: keras.Model, batch: Structure, outputs: Structure) -> None:
        """Determine the terms of a loss of the outputs from a batch and the model's outputs for it.

        Raises:
            ValueError: there are no labels, Keras cannot compute the loss, or the loss overrides `__call__`, has no
                reduction, or returns a scalar for a batch with sample weights.
        """
        _, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if self._function is not None and y is None:
            raise ValueError(
                "Argument `data` must contain labels for loss(y, outputs). Received: inputs alone. Pass (x, y), or "
                "ModelLoss(loss) for loss(model, batch)."
            )
        if self._function is not None and (keras.tree.is_nested(outputs) or keras.tree.is_nested(y)):
            terms = [Term(_FunctionLoss(self._function))]
        else:
            with _errors_of_keras(model):
                self._compiled = _keras_internals.CompiledLosses(model, self._loss, y, outputs, weights)
            terms = [Term(*part) for part in self._compiled.terms]
            if not terms:
                raise ValueError(
                    f"Argument `loss` must contain a loss with a non-zero weight for at least one output of "
                    f"{model.name!r}. Received: loss={self._loss!r}"
                )
        pairs = zip(terms, self._parts(batch, outputs), strict=True)
        self.terms = tuple(_completed(term, *part) for term, part in pairs)

    def totals(self, batch: Structure, outputs: Structure) -> list[Tensor]:
        """Return the sum of each term over a batch. The outputs are the value of a loss that `takes_model`."""
        parts = zip(self.terms, self._parts(batch, outputs), strict=True)
        return [term.total(*part, _examples(batch)) for term, part in parts]

    def divisors(self, batch: Structure, outputs: Structure) -> list[Tensor]:
        """Return the divisor of each term for a batch. The loss of the data is that of the sums of both."""
        parts = zip(self.terms, self._parts(batch, outputs), strict=True)
        return [term.divisor(*part, _examples(batch)) for term, part in parts]

    def _parts(self, batch: Structure, outputs: Structure) -> list[tuple[Structure, Structure, Structure]]:
        """Return (labels, output, sample weights) of each term; the value in place of the output if `takes_model`."""
        if self.takes_model:
            return [(None, outputs, None)]
        _, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        return [(y, outputs, weights)] if self._compiled is None else self._compiled.split(y, outputs, weights)

    def evaluate(self, model: keras.Model, batch: Structure, training: bool) -> Tensor:
        """Return the value of a loss of the model and the batch, a scalar."""
        if self._of_model is not None:
            value = self._of_model(model, batch)
        else:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
            outputs = model(x, training=training)
            x, y, weights = _cast((x, y, weights), loss_dtype(outputs), floats_only=True)
            with _errors_of_keras(model):
                value = _keras_internals.compute_loss(model, x, y, outputs, weights, training)
        if not ops.is_tensor(value) or len(value.shape):
            raise ValueError(
                f"A loss of the model and the batch must return a scalar tensor, the mean over the batch. Received: "
                f"{f'shape {tuple(value.shape)}' if ops.is_tensor(value) else repr(value)}"
            )
        return value

    def factors(self, divisors: Sequence[float]) -> list[float]:
        """Return the factor of each term's sum over the data, for the sums of the `divisors` of all batches."""
        if not all(divisor > 0 for divisor in divisors):
            raise ValueError(
                f"Argument `data` must contain unmasked elements, and sample weights with a positive sum. Received: "
                f"sums of {', '.join(f'{divisor:g}' for divisor in divisors)}"
            )
        return [term.factor(divisor) for term, divisor in zip(self.terms, divisors, strict=True)]


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


def _completed(term: Term, y: Structure, output: Structure, weights: Structure) -> Term:
    """Return a term with its kind, from a batch. Raise ValueError if Keras cannot compute its sums over batches."""
    loss = term.loss
    has_call = type(loss).__call__ is not keras.losses.Loss.__call__
    if has_call or loss.reduction in (None, "none"):
        received = "a `__call__` of its own" if has_call else f"reduction={loss.reduction!r}"
        raise ValueError(
            f"Argument `loss` must be reduced by Keras, as by 'sum_over_batch_size'. Received: "
            f"{type(loss).__name__} with {received}. Pass ModelLoss(loss) of a function loss(model, batch)."
        )
    is_mean = not len(term.values(y, output).shape)
    is_masked = _keras_internals.get_mask(output) is not None
    if is_mean and (weights is not None or (is_masked and loss.reduction == "sum")):
        raise ValueError(
            "Argument `loss` must return a value for each example with sample weights or with a mask and "
            "reduction='sum'. Received: a scalar for a batch."
        )
    couples = _keras_internals.couples_examples(loss, output)
    return dataclasses.replace(term, is_mean=is_mean, couples_examples=couples)


def _examples(batch: Structure) -> Tensor:
    """Return the number of examples in a batch of tensors."""
    first: Tensor = next(part for part in keras.tree.flatten(batch) if part is not None)
    shape: Tensor = ops.shape(first)
    return shape[0]


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
