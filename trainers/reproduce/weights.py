"""Checksum of a run's weights.

The checksum is SHA-256 over every tensor of the newest intact checkpoint (weights, optimizer, step), sorted by name:
the name in UTF-8, then the bytes of the tensor in C order. It is equal on machines with the same number of threads and
the same instructions. On other machines, weights differ by rounding from the first step on.
"""

import hashlib
import pathlib

import numpy as np

from idmatters_tf.checkpointing import checkpoint_path, find_newest_intact
from trainers.cli.arguments import UsageError
from trainers.cli.startup import import_tensorflow, print_message

# TensorFlow's description of the objects, which also contains names unrelated to the weights.
_GRAPH = "OBJECT_GRAPH"
# File that every checkpoint contains.
_INDEX = "checkpoint.index"


def weights_digest(folder: pathlib.Path) -> str | None:
    """Return the checksum as 64 hexadecimal digits, or None for a folder without an intact checkpoint.

    Args:
        folder: folder of a run.

    Raises:
        UsageError: the checkpoint is not a TensorFlow checkpoint.
    """
    checkpoints = folder / "checkpoints"
    step = find_newest_intact(
        checkpoints,
        _INDEX,
        lambda path, damage: print_message(f"checkpoint {path} is damaged ({damage}): using the previous one"),
    )
    if step is None:
        return None
    import_tensorflow()
    import tensorflow as tf

    path = checkpoint_path(checkpoints, step)
    try:
        reader = tf.train.load_checkpoint(str(path / "checkpoint"))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is not a TensorFlow checkpoint. Remove it to use the previous one.") from error
    digest = hashlib.sha256()
    for name in sorted(name for name in reader.get_variable_to_shape_map() if _GRAPH not in name):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(reader.get_tensor(name)).tobytes())
    return digest.hexdigest()
