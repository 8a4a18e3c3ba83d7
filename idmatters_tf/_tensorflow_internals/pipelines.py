"""Internals of `tf.data` in TensorFlow 2.21: operations of a pipeline. TensorFlow is imported on use."""

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from idmatters_tf._keras_types import Tensor
from idmatters_tf._tensorflow_internals.patching import Patch

if TYPE_CHECKING:
    from idmatters_tf._keras_types import Dataset

_TABLE_OPERATIONS = {"LookupTableFindV2", "LookupTableInsertV2"}
# Calls of functions, which are searched as well, and checks.
_STATELESS_OPERATIONS = {"Assert", "Case", "If", "StatefulPartitionedCall", "While"}
# Operations of functions that write files.
_WRITING_OPERATIONS = {"MergeV2Checkpoints", "Save", "SaveSlices", "SaveV2", "WriteFile"}
# Pairs of seeds that `seed_later_pipelines` has drawn, which differ each time that the program runs.
_drawn: set[tuple[int, int]] = set()
_seeds: Iterator[tuple[int, int]] = iter(())


def operations(dataset: "Dataset") -> Iterator["Dataset"]:
    """Yield the datasets of a `tf.data` pipeline, from the last operation to the sources."""
    yield dataset
    for source in dataset._inputs():
        yield from operations(source)


def draws_seeds(operation: "Dataset") -> bool:
    """Return True for an operation that draws new random seeds for each iteration, like `shuffle` by default."""
    reshuffles = getattr(operation, "_reshuffle_each_iteration", False) is not False
    return reshuffles or bool(getattr(operation, "_rerandomize", False))


def is_unseeded(operation: "Dataset") -> bool:
    """Return True for an operation whose random seeds differ each time that the program runs."""
    return _seeds_of(operation) in _drawn | {(0, 0)}


def _seeds_of(operation: object) -> tuple[int, int] | None:
    first, second = (getattr(operation, name, None) for name in ("_seed", "_seed2"))
    return None if first is None or second is None else (int(first), int(second))


def seed_later_pipelines(seed: int) -> None:
    """Give random operations of later pipelines, such as `shuffle`, a seed if neither they nor TensorFlow have one.

    Args:
        seed: positive number below 2^31. The n-th operation has the seeds (seed, n).
    """
    global _seeds
    from tensorflow.python.data.util import random_seed

    if not _drawn:
        original = random_seed.get_seed
        Patch((random_seed, "get_seed", lambda seed: _choose_seeds(seed, original))).__enter__()
    _seeds = zip(itertools.repeat(seed), itertools.count(1), strict=False)
    _drawn.add((seed, 0))


def global_seed() -> int | None:
    """Return the seed that `tf.random.set_seed` has set, or None."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    return context.global_seed() if tf.executing_eagerly() else tf.compat.v1.get_default_graph().seed


def _choose_seeds(seed: int | None, original: Callable[[int | None], tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    import tensorflow as tf

    if seed is not None or global_seed() is not None:
        return original(seed)
    seeds = next(_seeds)
    _drawn.add(seeds)
    return tuple(tf.constant(number, tf.int64) for number in seeds)


def describe_order(data: "Dataset") -> list[str]:
    """Return the operations of a `tf.data.Dataset` with their seeds. They are equal in processes of equal order.

    Raises:
        ValueError: the order differs between processes that create this dataset.
    """
    described = []
    for operation in operations(data):
        name = type(operation).__name__.removeprefix("_").removesuffix("Dataset")
        seeds = _seeds_of(operation)
        if seeds == (0, 0):
            raise ValueError(
                f"{name} has no seed, so that each worker has another order. Pass a `seed` to it, or create the "
                f"dataset after `multi_worker_strategy()`."
            )
        if is_unordered(operation) or operation.options().deterministic is False:
            raise ValueError(f"{name} is not deterministic, so that each worker has another order. Remove this option.")
        if any(node.op == "RandomShuffle" and not _has_seeds(node) for node in _nodes(operation)):
            raise ValueError(
                f"{name} calls `tf.random.shuffle` without a seed, so that each worker has another order. Pass a "
                f"`seed` to it."
            )
        described.append(name if seeds is None else f"{name}(seed={seeds})")
    return described


def _has_seeds(node: Any) -> bool:
    return bool(node.attr["seed"].i or node.attr["seed2"].i)


def _nodes(operation: Any) -> Iterator[Any]:
    """Yield the nodes of the graphs of the functions of an operation."""
    for function in operation._functions():
        graph = function.function.graph.as_graph_def()
        yield from graph.node
        for inner in graph.library.function:
            yield from inner.node_def


def find_shuffles(operation: "Dataset") -> Iterator["Dataset"]:
    """Yield the operations that draw seeds for each iteration, except for those below an in-memory cache."""
    if is_memory_cache(operation):
        return
    if draws_seeds(operation):
        yield operation
    for source in operation._inputs():
        yield from find_shuffles(source)


def is_unordered(operation: "Dataset") -> bool:
    """Return True for an operation with `deterministic=False`."""
    return getattr(operation, "_deterministic", None) == "false"


def is_memory_cache(operation: "Dataset") -> bool:
    """Return True for `cache()` without a file name."""
    return type(operation).__name__ == "CacheDataset" and not operation._filename.numpy()


def fills_only_tables(dataset: "Dataset") -> bool:
    """Return True if functions of a pipeline insert into lookup tables and have no other state."""
    from tensorflow.python.framework import op_def_registry

    names = {node.op for operation in operations(dataset) for node in _nodes(operation)}
    definitions = {name: op_def_registry.get(name) for name in names}
    stateful = {name for name, definition in definitions.items() if definition is None or definition.is_stateful}
    return "LookupTableInsertV2" in stateful and stateful <= _TABLE_OPERATIONS | _STATELESS_OPERATIONS


def draws_numbers(data: "Dataset") -> bool:
    """Return True if functions of a `tf.data.Dataset` draw random numbers, which may differ between processes."""
    return any("Random" in node.op and "Stateless" not in node.op for each in operations(data) for node in _nodes(each))


def find_writing_operation(data: "Dataset") -> str | None:
    """Return the first operation of a `tf.data.Dataset` that writes files, or None.

    A `cache(file)` whose files are complete only reads them.
    """
    import tensorflow as tf

    for operation in operations(data):
        name = type(operation).__name__.strip("_").removesuffix("Dataset")
        if name == "Cache" and not is_memory_cache(operation):
            file = operation._filename.numpy().decode()
            if not tf.io.gfile.exists(f"{file}.index"):
                return f"cache({file!r})"
        if name in ("LegacySnapshot", "Save", "Snapshot"):
            return name.removeprefix("Legacy").lower()
        for function in operation._functions():
            graph = function.function.graph.as_graph_def()
            for nodes in (graph.node, *(inner.node_def for inner in graph.library.function)):
                named = {node.name: node for node in nodes}
                for node in nodes:
                    if node.op in _WRITING_OPERATIONS or node.op.startswith(("SaveDataset", "SnapshotDataset")):
                        return node.op
                    if node.op.startswith("CacheDataset"):
                        file = named.get(node.input[1].partition(":")[0])
                        if file is None or file.attr["value"].tensor.string_val[:] != [b""]:
                            return "cache(file) in a function"
    return None


def sharding_policy(data: "Dataset") -> str:
    """Return the auto-sharding policy of a `tf.data.Dataset`: "AUTO", "DATA", "FILE", "HINT" or "OFF"."""
    return data.options().experimental_distribute.auto_shard_policy.name


def is_dataset(data: object) -> TypeGuard["Dataset"]:
    """Return True for a `tf.data.Dataset`, without importing TensorFlow."""
    return any(kind.__name__ == "DatasetV2" for kind in type(data).__mro__)


def without_autotuning(dataset: "Dataset") -> "Dataset":
    """Return a data set with autotuning turned off, for data sets that have no parameters to tune.

    An iterator that ends waits for the autotuning thread, which may sleep for up to a minute in long runs (TensorFlow
    2.21).
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
