"""State that `fit` changes: variables of the model, its optimizers and its metrics, and random generators."""

import random
import re
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import global_seed_state, make_global_seed_state, recurrent_states
from idmatters_tf._tensorflow_internals.training import traced_training_steps
from idmatters_tf.callbacks import _devices
from idmatters_tf.callbacks._model_parts import find_optimizers

# Random operations of TensorFlow with internal state, which cannot be read.
_STATEFUL_RANDOM = re.compile(
    "(Parameterized)?TruncatedNormal|Multinomial|Random(Gamma|Poisson(V2)?|Shuffle|StandardNormal|Uniform(Int)?)"
)


def variables(model: keras.Model) -> dict[str, list[Any]]:
    """Return the variables that a training step may change, by owner: weights, seed states, slots, metrics.

    The owner "optimizer" is the compiled optimizer with the optimizers that it wraps. Other optimizers are
    "optimizer PATH".
    """
    optimizers: Any = find_optimizers(model)
    compiled = optimizers.pop("optimizer", None)
    owners = {
        "model": [*model.variables, *recurrent_states(model)],
        "optimizer": [] if compiled is None else compiled.variables,
        "metrics": model.metrics_variables,
        # Inner optimizers come first, so that the optimizer around them is listed with its own variables only.
        **{f"optimizer {path}": optimizer.variables for path, optimizer in reversed(optimizers.items())},
    }
    seen: set[int] = set()
    for owner, several in owners.items():
        own = {id(variable): variable for variable in several if id(variable) not in seen}
        seen |= own.keys()
        owners[owner] = list(own.values())
    return owners


def describe_variables(model: keras.Model) -> dict[str, list[list[str]]]:
    """Return [path, shape, dtype] of each variable, by owner."""
    return {
        owner: [[variable.path, str(tuple(variable.shape)), str(variable.dtype)] for variable in several]
        for owner, several in variables(model).items()
    }


def read(model: keras.Model) -> dict[str, Any]:
    """Return the values of the variables and of the global generators of Python, NumPy and Keras as plain data."""
    global_seed = global_seed_state()
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - the global generator
    version, internal, gauss = random.getstate()
    return {
        "variables": {
            owner: [_devices.read(variable) for variable in several] for owner, several in variables(model).items()
        },
        "random": {
            "python": (version, np.array(internal, np.uint32), gauss),
            "numpy": (name, keys, *rest),
            "keras": None if global_seed is None else _devices.read(global_seed),
        },
    }


def assign(model: keras.Model, state: dict[str, Any], parts: int | None = None, index: int = 0) -> None:
    """Assign the values that `read` returned for a model with the same variables.

    Args:
        model: the model.
        state: result of `read`, also with the result of `join` as its variables.
        parts: number of devices of all workers in `state`. By default that of the model.
        index: index of this worker.
    """
    now = _devices.count_replicas(model)
    devices = parts or now, now, index * _devices.count_parts(model)
    for owner, several in variables(model).items():
        for variable, value in zip(several, state["variables"].get(owner, []), strict=True):
            _devices.assign(variable, value, devices)
    generators = state["random"]
    version, internal, gauss = generators["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    np.random.set_state(generators["numpy"])  # noqa: NPY002
    if generators["keras"] is not None:
        with _devices.scope(model):
            _devices.assign(make_global_seed_state(), generators["keras"])


def select_differing(
    model: keras.Model, values: dict[str, list[Any]], checksums: list[dict[str, list[int]]], names: list[str]
) -> dict[str, list[Any]]:
    """Return the values of variables with None in place of those that are equal on all workers.

    Args:
        model: the model.
        values: values that `read` returned, by owner.
        checksums: checksums of the values of each worker, by owner.
        names: names of the workers.

    Raises:
        ValueError: a trainable weight or a variable of an optimizer differs.
    """
    trained = {id(variable) for variable in model.trainable_variables}
    selected: dict[str, list[Any]] = {}
    for owner, several in variables(model).items():
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


def join(values: list[dict[str, list[Any]]], counts: list[int]) -> dict[str, list[Any]]:
    """Return the values of variables on the devices of all workers.

    Args:
        values: values of the chief by owner, and those that `select_differing` returned on the other workers.
        counts: numbers of devices of the workers.
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
        before, after = saved.get(owner, []), now.get(owner, [])
        for old, new in zip(before, after, strict=False):
            if old[1:] != new[1:]:
                return f"{' '.join(old)} of the {owner} has become {' '.join(new)}"
        if len(before) != len(after):
            longer, word = (before, "is missing") if len(before) > len(after) else (after, "is new")
            return f"{' '.join(longer[min(len(before), len(after))])} of the {owner} {word}"
    return None


def check_complete(model: keras.Model) -> None:
    """Check that the training step traced by TensorFlow has no state other than the variables of `variables`.

    On JAX a training step is always a function of these variables. Eager training steps are not checked.

    Raises:
        ValueError: the step has other state, which the message names.
    """
    if keras.backend.backend() != "tensorflow":
        return
    every = [variable for several in variables(model).values() for variable in several]
    global_seed: Any = global_seed_state()
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
