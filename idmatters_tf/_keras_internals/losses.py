"""Internals of Keras for losses: compiled losses, and their labels and weights."""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras

from idmatters_tf._keras_internals.keras_source import CompileLoss, LossFunctionWrapper, data_adapters, loss_functions
from idmatters_tf._keras_types import Loss, Options, Structure, Tensor

# Labels, an output and sample weights.
Arguments: TypeAlias = tuple[Structure, Structure, Structure]

_FUNCTIONS = """
    binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
    categorical_generalized_cross_entropy categorical_hinge cosine_similarity ctc hinge huber kl_divergence log_cosh
    mean_absolute_error mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson
    sparse_categorical_crossentropy squared_hinge
"""
# Functions of Keras whose values depend on the entries along an axis, and the default of this axis. None: all entries.
_AXES: dict[object, int | None] = {
    **{getattr(keras.losses, name): -1 for name in _FUNCTIONS.split()},
    keras.losses.dice: None,
    keras.losses.tversky: None,
}
_OF_KERAS = tuple(vars(keras.losses).values())


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
    built: Any = model
    return built._compute_loss(x, y, outputs, sample_weight=sample_weight, training=training)


class CompiledLosses:
    """Losses of the outputs, as created by `model.compile` from its arguments `loss` and `loss_weights`.

    Keras' `CompileLoss` assigns losses, weights, labels and sample weights to the outputs. This class uses a copy of
    it, built on one batch, so that the model does not change.

    Args:
        model: model of the outputs.
        loss: argument `loss` of `model.compile`; None for the loss that the model was compiled with.
        y, outputs, sample_weight: labels, outputs and sample weights of a batch, for which Keras computes the loss.

    Attributes:
        terms: (loss, weight) of each `keras.losses.Loss` with a weight other than zero.
    """

    def __init__(self, model: keras.Model, loss: Loss, y: Structure, outputs: Structure, sample_weight: Structure):
        built: Any = model
        given = (loss, None)
        if loss is None:
            given = built._compile_loss._user_loss, built._compile_loss._user_loss_weights
        self._compiled: Any = CompileLoss(*given, output_names=getattr(model, "output_names", None))
        self._compiled(y, outputs, sample_weight)
        entries = self._compiled._flat_losses
        # Without metrics, which would be updated in `split`.
        self._compiled._metrics = [None] * len(entries)
        # Keras counts only the first of several losses of a single output.
        is_single = not keras.tree.is_nested(y) and not keras.tree.is_nested(outputs)
        weights = [1.0 if entry.loss_weights is None else float(entry.loss_weights) for entry in entries]
        self._indices = [index for index, weight in enumerate(weights[:1] if is_single else weights) if weight]
        self.terms = [(entries[index].loss, weights[index]) for index in self._indices]

    def split(self, y: Structure, outputs: Structure, sample_weight: Structure) -> list[Arguments]:
        """Return the arguments (labels, outputs, sample weights) that Keras passes to each loss."""
        arguments: list[Arguments] = []

        def keep(y: Structure, output: Structure, sample_weight: Structure) -> Tensor:
            arguments.append((y, output, sample_weight))
            return keras.ops.zeros(())

        compiled = self._compiled
        compiled._flat_losses = [entry._replace(loss=keep, loss_weights=None) for entry in compiled._flat_losses]
        compiled(y, outputs, sample_weight)
        return [arguments[index] for index in self._indices]


def for_one_replica(loss: Tensor) -> Tensor:
    """Return a mean of Keras without its factor for the number of replicas in the scope of a strategy."""
    return loss_functions.unscale_loss_for_distribution(loss)


def checked_arrays(data: tuple[Structure, ...]) -> tuple[Structure, ...]:
    """Return a tuple of arrays of equal length, with sample weights repeated for each output as in `fit`."""
    make = data_adapters.ArrayDataAdapter
    adapter: Any = make(*data) if len(data) == 3 else make(data)
    return adapter._inputs if len(data) == 3 else data


def loss_function(loss: object) -> Callable[..., Tensor] | None:
    """Return the function of a loss that was given as a function, by name or as a class of Keras; None for others."""
    return getattr(loss, "fn", None) if type(loss) in (LossFunctionWrapper, *_OF_KERAS) else None


def couples_examples(loss: object, output: Structure) -> bool:
    """Return True for a loss of Keras that is neither a sum nor a mean of the values of the examples of a batch."""
    # Also of derived classes.
    function = loss.fn if isinstance(loss, LossFunctionWrapper) else type(loss)
    if function not in _OF_KERAS:
        return False
    axis = _find_axis(function, getattr(loss, "_fn_kwargs", {}))
    # An output of rank 1 has one number for each example, of which Keras takes the mean.
    ranks = [len(leaf.shape) for leaf in keras.tree.flatten(output)]
    return axis is None or any(rank > 1 and part % rank == 0 for rank in ranks for part in keras.tree.flatten(axis))


def is_separable(function: object, arguments: Options, y: Structure, output: Structure) -> bool:
    """Return True for a function of Keras with a value for each example that depends on this example only.

    CTC is none, because it fails for a part of a batch without examples.

    Args:
        function: a function.
        arguments: its further arguments by name.
        y: labels.
        output: output of a model.
    """
    # Its labels have one axis less than its output.
    is_sparse = function is keras.losses.sparse_categorical_crossentropy
    axis = None if function is keras.losses.ctc else _find_axis(function, arguments)
    return has_axis_of_values(axis, y, output, is_sparse)


def _find_axis(function: object, arguments: Options) -> Structure:
    """Return the axis along which a function of Keras takes a mean or sum; None for all, and for other functions."""
    # A callable object may have no hash.
    return arguments.get("axis", _AXES[function]) if function in tuple(_AXES) else None


def has_axis_of_values(axis: Structure, y: Structure, output: Structure, is_sparse: bool = False) -> bool:
    """Return True if an axis is not that of the examples, and each example has values along it.

    Args:
        axis: an axis or a list of axes; None for all.
        y: labels.
        output: output of a model.
        is_sparse: True for labels that are the indices of classes.
    """
    ranks = [len(leaf.shape) for leaf in keras.tree.flatten(output)]
    label_ranks = [len(leaf.shape) for leaf in keras.tree.flatten(y)]
    is_inner = axis is not None and all(
        rank > 1 and all(part % rank for part in keras.tree.flatten(axis)) for rank in ranks
    )
    return is_inner and all(rank > 0 if is_sparse else rank > 1 for rank in label_ranks)
