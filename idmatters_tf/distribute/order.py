"""Order of the training data: the chief's is that of all workers."""

import contextlib
import random
import secrets
import zlib
from collections.abc import Mapping

import keras
import numpy as np

from idmatters_tf._keras_internals import local_value, optimizer_variables
from idmatters_tf._keras_types import Options, Strategy
from idmatters_tf._tensorflow_internals.pipelines import describe_order, is_dataset, seed_later_pipelines
from idmatters_tf.distribute.tasks import describe_cluster, gather

# Arrays of more bytes are compared in evenly spaced rows.
_COMPARED_BYTES = 1 << 26
_COMPARED_ROWS = 1024
_DATA = ("x", "y", "sample_weight")
# Seeds are positive and below 2^31.
_SEEDS = 2**31 - 1


def share_seeds(strategy: Strategy | None) -> None:
    """Give pipelines of `tf.data` that are created later, and have no seed, the same seeds on all workers."""
    seed_later_pipelines(gather(strategy, draw_seed())[0])


def draw_seed() -> int:
    """Return a random seed."""
    return 1 + secrets.randbelow(_SEEDS - 1)


def describe_data(arguments: Options) -> dict[str, object]:
    """Return a JSON description of the data of a `fit`, which is equal on workers with the same data and order.

    Raises:
        ValueError: the order of a `tf.data.Dataset` differs between the workers.
    """
    given, weights = arguments["validation_data"], arguments["class_weight"]
    given = given if isinstance(given, list | tuple) else (given,)
    names = ("batch_size", "shuffle", "steps_per_epoch", "validation_split", "validation_steps", "validation_freq")
    return {
        **describe_arrays(arguments),
        **describe_arrays(dict(zip(_DATA, given, strict=False)), "validation "),
        "class_weight": weights and {str(name): float(weight) for name, weight in weights.items()},
        **{name: arguments[name] for name in (*names, "validation_batch_size")},
    }


def describe_arrays(arguments: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return a JSON description of inputs, labels and weights, see `describe_data`."""
    described: dict[str, object] = {}
    for name, value in ((f"{prefix}{name}", arguments[name]) for name in _DATA if name in arguments):
        if is_dataset(value):
            described[f"the operations of {name}"] = describe_order(value)
            described[f"the number of batches of {name}"] = int(value.cardinality())
        else:
            described[f"the number of examples of {name}"] = count_rows(value)
            described[f"the checksum of {name}"] = compute_checksum(value)
    return described


def describe_variables(model: keras.Model) -> dict[str, object]:
    """Return a JSON description of the weights of a model and of the variables of its optimizer."""
    described: dict[str, object] = {}
    optimizer = [] if model.optimizer is None else optimizer_variables(model.optimizer)
    for variable in [*model.variables, *optimizer]:
        described[f"the checksum of {variable.path}"] = compute_checksum([local_value(variable)])
        described[f"trainable of {variable.path}"] = bool(variable.trainable)
    return described


def synchronize_generators(strategy: Strategy | None) -> None:
    """Give the global generators of Python and NumPy on all workers the state of the chief's."""
    version, internal, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    state = [[version, internal, gauss], [name, np.asarray(keys).tolist(), *rest]]
    checksums = gather(strategy, zlib.crc32(repr(state).encode()))
    if len(set(checksums)) == 1:
        return
    cluster = describe_cluster(strategy)
    is_chief = cluster is None or cluster.is_chief
    (version, internal, gauss), (name, keys, *rest) = gather(strategy, state if is_chief else None)[0]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state((name, np.array(keys, np.uint32), *rest))  # noqa: NPY002


def count_rows(x: object) -> int | None:
    """Return the number of examples of arrays, or None for other data."""
    leaves = keras.tree.flatten(x)
    if not leaves or isinstance(x, keras.utils.PyDataset) or not all(hasattr(leaf, "shape") for leaf in leaves):
        return None
    return leaves[0].shape[0] if leaves[0].shape else None


def compute_checksum(arrays: object) -> int:
    """Return the CRC-32 of nested arrays. It is 0 for other data."""
    checksum = 0
    for leaf in keras.tree.flatten(arrays):
        if getattr(leaf, "shape", None) is None:
            continue
        step = 1
        if leaf.shape and getattr(leaf, "nbytes", 0) > _COMPARED_BYTES:
            step = max(1, leaf.shape[0] // _COMPARED_ROWS)
        # Sparse and ragged tensors have no rows of equal length.
        with contextlib.suppress(TypeError, ValueError, AttributeError, NotImplementedError):
            array = np.asarray(leaf if step == 1 else leaf[::step])
            content = repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
            checksum = zlib.crc32(content, checksum)
    return checksum
