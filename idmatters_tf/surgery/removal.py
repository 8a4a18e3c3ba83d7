"""Removal of residual blocks that are near the identity."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import keras
import numpy as np
from keras import ops

from idmatters_tf import _keras_internals
from idmatters_tf._evaluation.batches import RepeatableBatches, to_tensors
from idmatters_tf._keras_internals import has_compiled_loss, strategy_scope
from idmatters_tf._keras_types import Data, Options, Structure
from idmatters_tf.isometry.blocks import Block, checked_graph, find_operations
from idmatters_tf.isometry.influence import record_branches
from idmatters_tf.surgery._carrying import compile_like
from idmatters_tf.surgery._checks import check_not_quantized
from idmatters_tf.surgery._configured import ConfiguredModel, Slot
from idmatters_tf.surgery._copying import ModelCopy, operations


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
    data: Data,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    blocks: Sequence[str] | None = None,
    batch_size: int = 32,
) -> Removal:
    """Return a copy of a model without the residual blocks that are nearly the identity on data.

    It is the reverse of `deepen`. Candidates are the blocks of `idmatters_tf.isometry.layer_influence`, also in nested
    models: the residual layers of this package and of KerasHub; and sums x + f(x) by `keras.layers.Add` or `+`, as in
    `keras.applications.ResNet50`, which are removed with all layers of f.

    A block is removed if ||block(x) - x|| <= tolerance ||x||. Each distance is measured with all other blocks in place.
    If several blocks are removed, compare `before` with `after`. A tolerance of 0 removes exact identities only, such
    as untrained blocks of `deepen`. Use it to read `distances` and choose a larger tolerance.

    A KerasHub backbone or task is built again from its configuration with fewer layers, which must keep their kind.

    Source: Veit et al., *Residual Networks Behave Like Ensembles of Relatively Shallow Networks* (2016,
    arXiv:1605.06431): trained residual networks lose little accuracy without single blocks.

    Args:
        model: built functional or Sequential model, or a KerasHub backbone or task. It is not changed.
        tolerance: largest relative distance of a removed block.
        data: (x, y) or (x, y, sample weights) as arrays, x alone as an array or a dict of arrays, or a
            `tf.data.Dataset` or another iterable of batches that can be iterated several times.
        optimizer: optimizer that has trained the model. Its state for the remaining variables is kept.
        blocks: names of layers, as in `layer_influence`, in place of these candidates.
        batch_size: batch size for arrays.

    Returns:
        `Removal`.

    Raises:
        ValueError: if the model cannot be copied, remaining layers would change their kind, as Gemma's local and global
            attention, `tolerance` is negative, or `data` is empty or has another type.
    """
    if not tolerance >= 0:
        raise ValueError(f"Argument `tolerance` must be 0 or more. Received: tolerance={tolerance!r}")
    configured = ConfiguredModel.of(model)
    found = find_operations(model, checked_graph(model), blocks)
    if configured is None:
        removable = {id(operation) for _, operation in operations(model)}
        found = {name: block for name, block in found.items() if id(block.operation) in removable}
    else:
        check_not_quantized(model)
    is_inputs = hasattr(data, "__array__") or isinstance(data, Mapping)
    batches = RepeatableBatches((data,) if is_inputs else data, batch_size)
    first = next(iter(batches), None)
    if first is None:
        raise ValueError("Argument `data` must contain at least one example. Received: none")
    has_loss = has_compiled_loss(model) and keras.utils.unpack_x_y_sample_weight(first)[1] is not None
    distances = _measure_distances(model, found, batches)
    near = [found[name] for name, distance in distances.items() if distance <= tolerance]
    with strategy_scope(model):
        if configured is None:
            copied, variables, removed = _copy_without(model, near)
        else:
            copied, variables, removed = _rebuild_without(configured, found.values(), near)
        compile_like(copied, model, variables, optimizer)
    return Removal(
        model=copied,
        distances=distances,
        removed=tuple(removed),
        before=_evaluate(model, data, batches, batch_size) if has_loss else {},
        after=_evaluate(copied, data, batches, batch_size) if has_loss else {},
    )


def _measure_distances(model: keras.Model, blocks: Mapping[str, Block], batches: RepeatableBatches) -> dict[str, float]:
    """Return the distances of blocks from the identity, in ascending order. Blocks that are never called have none."""
    with record_branches(model, blocks) as sizes:
        for batch in batches:
            inputs = to_tensors(keras.utils.unpack_x_y_sample_weight(batch)[0])
            with _keras_internals.substitute_values():
                model(inputs, training=False)
    distances = {name: size.relative for name, size in sizes.items() if size.count}
    return dict(sorted(distances.items(), key=lambda item: item[1]))


def _rebuild_without(
    configured: ConfiguredModel, blocks: Collection[Block], near: Collection[Block]
) -> tuple[keras.Model, dict[int, keras.Variable], list[str]]:
    """Return a model without the layers whose blocks are all near the identity, its variables, and these layers."""
    kept = {id(block.operation) for block in blocks} - {id(block.operation) for block in near}
    measured = {id(block.operation) for block in blocks}
    remaining: list[Slot] = []
    for slot in configured.slots:
        # Blocks that change the shape are not among the blocks.
        owned = {id(layer) for layer in slot.layers} & measured
        if not owned or owned & kept:
            remaining.append(slot)
    rebuilt = configured.rebuild(remaining)
    return (
        rebuilt.model,
        rebuilt.variables,
        [n for slot in configured.slots if slot not in remaining for n in slot.names],
    )


def _copy_without(
    model: keras.Model, near: Collection[Block]
) -> tuple[keras.Model, dict[int, keras.Variable], list[str]]:
    """Return a copy without given blocks, its variables, and all removed operations."""
    indices = {block.operation: block.index for block in near}

    def instead(operation: keras.Operation, arguments: tuple[object, ...]) -> Structure:
        return keras.tree.flatten(arguments)[indices[operation]] if operation in indices else None

    copy = ModelCopy(model, instead=instead)
    removed = [path for path, operation in operations(model) if id(operation) in copy.removed_ids]
    return copy.model, copy.variables, removed


def _evaluate(model: keras.Model, data: Data, batches: RepeatableBatches, batch_size: int) -> dict[str, float]:
    """Return the loss and metrics of a model on data and their batches, without changing its state."""
    options: Options = {"return_dict": True, "verbose": 0}
    if isinstance(data, tuple):
        arguments = data[:2]
        options |= {"batch_size": batch_size, "sample_weight": data[2] if len(data) > 2 else None}
    else:
        # A generator, because Keras reads a list of batches as the arrays of several inputs. TensorFlow accepts no
        # lists of tensors. Without `steps`, Keras counts the end of the data as a batch.
        generator = (keras.tree.lists_to_tuples(keras.utils.unpack_x_y_sample_weight(batch)) for batch in batches)
        arguments = (data if hasattr(data, "cardinality") else generator,)
        options["steps"] = sum(1 for _ in batches)
    variables = [*model.variables, *model.metrics_variables, *_keras_internals.recurrent_states(model)]
    values = [np.array(ops.convert_to_numpy(variable)) for variable in variables]
    try:
        # The `evaluate` of KerasHub's tasks would preprocess the examples again.
        kind = keras.Model if _keras_internals.is_task(model) else type(model)
        evaluate: Callable[..., Options] = kind.evaluate
        results = evaluate(model, *arguments, **options)
    finally:
        # On JAX, an evaluation that fails would leave the variables without values.
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    return {name: float(value) for name, value in results.items()}
