"""Internals of Keras 3.15 for losses: compiled losses, their labels and weights, and kinds of arrays."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src.losses.loss import squeeze_or_expand_to_same_rank
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.trainers.compile_utils import CompileLoss
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import (
    is_jax_sparse,
    is_scipy_sparse,
    is_tensorflow_ragged,
    is_tensorflow_sparse,
)

from idmatters_tf._keras_types import Tensor


def has_compiled_loss(model: keras.Model) -> bool:
    """Return True if the model was compiled with a loss."""
    return getattr(model, "_compile_loss", None) is not None


def overrides_compute_loss(model: keras.Model) -> bool:
    """Return True if `compute_loss` of the model is not that of `keras.Model`."""
    return "compute_loss" in vars(model) or type(model).compute_loss is not keras.Model.compute_loss


def compute_loss(model: keras.Model, x: Any, y: Any, outputs: Any, sample_weight: Any, training: bool) -> Any:
    """Return `model.compute_loss` on a batch. An override may lack the argument `training`."""
    built: Any = model
    return built._compute_loss(x, y, outputs, sample_weight=sample_weight, training=training)


class CompiledLosses:
    """Losses of the outputs, as created by `model.compile` from its arguments `loss` and `loss_weights`.

    Keras' `CompileLoss` assigns losses, weights, labels and sample weights to the outputs. This class uses copies of
    it, built on one batch, so that the model does not change.

    Args:
        model: model of the outputs.
        loss: argument `loss` of `model.compile`; None for the loss that the model was compiled with.
        y, outputs, sample_weight: labels, outputs and sample weights of a batch.
        dtype: dtype of the weights.

    Attributes:
        losses: `keras.losses.Loss` objects, in the order of `split`.
        weights: factors of their values in the sum.
        value: weighted sum of the losses on that batch, computed by Keras.
    """

    def __init__(self, model: keras.Model, loss: Any, y: Any, outputs: Any, sample_weight: Any, dtype: str):
        if loss is None:
            own = _copy_of_losses(model._compile_loss)
        else:
            own = CompileLoss(loss, output_names=getattr(model, "output_names", None))
        total: Any = own(y, outputs, sample_weight)
        self.value = None if total is None else float(np.mean(np.asarray(keras.ops.convert_to_numpy(total))))
        self._split: Any = _copy_of_losses(own)
        # A function that keeps its arguments and returns a unit vector replaces each loss, so that Keras' sum is the
        # vector of weights.
        entries = self._split._flat_losses
        units = np.eye(len(entries))
        self._split._flat_losses = [
            entry._replace(loss=functools.partial(self._keep, unit)) for entry, unit in zip(entries, units, strict=True)
        ]
        self._split._dtype = dtype
        self._kept: list[tuple[Any, Any, Any]] = []
        factors = np.zeros(0) if total is None else self._sum(y, outputs, sample_weight)
        # Keras counts only the first of several losses of a single output.
        self._counted = np.flatnonzero(factors).tolist()
        self.losses = [entries[place].loss for place in self._counted]
        self.weights = [float(factors[place]) for place in self._counted]

    def split(self, y: Any, outputs: Any, sample_weight: Any) -> list[tuple[Any, Any, Any]]:
        """Return the arguments (labels, outputs, sample weights) that Keras passes to each loss."""
        self._kept.clear()
        self._split(y, outputs, sample_weight)
        kept = [self._kept[place] for place in self._counted]
        self._kept.clear()
        return kept

    def _sum(self, y: Any, outputs: Any, sample_weight: Any) -> Any:
        return keras.ops.convert_to_numpy(self._split(y, outputs, sample_weight))

    def _keep(self, unit: Any, y: Any, output: Any, sample_weight: Any) -> Any:
        self._kept.append((y, output, sample_weight))
        return keras.ops.convert_to_tensor(unit, dtype=self._split.dtype)


def _copy_of_losses(compiled: Any) -> Any:
    """Return an independent copy of a `CompileLoss` in its state, without its metrics."""
    copied: Any = CompileLoss(compiled._user_loss, compiled._user_loss_weights, output_names=compiled.output_names)
    if compiled.built:
        state = vars(compiled)
        for name in ("_flat_losses", "_y_pred_build_structure", "_y_true_build_structure", "built"):
            vars(copied)[name] = state[name]
        copied._metrics = [None] * len(copied._flat_losses)
    return copied


def weights_by_output(y: Any, sample_weight: Any) -> Any:
    """Return the sample weights of arrays as in `model.fit`: repeated for each of several outputs.

    Raises:
        ValueError: the weights do not fit the labels.
    """
    if sample_weight is None or not keras.tree.is_nested(y):
        return sample_weight
    inputs: Any = ArrayDataAdapter(y, y, sample_weight)._inputs
    return inputs[2]


def same_rank(values: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors of the same rank. Add or remove a last axis of size 1 as in Keras' losses."""
    return squeeze_or_expand_to_same_rank(values, other)


def plain_function(loss: Any) -> Callable[..., Any] | None:
    """Return the function of a loss that was given as a function or by name; None for other losses."""
    return loss.fn if type(loss) is LossFunctionWrapper else None


def wrapped_function(function: Callable[..., Any]) -> keras.losses.Loss:
    """Return a function as a loss object, as in `model.compile`."""
    return LossFunctionWrapper(function)


def irregular_kind(array: Any) -> str | None:
    """Return "ragged" or "sparse" for tensors that are not dense, else None."""
    if is_tensorflow_ragged(array):
        return "ragged"
    if is_tensorflow_sparse(array) or is_jax_sparse(array) or is_scipy_sparse(array):
        return "sparse"
    return None
