"""Internals of `tf.data` in TensorFlow 2.21: operations of a pipeline. TensorFlow is imported on use."""

from collections.abc import Iterator
from typing import Any

_TABLE_OPERATIONS = {"LookupTableFindV2", "LookupTableInsertV2"}
# Calls of functions, which are searched as well, and checks.
_STATELESS_OPERATIONS = {"Assert", "Case", "If", "StatefulPartitionedCall", "While"}


def operations(dataset: Any) -> Iterator[Any]:
    """Yield the datasets of a `tf.data` pipeline, from the last operation to the sources."""
    yield dataset
    for source in dataset._inputs():
        yield from operations(source)


def draws_seeds(operation: Any) -> bool:
    """Return True for an operation that draws new random seeds for each iteration, like `shuffle` by default."""
    reshuffles = getattr(operation, "_reshuffle_each_iteration", False) is not False
    return reshuffles or bool(getattr(operation, "_rerandomize", False))


def is_unseeded(operation: Any) -> bool:
    """Return True for an operation whose random seeds differ between processes."""
    seeds = [getattr(operation, name, None) for name in ("_seed", "_seed2")]
    return all(seed is not None and int(seed) == 0 for seed in seeds)


def is_unordered(operation: Any) -> bool:
    """Return True for an operation with `deterministic=False`."""
    return getattr(operation, "_deterministic", None) == "false"


def is_memory_cache(operation: Any) -> bool:
    """Return True for `cache()` without a file name."""
    return type(operation).__name__ == "CacheDataset" and not operation._filename.numpy()


def is_reshuffled(data: Any) -> bool:
    """Return True for a `tf.data.Dataset` whose order differs between iterations."""
    if not _is_dataset(data):
        return False
    shuffles = (operation for operation in operations(data) if "Shuffle" in type(operation).__name__)
    return any(getattr(shuffle, "_reshuffle_each_iteration", True) for shuffle in shuffles)


def fills_only_tables(dataset: Any) -> bool:
    """Return True if functions of a pipeline insert into lookup tables and have no other state."""
    from tensorflow.python.framework import op_def_registry

    names: set[str] = set()
    for operation in operations(dataset):
        for function in operation._functions():
            graph = function.function.graph.as_graph_def()
            nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
            names.update(node.op for node in nodes)
    definitions = {name: op_def_registry.get(name) for name in names}
    stateful = {name for name, definition in definitions.items() if definition is None or definition.is_stateful}
    return "LookupTableInsertV2" in stateful and stateful <= _TABLE_OPERATIONS | _STATELESS_OPERATIONS


def batch_sizes(data: Any) -> tuple[int, int] | None:
    """Return the sizes of the batches and of the last batch of a `tf.data.Dataset`, 0 if the last one is complete.

    None for other data, and for a dataset whose batches have an unknown size.
    """
    if not _is_dataset(data):
        return None
    for operation in operations(data):
        if "Unbatch" in type(operation).__name__:
            return None
        if hasattr(operation, "_batch_size"):
            size = int(operation._batch_size)
            rows = -1 if bool(operation._drop_remainder) else int(operation._input_dataset.cardinality())
            # Negative numbers are infinite and unknown.
            return size, max(rows, 0) % size
    return None


def is_never_sharded(data: Any) -> bool:
    """Return True for a `tf.data.Dataset` with the auto-sharding policy OFF."""
    if not _is_dataset(data):
        return False
    return data.options().experimental_distribute.auto_shard_policy.name == "OFF"


def _is_dataset(data):
    # Without importing TensorFlow.
    return any(kind.__name__ == "DatasetV2" for kind in type(data).__mro__)
