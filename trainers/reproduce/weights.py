"""The checksum of a run's weights.

SHA-256 over every tensor of the newest checkpoint (weights, optimizer, step), in the order of their names: the name in
UTF-8, then the tensor's bytes in C order. Runs on machines with the same number of threads and the same instructions
have the same one; others differ by rounding from the first step on.
"""

import hashlib
import pathlib

import numpy as np

from idmatters_tf.checkpointing import checkpoint_path, saved_steps
from trainers.cli.startup import import_tensorflow

# TensorFlow's description of the objects, which also names what does not belong to the weights.
_GRAPH = "OBJECT_GRAPH"


def weights_digest(folder: pathlib.Path) -> str | None:
    """The checksum, 64 hexadecimal digits; None for a folder without checkpoints.

    Args:
        folder: of a run.
    """
    steps = saved_steps(folder / "checkpoints")
    if not steps:
        return None
    import_tensorflow()
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(checkpoint_path(folder / "checkpoints", steps[-1]) / "checkpoint"))
    digest = hashlib.sha256()
    for name in sorted(name for name in reader.get_variable_to_shape_map() if _GRAPH not in name):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(reader.get_tensor(name)).tobytes())
    return digest.hexdigest()
