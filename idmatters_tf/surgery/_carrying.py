"""An optimizer's state, and what a model was compiled with, for a model that has other variables."""

import re
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf.optimizers import Muon


def compile_like(
    model: keras.Model,
    original: keras.Model,
    variables: Mapping[int, keras.Variable],
    optimizer: keras.optimizers.Optimizer | None,
) -> None:
    """Compiles a copy with the loss, metrics and options of its original.

    Args:
        model: the copy.
        original: what it was copied from.
        variables: by `id` of the original's variables, the copy's.
        optimizer: the one whose state is carried over; if None, the copy gets a new one with the settings of the
            original's, and none where the original was not compiled.

    Raises:
        ValueError: where the optimizer's state cannot be carried.
    """
    arguments = _keras_internals.compile_arguments(original)
    if optimizer is not None:
        carried = carry_optimizer(optimizer, model, original, variables)
        if arguments is None:
            keras.Model.compile(model, optimizer=carried)
            return
        model.compile(**_fresh(arguments) | {"optimizer": carried})
    elif arguments is not None:
        model.compile(**_fresh(arguments) | {"optimizer": _new_optimizer(arguments["optimizer"])})


def carry_optimizer(
    optimizer: keras.optimizers.Optimizer,
    model: keras.Model,
    original: keras.Model,
    variables: Mapping[int, keras.Variable],
) -> keras.optimizers.Optimizer:
    """A new optimizer for a model, with the state that another one has for the variables that were there before.

    Iterations, learning rate and loss scale are kept; new variables start as Keras starts them, with slots at zero, but
    averages of weights (`use_ema`) at the weights.

    Args:
        optimizer: of the original; nothing of it is changed.
        model: its trainable variables are what the new optimizer is for.
        original: what the optimizer has trained.
        variables: by `id` of the original's variables, the model's, as far as it has them.

    Raises:
        ValueError: for an optimizer of another model, or with state of an unknown kind.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"Argument `optimizer` must be a keras optimizer. Received: {optimizer!r}. Pass model.optimizer."
        )
    old = _keras_internals.optimized_variables(optimizer)
    known = {id(variable) for variable in original.variables}
    if any(id(variable) not in known for variable in old):
        raise ValueError(
            "Argument `optimizer` must be the one that has trained `model`. Received: one that was built for other "
            "variables. Pass model.optimizer."
        )
    new = _new_optimizer(optimizer)
    _carry_exclusions(optimizer, new, original, variables)
    new.build(model.trainable_variables)
    if optimizer.built:
        _carry_state(optimizer, new, [variables.get(id(variable)) for variable in old])
    return new


def check_norms_can_grow(optimizer: Any, blocks: Mapping[str, keras.layers.Layer]) -> None:
    """Raises ValueError where Muon, which keeps each kernel's norm, would keep a block at the identity for ever."""
    if not isinstance(optimizer, Muon):
        return
    for name, block in blocks.items():
        for variable in optimizer.kernels_of_zeros(block.trainable_variables):
            raise ValueError(
                f"Muon keeps the norm of each kernel: {variable.path}, which is zero, would stay zero, and "
                f"the block {name!r} the identity. Pass a block with a trained factor on its branch, such as "
                f"ResidualConv2D(filters, branch_scale=0.0, kernel_initializer='he_normal')."
            )


def _carry_state(optimizer: Any, new: Any, places: list[keras.Variable | None]) -> None:
    """`places`: the new variables of those that the old optimizer was built for, in its order; None for lost ones."""
    order = {id(variable): place for place, variable in enumerate(_keras_internals.optimized_variables(new))}
    known: set[int] = set()
    for name, state in _keras_internals.optimizer_attributes(optimizer).items():
        fresh: Any = getattr(new, name, None)
        if isinstance(state, keras.Variable):
            fresh.assign(ops.convert_to_numpy(state))
            known.add(id(state))
        elif isinstance(state, keras.optimizers.Optimizer):
            _carry_state(state, fresh, places)
            known |= {id(variable) for variable in state.variables}
        elif isinstance(state, (list, tuple)) and len(state) == len(places):
            for slot, variable in zip(state, places, strict=True):
                place = order.get(id(variable))
                if isinstance(slot, keras.Variable):
                    known.add(id(slot))
                    if place is not None:
                        fresh[place].assign(ops.convert_to_numpy(slot))
    unknown = [variable.path for variable in optimizer.variables if id(variable) not in known]
    if unknown:
        raise ValueError(
            f"The state of {type(optimizer).__name__} cannot be carried over: {', '.join(unknown[:3])} belong to no "
            f"list with an entry for each variable. Leave `optimizer` out and compile the new model yourself."
        )
    averages = _keras_internals.weight_averages(new)
    if averages:
        carried = {id(variable) for variable in places}
        for variable, average in zip(_keras_internals.optimized_variables(new), averages, strict=True):
            if id(variable) not in carried:
                average.assign(ops.convert_to_numpy(variable))


def _carry_exclusions(optimizer: Any, new: Any, original: keras.Model, variables: Mapping[int, keras.Variable]) -> None:
    excluded, names = _keras_internals.weight_decay_exclusions(optimizer)
    if excluded or names is not None:
        listed = [
            variables[id(variable)]
            for variable in original.variables
            if id(variable) in variables and _keras_internals.variable_key(optimizer, variable) in (excluded or ())
        ]
        new.exclude_from_weight_decay(listed, [names.pattern] if isinstance(names, re.Pattern) else None)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        _carry_exclusions(inner, new.inner_optimizer, original, variables)


def _new_optimizer(optimizer: Any) -> Any:
    """An optimizer with the same settings and no state."""
    config = optimizer.get_config()
    schedule = _keras_internals.learning_rate_schedule(optimizer)
    if schedule is not None:
        # As an object: its class may not be registered.
        config["learning_rate"] = schedule
    try:
        return type(optimizer).from_config(config)
    except Exception as error:
        raise ValueError(
            f"Argument `optimizer`: {type(optimizer).__name__} cannot be made from its configuration: {error}"
        ) from error


def _fresh(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `compile`, with metrics that share no state with those given."""

    def copied(metric: Any) -> Any:
        return type(metric).from_config(metric.get_config()) if isinstance(metric, keras.metrics.Metric) else metric

    return {
        name: keras.tree.map_structure(copied, value) if name in ("metrics", "weighted_metrics") else value
        for name, value in arguments.items()
    }
