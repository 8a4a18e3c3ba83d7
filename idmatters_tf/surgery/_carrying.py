"""Transfer of optimizer state and compile arguments to a model with other variables."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_types import Options
from idmatters_tf.optimizers import Muon
from idmatters_tf.optimizers.building import build_optimizer, new_optimizer


def compile_like(
    model: keras.Model,
    original: keras.Model,
    variables: Mapping[int, keras.Variable],
    optimizer: keras.optimizers.Optimizer | None,
) -> None:
    """Compile a copy with the loss, metrics and options of the original model.

    The state of a given optimizer is transferred, including iterations, learning rate and loss scale. Otherwise the
    copy of a compiled model gets a new optimizer with the same settings. `variables` is a dict from `id` of the
    original's variables to the variables of the copy.

    Raises:
        ValueError: if the optimizer belongs to another model, or has state of an unknown kind.
    """
    arguments = _compile_arguments(original)
    own = getattr(original, "optimizer", None)
    if optimizer is not None:
        if optimizer is getattr(own, "inner_optimizer", None):
            # `compile` has wrapped it for loss scaling.
            optimizer = own
        optimizer = _carry_optimizer(optimizer, model, original, variables)
    elif arguments is None:
        return
    elif own is not None:
        optimizer = new_optimizer(own, original, variables)
        if isinstance(_keras_internals.inner_optimizer(optimizer), Muon):
            build_optimizer(optimizer, model)
    # The optimizer scales the loss as before: `compile` would decide again by the current dtype policy.
    options: Options = {"optimizer": optimizer, "auto_scale_loss": False}
    if arguments is None:
        keras.Model.compile(model, **options)
    else:
        copied: Options = {name: _copy_metrics(arguments[name]) for name in ("metrics", "weighted_metrics")}
        model.compile(**arguments | copied | options)


def check_norms_can_grow(
    optimizer: keras.optimizers.Optimizer | None, model: keras.Model, blocks: Mapping[str, Sequence[keras.Variable]]
) -> None:
    """Raise a ValueError if Muon, which preserves kernel norms, would keep a block of a model at the identity.

    `blocks` is a dict from names of blocks to their variables.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    zeros = {id(kernel) for kernel in optimizer.kernels_of_zeros(model)} if isinstance(optimizer, Muon) else ()
    for name, variables in blocks.items():
        for variable in (variable for variable in variables if id(variable) in zeros):
            raise ValueError(
                f"Muon preserves the norm of each kernel: {variable.path} of the block {name!r} would stay zero. Use "
                f"Muon(norm='free'), or pass a block with a trained factor on its branch, such as "
                f"ResidualConv2D(filters, branch_scale=0.0, kernel_initializer='he_normal')."
            )


def _compile_arguments(model: keras.Model) -> Options | None:
    """Return the arguments of `model.compile`, as objects; None if they are unknown or the model is not compiled."""
    arguments = _keras_internals.compile_arguments(model)
    # Tasks of KerasHub have a `compile` with other defaults, and those of language models have a sampler.
    is_task = _keras_internals.is_task(model)
    if arguments is None or (type(model).compile is not keras.Model.compile and not is_task):
        return None
    sampler = getattr(model, "sampler", None) if is_task else None
    return arguments if sampler is None else arguments | {"sampler": sampler}


def _carry_optimizer(
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model,
    original: keras.Model,
    variables: Mapping[int, keras.Variable],
) -> keras.optimizers.Optimizer:
    """Return a new optimizer for a copied model, with the state of the given one for common variables.

    Slots of new variables start at zero, and their averages (`use_ema`) at the weights.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"Argument `optimizer` must be a keras optimizer. Received: {optimizer!r}. Pass model.optimizer."
        )
    old = _keras_internals.optimized_variables(optimizer)
    known = {id(variable) for variable in original.variables}
    if any(id(variable) not in known for variable in old):
        raise ValueError(
            "Argument `optimizer` must be the optimizer of `model`. Received: an optimizer built for other variables. "
            "Pass model.optimizer."
        )
    new = new_optimizer(optimizer, original, variables)
    build_optimizer(new, model)
    if optimizer.built:
        _carry_state(optimizer, new, [variables.get(id(variable)) for variable in old])
    return new


def _carry_state(
    optimizer: keras.optimizers.Optimizer, new: keras.optimizers.Optimizer, targets: Sequence[keras.Variable | None]
) -> None:
    """Copy slots and scalars; `targets` lists the new variables in the old optimizer's order, None for removed ones."""
    order = {id(variable): index for index, variable in enumerate(_keras_internals.optimized_variables(new))}
    known: set[int] = set()
    for name, state in _keras_internals.optimizer_attributes(optimizer).items():
        fresh: Any = getattr(new, name, None)
        if isinstance(state, keras.Variable):
            fresh.assign(ops.convert_to_numpy(state))
            known.add(id(state))
        elif isinstance(state, keras.optimizers.Optimizer):
            _carry_state(state, fresh, targets)
            known |= {id(variable) for variable in state.variables}
        elif isinstance(state, (list, tuple)) and len(state) == len(targets):
            slots = [(slot, order.get(id(variable))) for slot, variable in zip(state, targets, strict=True)]
            for slot, index in slots:
                known.add(id(slot))
                if isinstance(slot, keras.Variable) and index is not None:
                    fresh[index].assign(ops.convert_to_numpy(slot))
    if unknown := [variable.path for variable in optimizer.variables if id(variable) not in known]:
        raise ValueError(
            f"The state of {type(optimizer).__name__} cannot be transferred: {', '.join(unknown[:3])} belong to no "
            f"list with an entry for each variable. Omit `optimizer` and compile the new model yourself."
        )
    carried = {id(variable) for variable in targets}
    for variable, average in _keras_internals.weight_averages(new):
        if id(variable) not in carried:
            average.assign(ops.convert_to_numpy(variable))


def _copy_metrics(metrics: object) -> object:
    """Copy the metrics in an argument of `compile`, so that the copies share no state with the given ones."""

    def copied(metric: object) -> object:
        return _keras_internals.copy_metric(metric) if isinstance(metric, keras.metrics.Metric) else metric

    return keras.tree.map_structure(copied, metrics)
