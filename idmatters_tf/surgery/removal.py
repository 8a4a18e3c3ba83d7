"""Shallower networks from trained ones: residual blocks that are near the identity are left out."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._keras_internals import has_compiled_loss
from idmatters_tf._keras_types import Tensor
from idmatters_tf.curvature._batches import Batches
from idmatters_tf.curvature._losses import split_batch
from idmatters_tf.surgery._carrying import compile_like
from idmatters_tf.surgery._copying import ModelCopy, checked_graph, opened, operations, single


@dataclasses.dataclass(frozen=True)
class Removal:
    """What `remove_identities` did.

    Attributes:
        model: without the blocks; a copy of the whole model where none was near enough.
        distances: by block, its distance from the identity on the data, ||block(x) - x|| / ||x|| (Frobenius norms over
            all examples and calls); in ascending order.
        removed: the blocks that were left out, in the order of the network.
        before, after: loss and metrics on the data, as `model.evaluate` returns them; empty where the model was not
            compiled with a loss or the data has no targets.
    """

    model: keras.Model
    distances: Mapping[str, float]
    removed: tuple[str, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]


def remove_identities(
    model: keras.Model,
    tolerance: float,
    data: Any,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    batch_size: int = 32,
) -> Removal:
    """A copy of a model without the residual blocks that are nearly the identity on data: the reverse of `deepen`.

    Two kinds of block are looked at, also inside of nested models:

    - a layer or nested model with kernels whose output has its input's shape, such as `ResidualConv2D`, Keras' own
      layers excepted; it goes where ||block(x) - x|| <= tolerance ||x||;
    - a sum of a tensor with a branch that is computed from this tensor, by `keras.layers.Add` or `+`, as in
      `keras.applications.ResNet50`; where the branch is as small, it goes with all its layers.

    Every distance is measured in the whole network: where several blocks go, what comes later has slightly other
    inputs, and `after` tells what that does to the loss.

    A tolerance of 0 removes what is exactly the identity, such as a block that `deepen` has inserted and that has not
    learned. Choose one from `distances`: with `tolerance=0` nothing else happens.

    Source: Veit et al., *Residual Networks Behave Like Ensembles of Relatively Shallow Networks* (2016), who find that
    trained residual networks lose little without single blocks.

    Args:
        model: a built functional or Sequential model; it is left as it is.
        tolerance: the largest relative distance of a block that is removed.
        data: (x, y) or (x, y, sample weights) as arrays, x alone as an array, or a `tf.data.Dataset` or another
            iterable of batches that can be gone through more than once.
        optimizer: the optimizer that has trained the model; its state for the remaining variables is carried over.
        batch_size: for arrays.

    Raises:
        ValueError: for a model that cannot be copied, a negative tolerance, or data that is no data.
    """
    if not tolerance >= 0:
        raise ValueError(f"Argument `tolerance` must be 0 or more. Received: tolerance={tolerance!r}")
    graph = checked_graph(model)
    if hasattr(data, "__array__"):
        data = (data,)
    skips = _skips(graph)
    distances = _distances(model, Batches(data, batch_size), skips)
    names = {id(operation): path for path, operation in operations(model)}
    near = {key for key, distance in distances.items() if distance <= tolerance}

    def instead(operation: Any, arguments: tuple[Any, ...]) -> Any:
        if id(operation) not in near:
            return None
        return keras.tree.flatten(arguments)[skips.get(id(operation), 0)]

    copy = ModelCopy(model, instead=instead)
    compile_like(copy.model, model, copy.variables, optimizer)
    return Removal(
        model=copy.model,
        distances={names[key]: distance for key, distance in sorted(distances.items(), key=lambda item: item[1])},
        removed=tuple(path for key, path in names.items() if key in copy.left_out),
        before=_evaluated(model, data, batch_size),
        after=_evaluated(copy.model, data, batch_size),
    )


def _skips(graph: Any) -> dict[int, int]:
    """By `id` of each sum of a tensor and a branch computed from it, the place of the tensor among the arguments."""
    found: dict[int, int | None] = {}
    for node in _keras_internals.nodes(graph):
        nested = opened(node.operation)
        if nested is not None:
            found |= _skips(nested)
        if not _keras_internals.is_addition(node.operation) or len(node.input_tensors) != 2:
            continue
        first, second = node.input_tensors
        place = 0 if _depends(second, first) else 1 if _depends(first, second) else None
        if first is second or tuple(first.shape) != tuple(second.shape):
            place = None
        # A sum that is called several times has to be the same each time.
        same = found.setdefault(id(node.operation), place) == place
        found[id(node.operation)] = place if same else None
    return {key: place for key, place in found.items() if place is not None}


def _depends(tensor: Tensor, on: Tensor) -> bool:
    """Whether a symbolic tensor is computed from another one."""
    waiting, seen = [tensor], set()
    while waiting:
        current = waiting.pop()
        if current is on:
            return True
        if id(current) not in seen:
            seen.add(id(current))
            waiting += _keras_internals.producer(current).input_tensors
    return False


def _distances(model: Any, batches: Batches, skips: Mapping[int, int]) -> dict[int, float]:
    """By `id` of each block, its distance from the identity over the data."""
    sums: dict[int, list[float]] = {}
    unfit: set[int] = set()

    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        nested = opened(operation)
        # Where a mask or training=True is given, the nested model stays closed.
        plain = len(args) == 1 and all(value is None or value is False for value in kwargs.values())
        if nested is not None and plain:
            inputs = _keras_internals.standardized_inputs(nested, args[0])
            outputs = _keras_internals.run_graph(nested, inputs, call)
        else:
            outputs = operation(*args, **kwargs)
        tensors = keras.tree.flatten(args)
        place = skips.get(id(operation), 0)
        given = single(args) if id(operation) not in skips else tensors[place] if place < len(tensors) else None
        returned = single(outputs)
        if id(operation) in skips or _may_be_block(operation):
            if given is None or returned is None or tuple(given.shape) != tuple(returned.shape):
                unfit.add(id(operation))
            else:
                x, y = (np.asarray(ops.convert_to_numpy(part)).astype(np.float64) for part in (given, returned))
                total = sums.setdefault(id(operation), [0.0, 0.0])
                total[0], total[1] = total[0] + np.sum((y - x) ** 2), total[1] + np.sum(x**2)
        return outputs

    graph = _keras_internals.graph_of(model)
    for batch in batches:
        inputs = _keras_internals.standardized_inputs(graph, split_batch(batch).x)
        _keras_internals.run_graph(graph, inputs, call)
    return {
        key: float(np.sqrt(changed / size)) if size else float(np.sqrt(changed))
        for key, (changed, size) in sums.items()
        if key not in unfit
    }


def _may_be_block(operation: Any) -> bool:
    """Whether an operation has kernels and may have a skip, which none of Keras' own layers has."""
    if not isinstance(operation, keras.layers.Layer) or not any(len(weight.shape) > 1 for weight in operation.weights):
        return False
    return isinstance(operation, keras.Model) or not type(operation).__module__.startswith("keras.")


def _evaluated(model: keras.Model, data: Any, batch_size: int) -> dict[str, float]:
    if not has_compiled_loss(model) or (isinstance(data, tuple) and len(data) < 2):
        return {}
    options: dict[str, Any] = {"return_dict": True, "verbose": 0}
    if isinstance(data, tuple):
        values: Any = model.evaluate(*data[:2], sample_weight=(*data, None)[2], batch_size=batch_size, **options)
    else:
        values = model.evaluate(data, **options)
    return {name: float(value) for name, value in values.items()}
