"""What a loss is to this package: one number for each example or element, and how these become one for all the data.

One principle: the loss is that of all the data as if they were one batch, so that it depends neither on how they are
cut into batches, nor on whether these have equal sizes. Weights, masks and reductions are those of `keras.losses.Loss`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from idmatters_tf.keras_internals import compiled_loss, mask_of
from idmatters_tf.keras_types import Tensor

REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none", None)
# Losses that take outputs for probabilities, unless `from_logits` says otherwise: of classes, and of yes or no.
CATEGORICAL = ("categorical_crossentropy", "sparse_categorical_crossentropy", "categorical_focal_crossentropy")
BINARY = ("binary_crossentropy", "binary_focal_crossentropy")
# Losses that divide one sum over the examples of a batch by another.
JOINING = ("dice", "tversky")


@dataclasses.dataclass(frozen=True)
class Term:
    """The loss of one output.

    Attributes:
        loss: a Keras loss, or a callable.
        path: its key or index in the outputs, the labels and, where these are nested, the sample weights; None for all
            of them.
        weight: its factor in the sum over the outputs.
    """

    loss: Any
    path: int | str | None = None
    weight: float = 1.0

    @property
    def reduction(self) -> str:
        """How its elements become one number: "mean", "sum" or "mean_with_sample_weight"."""
        reduction = self.loss.reduction if isinstance(self.loss, keras.losses.Loss) else None
        if reduction not in REDUCTIONS:
            raise ValueError(f"Argument `loss` has a reduction that is not known here. Received: {reduction!r}")
        return reduction if reduction in ("sum", "mean_with_sample_weight") else "mean"

    @property
    def expects(self) -> str | None:
        """ "categorical" or "binary" where the loss takes the outputs for probabilities, else None."""
        # Keras 3.16 has it in the configuration alone.
        config = self.loss.get_config() if isinstance(self.loss, keras.losses.Loss) else {}
        if config.get("from_logits", getattr(self.loss, "from_logits", False)):
            return None
        function = getattr(self.loss, "fn", self.loss)
        name = getattr(function, "__name__", "")
        return "categorical" if name in CATEGORICAL else "binary" if name in BINARY else None

    @property
    def joins_examples(self) -> bool:
        """Whether the loss of several batches is not made of theirs, because examples of a batch are joined first."""
        if isinstance(self.loss, (keras.losses.Dice, keras.losses.Tversky)):
            return self.loss.axis is None or 0 in keras.tree.flatten(self.loss.axis)
        return self.counts_by_outputs or getattr(self.loss, "__name__", "") in JOINING

    @property
    def counts_by_outputs(self) -> bool:
        """Whether the outputs decide which elements count, as they do in Keras' `Circle`."""
        return isinstance(self.loss, keras.losses.Circle) or getattr(self.loss, "__name__", "") == "circle"

    def output(self, outputs: Any) -> Any:
        """Its part of the outputs."""
        return outputs if self.path is None else outputs[self.path]

    def elements(self, batch: "Batch", outputs: Any) -> "Elements":
        """The values of the loss on a batch, with what they are weighted by."""
        output, y = self.output(outputs), _entry(batch.y, self.path)
        mask = None if keras.tree.is_nested(output) else mask_of(output)
        if isinstance(self.loss, keras.losses.Loss):
            # `Loss.__call__` would round to the loss' own dtype, float32 by default, and reduce batch by batch. Half
            # precision goes to float32 as there: bfloat16 has not even the labels of more than 256 classes.
            dtype = keras.backend.result_type(keras.tree.flatten(output)[0].dtype, "float32")
            y = keras.tree.map_structure(lambda part: ops.cast(part, dtype), y)
            output = keras.tree.map_structure(lambda part: ops.cast(part, dtype), output)
            values = self.loss.call(y, output)
        else:
            values = self.loss(y, output)
        if not keras.ops.is_tensor(values) or not _is_float(values):
            raise ValueError(
                f"Argument `loss` must return a tensor of floating-point numbers. Received: {described(values)}"
            )
        # What does not count, as Keras marks it: labels of `ignore_class`, pairs without a loss in `Circle`.
        counted = mask_of(values)
        if counted is not None:
            mask = counted if mask is None else ops.logical_and(mask, counted)
        weights = _entry(batch.weights, self.path)
        if weights is not None and _rank(weights) == _rank(values) + 1 and weights.shape[-1] == 1:
            weights = ops.squeeze(weights, -1)
        return Elements(values, mask, weights)


@dataclasses.dataclass(frozen=True)
class Elements:
    """Values of a loss on a batch: (batch, ...), or a scalar where the loss reduces by itself; mask and weights."""

    values: Tensor
    mask: Tensor | None
    weights: Tensor | None

    def scaled(self, dtype: str, weighted: bool = True) -> Tensor:
        """The values where the mask lets them through, times the weights."""
        values = ops.cast(self.values, dtype)
        if self.mask is not None and _rank(values):
            values = ops.where(_aligned(self.mask, values), values, ops.zeros_like(values))
        if self.weights is not None and weighted:
            values = values * _aligned(ops.cast(self.weights, dtype), values)
        return values

    def counts(self, count: Tensor, dtype: str) -> Tensor:
        """(elements, of these unmasked in proportion, sum of the weights), whose sums over the data give the factor."""
        if not _rank(self.values):
            return ops.stack([count, count, count])
        total: Tensor = ops.cast(ops.size(self.values), dtype)
        weight: Tensor = total
        weights = None if self.weights is None else ops.cast(self.weights, dtype)
        if self.mask is None:
            unmasked: Tensor = total
            if weights is not None:
                weight = ops.sum(weights)
        else:
            mask = ops.cast(self.mask, dtype)
            size: Tensor = ops.cast(ops.size(mask), dtype)
            unmasked = ops.sum(mask) * (total / size)
            weight = ops.sum(mask if weights is None else mask * _aligned(weights, mask))
        return ops.stack([total, unmasked, weight])


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch as `model.fit` takes it; what is not there is None."""

    x: Any
    y: Any = None
    weights: Any = None


class DataLoss:
    """A loss of the labels and the model's outputs, or of the model and the batch.

    Args:
        model: whose compiled loss is meant where `loss` is None.
        loss: a Keras loss or its name; a dict or list of these, by output as in `model.compile`; a callable
            `loss(y, outputs)` that returns either a value for each example (then the batch is the first axis) or a
            scalar, the mean over the batch; or a callable whose first parameter is called `model`,
            `loss(model, batch)`, that returns a scalar, the mean over the batch.

    Attributes:
        of_model: whether it takes the model and the batch.
        terms: `Term`s, one for each output that has a loss.
    """

    def __init__(self, model: keras.Model, loss: Any):
        weights, compiled = None, loss is None
        if compiled:
            loss, weights = compiled_loss(model)
        if loss is None:
            raise ValueError(
                f"Argument `loss` is needed: the model {model.name!r} was not compiled with one. Pass a Keras loss, a "
                f"callable loss(y, outputs), or a callable loss(model, batch)."
            )
        self._loss = loss
        self.of_model = not isinstance(loss, keras.losses.Loss) and callable(loss) and _first_parameter(loss) == "model"
        self.terms = (Term(loss),) if self.of_model else tuple(_terms(model, loss, weights, compiled))

    def __repr__(self) -> str:
        if len(self.terms) == 1:
            return _named(self.terms[0].loss)
        return "{" + ", ".join(f"{term.path!r}: {_named(term.loss)}" for term in self.terms) + "}"

    @property
    def expects_probabilities(self) -> bool:
        """Whether a term takes the outputs for probabilities."""
        return not self.of_model and any(term.expects for term in self.terms)

    def of_batch(self, model: keras.Model, batch: Any) -> Tensor:
        """The value of a loss(model, batch), a scalar."""
        value = self._loss(model, batch)
        if not ops.is_tensor(value) or _rank(value):
            raise ValueError(
                f"Argument `loss`, a callable of the model and the batch, must return a scalar tensor, the mean over "
                f"the batch. Received: {described(value)}"
            )
        return value

    def factors(self, counts: Sequence[Sequence[float]]) -> list[float]:
        """The factor of each term's sum over the data, its weight included.

        Args:
            counts: for each term the sums over the data of `Elements.counts`.
        """
        factors = []
        for term, (total, unmasked, weight) in zip(self.terms, counts, strict=True):
            divisor = {"mean": unmasked, "sum": 1.0, "mean_with_sample_weight": weight}[term.reduction]
            if not total:
                raise ValueError("Argument `data` is empty: it gives no example. Pass at least one batch.")
            if not unmasked > 0:
                raise ValueError("Argument `data` is masked out as a whole: no element counts. Look at the mask.")
            if not weight > 0:
                raise ValueError(f"Argument `data` has sample weights that sum to {weight:g}. They must be positive.")
            factors.append(term.weight / divisor)
        return factors


def split_batch(batch: Any) -> Batch:
    """A batch `x`, `(x, y)` or `(x, y, sample_weight)` by its parts."""
    if isinstance(batch, Batch):
        return batch
    if not isinstance(batch, (tuple, list)):
        return Batch(batch)
    if len(batch) > 3:
        raise ValueError(
            f"Argument `data` must give batches (x, y) or (x, y, sample_weight). Received: {len(batch)} parts. Put "
            f"several inputs into one tuple or dict: ((x1, x2), y)."
        )
    return Batch(*batch)


def described(value: Any) -> str:
    """A tensor's shape and dtype, for messages."""
    if not ops.is_tensor(value):
        return repr(value)
    return f"a tensor of shape {tuple(value.shape)}, {keras.backend.standardize_dtype(value.dtype)}"


def _terms(model: keras.Model, loss: Any, weights: Any, compiled: bool) -> list[Term]:
    """One term for a loss of all outputs, else one for each output; `weights` as in `model.compile`."""
    names, keys = output_names(model)
    if isinstance(loss, dict):
        unknown = [name for name in loss if keys and name not in (*names, *keys)]
        if unknown:
            raise ValueError(
                f"Argument `loss` must be by output: the outputs of {model.name!r} are {', '.join(names)}. Received: "
                f"losses for {', '.join(map(repr, unknown))}"
            )
        paths = {name: keys[names.index(name)] if name in names and name not in keys else name for name in loss}
        by_name = weights if isinstance(weights, dict) else {}
        return [
            Term(resolved(one), paths[name], by_name.get(name, 1.0)) for name, one in loss.items() if one is not None
        ]
    if isinstance(loss, (list, tuple)):
        if keys and len(loss) != len(keys):
            raise ValueError(
                f"Argument `loss` must be one loss, or one for each of the {len(keys)} outputs of {model.name!r}. "
                f"Received: {len(loss)} losses"
            )
        losses: list[Any] = list(loss)
    elif len(keys) > 1 and (compiled or isinstance(loss, (str, keras.losses.Loss))):
        losses = [loss] * len(keys)
    else:
        # A callable of all outputs at once, or the only output.
        path = keys[0] if len(keys) == 1 and isinstance(loss, (str, keras.losses.Loss)) else None
        return [Term(resolved(loss), path, weights if isinstance(weights, (int, float)) else 1.0)]
    factors = list(weights) if isinstance(weights, (list, tuple)) else [1.0] * len(losses)
    paths = list(keys) or list(range(len(losses)))
    return [
        Term(resolved(one), path, by) for one, path, by in zip(losses, paths, factors, strict=True) if one is not None
    ]


def output_names(model: keras.Model) -> tuple[list[str], list[int | str | None]]:
    """(names, keys) of the model's outputs, in their order; the key of a single tensor is None.

    Both are empty for models that are not functional: what they return is known once they are called.
    """
    try:
        structure = model.output
    except (AttributeError, ValueError):
        return [], []
    names = list(getattr(model, "output_names", None) or [])
    if isinstance(structure, dict):
        return names, list(structure)
    if isinstance(structure, (list, tuple)):
        return names, list(range(len(structure)))
    return names, [None]


def resolved(loss: Any) -> Any:
    """The loss itself, or that of a name.

    Raises:
        ValueError: where it is neither a Keras loss nor a callable.
    """
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    if not (isinstance(loss, keras.losses.Loss) or callable(loss)):
        raise ValueError(
            f"Argument `loss` must be a Keras loss or its name, a dict or list of these by output, a callable "
            f"loss(y, outputs), or a callable loss(model, batch). Received: loss={loss!r}"
        )
    return loss


def _entry(structure: Any, path: int | str | None) -> Any:
    """The labels or weights of an output: by the same key, or by position."""
    if path is None or not isinstance(structure, (dict, list, tuple)):
        return structure
    if isinstance(structure, dict):
        return structure[path] if path in structure else list(structure.values())[int(path)]
    return structure[int(path)]


def _aligned(part: Tensor, values: Tensor) -> Tensor:
    """A tensor of lower rank with axes appended, so that it goes along the first axes of the values."""
    while _rank(part) < _rank(values):
        part = ops.expand_dims(part, -1)
    return part


def _rank(tensor: Tensor) -> int:
    return len(tensor.shape)


def _is_float(tensor: Tensor) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))


def _first_parameter(function: Callable[..., Any]) -> str | None:
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None


def _named(loss: Any) -> str:
    if not isinstance(loss, keras.losses.Loss):
        return getattr(loss, "__name__", repr(loss))
    shown = {name: value for name, value in loss.get_config().items() if name in ("from_logits", "reduction")}
    return f"{type(loss).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
