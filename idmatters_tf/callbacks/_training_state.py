"""The numbers that `fit` changes: variables of the model, its optimizer and its metrics, and random generators."""

import random
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals import global_seed_state, make_global_seed_state
from idmatters_tf._tensorflow_internals.training import traced_training_steps
from idmatters_tf.callbacks import _devices
from idmatters_tf.callbacks._model_parts import WaitingOptimizer, find_generators, find_optimizers

# TensorFlow's random operations whose state lives inside the operation, where nobody can read it.
_STATEFUL_RANDOM = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}


def variables(model: keras.Model) -> dict[str, list[Any]]:
    """Return the variables that a training step may change, by owner: weights, seed states, slots, metrics.

    The owner "optimizer" is the compiled one with all that it wraps; any other one is "optimizer PATH". The state of a
    `tf.random.Generator` is a `tf.Variable` of the owner "generator PATH".
    """
    optimizers: Any = find_optimizers(model)
    compiled = optimizers.pop("optimizer", None)
    owners = [
        ("model", model.variables),
        ("optimizer", [] if compiled is None else compiled.variables),
        ("metrics", model.metrics_variables),
        # Those that are wrapped first: the one around them then has its own variables alone.
        *((f"optimizer {path}", each.variables) for path, each in reversed(optimizers.items())),
        *((f"generator {path}", [each.state]) for path, each in find_generators(model).items()),
    ]
    found: dict[str, list[Any]] = {}
    seen: set[int] = set()
    for owner, several in owners:
        own = [variable for variable in {id(each): each for each in several}.values() if id(variable) not in seen]
        seen |= set(map(id, own))
        if own or owner in ("model", "optimizer", "metrics"):
            found[owner] = own
    return found


def unbuilt(model: keras.Model) -> dict[str, Any]:
    """The optimizers that have no slots yet, by owner."""
    optimizers: Any = find_optimizers(model)
    owners = {path: "optimizer" if path == "optimizer" else f"optimizer {path}" for path in optimizers}
    return {owners[path]: each for path, each in optimizers.items() if not each.built}


def description(model: keras.Model) -> dict[str, list[list[Any]]]:
    """Return [path, shape, dtype] of each variable, by owner; for a random generator its algorithm as well."""
    generators = {f"generator {path}": each for path, each in find_generators(model).items()}

    def describe(owner, variable):
        if owner in generators:
            # Philox and ThreeFry have states of their own.
            return ["state", list(variable.shape), f"int64 of the algorithm {_algorithm(generators[owner])}"]
        return [variable.path, list(variable.shape), str(variable.dtype)]

    return {owner: [describe(owner, each) for each in several] for owner, several in variables(model).items()}


def read(model: keras.Model) -> dict[str, Any]:
    """The values of the variables and of the global generators of Python, NumPy and Keras, as plain data."""
    global_seed = global_seed_state()
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - the one that others draw from
    version, internal, gauss = random.getstate()
    return {
        "variables": {owner: [_devices.read(each) for each in several] for owner, several in variables(model).items()},
        "random": {
            "python": (version, np.array(internal, np.uint32), gauss),
            "numpy": (name, keys, *rest),
            "keras": None if global_seed is None else _devices.read(global_seed),
        },
    }


def assign(
    model: keras.Model, state: dict[str, Any], described: dict[str, list[list[Any]]]
) -> dict[str, WaitingOptimizer]:
    """Assigns what `read` has returned.

    Args:
        model: it was read from one like this.
        state: what was returned.
        described: the `description` of then.

    Returns:
        By owner, the optimizers that are assigned their values when they are built.
    """
    waiting, not_built = {}, unbuilt(model)
    for owner, several in variables(model).items():
        values = state["variables"][owner]
        if owner in not_built and len(values) > len(several):
            optimizer = not_built[owner]
            waiting[owner] = WaitingOptimizer(
                optimizer, owner, lambda owner=owner: variables(model)[owner], values, described[owner]
            )
            continue
        for variable, value in zip(several, values, strict=True):
            _devices.assign(variable, value)
    generators = state["random"]
    version, internal, gauss = generators["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    np.random.set_state(generators["numpy"])  # noqa: NPY002
    if generators["keras"] is not None:
        with _devices.scope(model):
            _devices.assign(make_global_seed_state(), generators["keras"])
    return waiting


def difference(
    saved: dict[str, list[list[Any]]], now: dict[str, list[list[Any]]], growing: Iterable[str] = ()
) -> str | None:
    """How two descriptions differ, in words; None where shapes and types are the same, in the same order.

    Args:
        saved, now: what `description` returned.
        growing: owners of which one description may have more than the other, since they are built by a step.
    """
    for owner in dict.fromkeys([*saved, *now]):
        before, after = saved.get(owner, []), now.get(owner, [])
        for old, new in zip(before, after, strict=False):
            if old[1:] != new[1:]:
                return f"{_shown(old)} of the {owner} has become {_shown(new)}"
        if len(before) != len(after) and owner not in growing:
            longer, word = (before, "is missing") if len(before) > len(after) else (after, "is new")
            return f"{_shown(longer[min(len(before), len(after))])} of the {owner} {word}"
    return None


def check_complete(model: keras.Model) -> None:
    """Checks that the training step that TensorFlow has traced keeps its state in the variables above.

    On JAX a training step is a function of these variables to begin with. Steps that run eagerly are not checked.

    Raises:
        ValueError: it has state elsewhere, which is named.
    """
    if keras.backend.backend() != "tensorflow":
        return
    every = [each for several in variables(model).values() for each in several]
    global_seed: Any = global_seed_state()
    if global_seed is not None:
        every.append(global_seed)
    known = set().union(*map(_devices.identities, every))
    for step in traced_training_steps(model):
        for variable in step.variables:
            if id(variable) not in known:
                raise ValueError(
                    f"The training step uses the variable {variable.name}, which belongs neither to the model nor to "
                    f"its optimizers or metrics, so that ExactResume cannot restore it. Make it a weight of a layer "
                    f"(`add_weight`), a metric, or a `keras.random.SeedGenerator` or `tf.random.Generator` of a layer."
                )
        graph = step.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        stateful = sorted({node.op for node in nodes} & _STATEFUL_RANDOM)
        if stateful:
            node = next(node for node in nodes if node.op == stateful[0])
            raise ValueError(
                f"The training step draws random numbers from TensorFlow's operation {node.op} ({node.name}), whose "
                f"state cannot be read, so that ExactResume cannot restore it. Use `keras.random` with a "
                f"`keras.random.SeedGenerator` of the layer, a `tf.random.Generator` of the layer, or "
                f"`tf.random.stateless_*`."
            )


def _algorithm(generator):
    import tensorflow as tf

    return tf.random.Algorithm(generator.algorithm).name.lower()


def _shown(described):
    path, shape, dtype = described
    return f"{path} {tuple(shape)} {dtype}"
