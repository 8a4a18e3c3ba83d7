"""Checksums of batches and variables."""

import sys
import zlib

import keras
import numpy as np

from idmatters_tf._keras_types import Structure


def checksum(structure: Structure) -> int:
    """Return the CRC-32 of the types, shapes and values of nested arrays and tensors, also strings and ragged ones."""
    value = 0
    for part in keras.tree.flatten(structure):
        for tensor in [] if part is None else _components(part):
            array = np.ascontiguousarray(tensor)
            value = zlib.crc32(f"{array.dtype}{array.shape}".encode(), value)
            content = str(array.tolist()).encode() if array.dtype.hasobject else array.reshape(-1).view(np.uint8).data
            value = zlib.crc32(content, value)
    return value


def _components(part):
    """Return the arrays of a tensor, of which ragged and sparse tensors have several."""
    # Without an import of TensorFlow, also for batches on JAX.
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(part, (tf.RaggedTensor, tf.SparseTensor)):
        return [component.numpy() for component in tf.nest.flatten(part, expand_composites=True)]
    return [keras.ops.convert_to_numpy(part)] if keras.ops.is_tensor(part) else [np.asarray(part)]
