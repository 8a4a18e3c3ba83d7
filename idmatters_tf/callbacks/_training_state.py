"""State that `fit` changes: variables of the model, its optimizers and its metrics, and random generators."""

import itertools
import random
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import keras
import numpy as np

from idmatters_tf._keras_internals import (
    global_seed_state,
    make_global_seed_state,
    optimizer_variables,
    read_adapted,
    recurrent_states,
    restore_adapted,
)
from idmatters_tf._tensorflow_internals.runtime import operation_seeds, restore_operation_seeds, traced_training_steps
from idmatters_tf.callbacks import _devices
from idmatters_tf.callbacks._encoding import Saved

# Random operations of TensorFlow with internal state, which cannot be read.
_STATEFUL_RANDOM = re.compile(
    "(Parameterized)?TruncatedNormal|Multinomial|Random(Gamma|Poisson(V2)?|Shuffle|StandardNormal|Uniform(Int)?)"
)
# Variables, or their values, by owner.
Owners: TypeAlias = Mapping[str, Sequence[keras.Variable]]
Values: TypeAlias = dict[str, list[_devices.Value | None]]


def variables(
    model: keras.Model, optimizers: Mapping[str, keras.optimizers.Optimizer] = types.MappingProxyType({})
) -> dict[str, list[keras.Variable]]:
    """Return the variables that a training step may change, by owner: weights, seed states, slots, metrics.

    The compiled optimizer with the optimizers that it wraps is the owner "optimizer", others are "optimizer PATH".
    """
    compiled: keras.optimizers.Optimizer | None = getattr(model, "optimizer", None)
    owners = {
        "model": [*model.variables, *recurrent_states(model)],
        "optimizer": [] if compiled is None else optimizer_variables(compiled),
        "metrics": model.metrics_variables,
        # Inner optimizers come first, so that the optimizer around them is listed with its own variables only.
        **{f"optimizer {path}": optimizer_variables(optimizers[path]) for path in [*optimizers][::-1]},
    }
    seen: set[int] = set()
    for owner, several in owners.items():
        own = {id(variable): variable for variable in several if id(variable) not in seen}
        seen |= own.keys()
        owners[owner] = list(own.values())
    return owners


def describe_variables(owners: Owners) -> dict[str, list[list[str]]]:
    """Return [path, shape, dtype] of each variable, by owner."""
    return {
        owner: [[variable.path, str(tuple(variable.shape)), str(variable.dtype)] for variable in several]
        for owner, several in owners.items()
    }


def read(model: keras.Model, owners: Owners, reader: _devices.Reader) -> Saved:
    """Return the values of the variables and of the global generators."""
    return {
        "variables": {owner: [reader.read(variable) for variable in several] for owner, several in owners.items()},
        "adapted": read_adapted(model),
        "random": read_generators(),
    }


def read_generators() -> Saved:
    """Return the states of the global generators of Python, NumPy, Keras and TensorFlow."""
    global_seed = global_seed_state()
    operations = operation_seeds()
    return {
        "python": random.getstate(),
        "tensorflow": None if operations is None else operations.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the global generator
        "keras": None if global_seed is None else _devices.read(global_seed),
    }


def assign(model: keras.Model, owners: Owners, state: Saved, parts: int | None = None, index: int = 0) -> None:
    """Assign the values that `read` returned, for `parts` devices of all workers, to the variables of a worker."""
    now = _devices.count_replicas(model)
    devices = parts or now, now, index * _devices.count_parts(model)
    for owner, several in owners.items():
        for variable, value in zip(several, state["variables"].get(owner, []), strict=True):
            _devices.assign(variable, value, devices)
    restore_adapted(model, state["adapted"])
    generators = state["random"]
    # None stands for one that is not used, or that is left where it is.
    if generators["python"] is not None:
        random.setstate(generators["python"])
    if generators["tensorflow"] is not None:
        restore_operation_seeds(generators["tensorflow"])
    if generators["numpy"] is not None:
        np.random.set_state(generators["numpy"])  # noqa: NPY002
    if generators["keras"] is not None:
        with _devices.scope(model):
            _devices.assign(make_global_seed_state(), generators["keras"])


def select_differing(
    model: keras.Model, owners: Owners, values: Values, checksums: list[dict[str, list[int]]], names: list[str]
) -> Values:
    """Return the values that `read` returned, with None in place of those whose checksums are equal on all workers.

    Raises:
        ValueError: a trainable weight or a variable of an optimizer differs.
    """
    trained = {id(variable) for variable in model.trainable_variables}
    selected: Values = {}
    for owner, several in owners.items():
        by_variable = zip(*(each[owner] for each in checksums), strict=True)
        selected[owner] = []
        for variable, value, found in zip(several, values[owner], by_variable, strict=True):
            others = [name for name, checksum in zip(names, found, strict=True) if checksum != found[0]]
            if others and (id(variable) in trained or owner.startswith("optimizer")):
                raise ValueError(
                    f"{variable.path} of the {owner} differs between {names[0]} and {', '.join(others)}. A callback "
                    f"that changes weights or optimizers must do so on all workers."
                )
            selected[owner].append(value if others else None)
    return selected


def join(values: list[Values], counts: list[int]) -> Values:
    """Return the values on all devices from those of the chief and those that `select_differing` returned elsewhere.

    The workers have `counts` devices.
    """
    if len(values) == 1:
        return values[0]

    def join_parts(own):
        own = [own[0] if value is None else value for value in own]
        return [part for value, n in zip(own, counts, strict=True) for part in _devices.split(value, n)]

    return {
        owner: [join_parts(own) for own in zip(*(each[owner] for each in values), strict=True)] for owner in values[0]
    }


def find_difference(saved: dict[str, list[list[str]]], now: dict[str, list[list[str]]]) -> str | None:
    """Return a text that names the first difference of two descriptions, or None if shapes and types are equal."""
    for owner in dict.fromkeys([*saved, *now]):
        for old, new in itertools.zip_longest(saved.get(owner, []), now.get(owner, [])):
            if old is None:
                return f"{' '.join(new)} of the {owner} is new"
            if new is None:
                return f"{' '.join(old)} of the {owner} is missing"
            if old[1:] != new[1:]:
                return f"{' '.join(old)} of the {owner} has become {' '.join(new)}"
    return None


def check_complete(model: keras.Model, known_variables: Iterable[object]) -> None:
    """Check that the training step traced by TensorFlow has no state other than known variables.

    On JAX a training step is always a function of the model's variables. Eager training steps are not checked.

    Raises:
        ValueError: the step has other state, which the message names.
    """
    if keras.backend.backend() != "tensorflow":
        return
    every = list(known_variables)
    global_seed = global_seed_state()
    if global_seed is not None:
        every.append(global_seed)
    known = set().union(*map(_devices.identities, every))
    for step in traced_training_steps(model):
        for variable in step.variables:
            if id(variable) not in known:
                raise ValueError(
                    f"The training step uses the variable {variable.name}, which does not belong to the model, its "
                    f"optimizers or metrics and cannot be restored. Make it a weight of a layer (`add_weight`), a "
                    f"metric, or a `keras.random.SeedGenerator` of a layer."
                )
        graph = step.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        for node in filter(lambda node: _STATEFUL_RANDOM.fullmatch(node.op), nodes):
            raise ValueError(
                f"The training step draws random numbers from TensorFlow's operation {node.op} ({node.name}), whose "
                f"state cannot be restored. Use `keras.random` with a `keras.random.SeedGenerator` of the layer, or "
                f"`tf.random.stateless_*`."
            )
