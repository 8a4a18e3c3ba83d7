"""The checksum of a run's weights.

SHA-256 over every tensor of the newest intact checkpoint (weights, optimizer, step), in the order of their names: the
name in UTF-8, then the tensor's bytes in C order. Runs on machines with the same number of threads and the same
instructions have the same one; others differ by rounding from the first step on.
"""

import hashlib
import pathlib
from collections.abc import Callable

import numpy as np

from idmatters_tf._checkpointing import checkpoint_path, newest_intact
from trainers.cli.arguments import UsageError
from trainers.cli.startup import import_tensorflow, say

# TensorFlow's description of the objects, which also names what does not belong to the weights.
_GRAPH = "OBJECT_GRAPH"
# Without this file a folder is no checkpoint.
_INDEX = "checkpoint.index"


def weights_digest(folder: pathlib.Path, report: Callable[[str], object] = say) -> str | None:
    """The checksum, 64 hexadecimal digits; None for a folder without an intact checkpoint.

    Args:
        folder: of a run.
        report: called with a sentence for each damaged checkpoint that is passed over.

    Raises:
        UsageError: the checkpoint is not one of TensorFlow.
    """
    checkpoints = folder / "checkpoints"
    step = newest_intact(
        checkpoints,
        _INDEX,
        lambda path, damage: report(f"checkpoint {path} is damaged ({damage}): using the one before"),
    )
    if step is None:
        return None
    import_tensorflow()
    import tensorflow as tf

    path = checkpoint_path(checkpoints, step)
    try:
        reader = tf.train.load_checkpoint(str(path / "checkpoint"))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is not a checkpoint of TensorFlow. Remove it, and the one before is used.") from error
    digest = hashlib.sha256()
    for name in sorted(name for name in reader.get_variable_to_shape_map() if _GRAPH not in name):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(reader.get_tensor(name)).tobytes())
    return digest.hexdigest()
