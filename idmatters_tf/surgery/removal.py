"""Removal of residual blocks that are near the identity."""

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
from idmatters_tf.surgery._carrying import compile_like
from idmatters_tf.surgery._copying import (
    ModelCopy,
    checked_graph,
    nested_graph,
    operations,
    recurrent_states,
    single_tensor,
)


@dataclasses.dataclass(frozen=True)
class Removal:
    """Result of `remove_identities`.

    Attributes:
        model: copy of the model without the removed blocks.
        distances: dict from blocks to their distances from the identity on the data, ||block(x) - x|| / ||x||
            (Frobenius norms over all examples and calls), in ascending order.
        removed: names of the removed blocks, in the order of the network.
        before, after: loss and metrics on the data with and without the blocks, from `model.evaluate`. Empty if the
            model is not compiled with a loss or the data has no targets.
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
    """Return a copy of a model without the residual blocks that are nearly the identity on data.

    It is the reverse of `deepen`. Two kinds of blocks are candidates, also in nested models:

    - a layer or nested model with kernels whose output has the shape of its input, such as `ResidualConv2D`, except
      Keras' own layers;
    - a sum of a tensor and a branch computed from this tensor, by `keras.layers.Add` or `+`, as in
      `keras.applications.ResNet50`. It is removed with all layers of the branch.

    A block is removed if ||block(x) - x|| <= tolerance ||x||. Each distance is measured with all other blocks in place.
    If several blocks are removed, compare `before` with `after`. A tolerance of 0 removes exact identities only, such
    as untrained blocks of `deepen`. Use it to read `distances` and choose a larger tolerance.

    Source: Veit et al., *Residual Networks Behave Like Ensembles of Relatively Shallow Networks* (2016,
    arXiv:1605.06431): trained residual networks lose little accuracy without single blocks.

    Args:
        model: built functional or Sequential model, which is not changed.
        tolerance: largest relative distance of a removed block.
        data: (x, y) or (x, y, sample weights) as arrays, x alone as an array, or a `tf.data.Dataset` or another
            iterable of batches that can be iterated several times.
        optimizer: optimizer that has trained the model. Its state for the remaining variables is kept.
        batch_size: batch size for arrays.

    Returns:
        `Removal`.

    Raises:
        ValueError: if the model cannot be copied, `tolerance` is negative, or `data` is empty or has another type.
    """
    if not tolerance >= 0:
        raise ValueError(f"Argument `tolerance` must be 0 or more. Received: tolerance={tolerance!r}")
    graph = checked_graph(model)
    if hasattr(data, "__array__"):
        data = (data,)
    batches = Batches(data, batch_size)
    first = next(iter(batches), None)
    if first is None:
        raise ValueError("Argument `data` must contain at least one example. Received: none")
    has_loss = has_compiled_loss(model) and keras.utils.unpack_x_y_sample_weight(first)[1] is not None
    skips = _skips(graph)
    distances = _distances(model, batches, skips)
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
        removed=tuple(path for key, path in names.items() if key in copy.removed_ids),
        before=_evaluate(model, batches) if has_loss else {},
        after=_evaluate(copy.model, batches) if has_loss else {},
    )


def _skips(graph: Any) -> dict[int, int]:
    """Return, by `id` of each sum x + f(x), the position of x among its arguments."""
    places: dict[int, int | None] = {}
    for node in _keras_internals.nodes(graph):
        nested = nested_graph(node.operation)
        if nested is not None:
            places |= _skips(nested)
        if not _keras_internals.is_addition(node.operation) or len(node.input_tensors) != 2:
            continue
        first, second = node.input_tensors
        place = 0 if _depends(second, first) else 1 if _depends(first, second) else None
        if first is second or tuple(first.shape) != tuple(second.shape):
            place = None
        # All calls of a shared sum must have the same structure.
        same = places.setdefault(id(node.operation), place) == place
        places[id(node.operation)] = place if same else None
    return {key: place for key, place in places.items() if place is not None}


def _depends(tensor: Tensor, on: Tensor) -> bool:
    """Return True if a symbolic tensor is computed from another one."""
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
    """Return the distance of each block from the identity over the data, by its `id`."""
    sums: dict[int, list[float]] = {}
    unfit: set[int] = set()

    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        nested = nested_graph(operation)
        # A nested model that is called with a mask or training=True is treated as one operation.
        plain = len(args) == 1 and all(value is None or value is False for value in kwargs.values())
        if nested is not None and plain:
            inputs = _keras_internals.standardized_inputs(nested, args[0])
            outputs = _keras_internals.run_graph(nested, inputs, call)
        else:
            outputs = operation(*args, **kwargs)
        tensors = keras.tree.flatten(args)
        place = skips.get(id(operation), 0)
        given = single_tensor(args) if id(operation) not in skips else tensors[place] if place < len(tensors) else None
        returned = single_tensor(outputs)
        if id(operation) in skips or _may_be_block(operation):
            if given is None or returned is None or tuple(given.shape) != tuple(returned.shape):
                unfit.add(id(operation))
            else:
                x, y = (np.asarray(ops.convert_to_numpy(part)).astype(np.float64) for part in (given, returned))
                total = sums.setdefault(id(operation), [0.0, 0.0])
                total[0], total[1] = total[0] + np.sum((y - x) ** 2), total[1] + np.sum(x**2)
        return outputs

    graph = _keras_internals.get_graph(model)
    for batch in batches:
        inputs = _keras_internals.standardized_inputs(graph, keras.utils.unpack_x_y_sample_weight(batch)[0])
        with _keras_internals.substitute_values():
            _keras_internals.run_graph(graph, inputs, call)
    return {
        key: float(np.sqrt(changed / size)) if size else float(np.sqrt(changed))
        for key, (changed, size) in sums.items()
        if key not in unfit
    }


def _may_be_block(operation: Any) -> bool:
    """Return True if an operation has kernels and may have a skip, which excludes Keras' own layers."""
    if not isinstance(operation, keras.layers.Layer) or not any(len(weight.shape) > 1 for weight in operation.weights):
        return False
    return isinstance(operation, keras.Model) or not type(operation).__module__.startswith("keras.")


def _evaluate(model: keras.Model, batches: Batches) -> dict[str, float]:
    """Return the loss and metrics of a model on batches, without changing its state."""
    # A generator, because Keras reads a list of batches as the arrays of several inputs. Without `steps`, Keras counts
    # the end of the data as a batch.
    examples = (keras.utils.unpack_x_y_sample_weight(batch) for batch in batches)
    variables = [*model.variables, *model.metrics_variables, *recurrent_states(model)]
    values = [np.array(ops.convert_to_numpy(variable)) for variable in variables]
    try:
        options: dict[str, Any] = {"steps": sum(1 for _ in batches), "return_dict": True, "verbose": 0}
        results: Any = model.evaluate(examples, **options)
    finally:
        # On JAX, an evaluation that fails would leave the variables without values.
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    return {name: float(value) for name, value in results.items()}
