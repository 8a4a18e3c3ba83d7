"""None in batches on several replicas of `tf.distribute`, which distributes tensors only.

A part of a batch that is None, such as the weights in `(x, y, None)`, is distributed as a tensor without elements. It
is None again in the step of a replica.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Shape of one example of an absent part. Arrays of users have elements.
_SHAPE = (0, 0)


def replace_none(dataset: Any) -> Any:
    """Return a `tf.data.Dataset` whose elements have tensors without elements in place of None."""
    spec = dataset.element_spec
    # TensorFlow 2.20 has no public name for the type of None.
    kinds = tf.OptionalSpec, type(tf.type_spec_from_value(None))
    if not any(isinstance(leaf, kinds) for leaf in keras.tree.flatten(spec)):
        return dataset

    def replace(*batch):
        return replace_none_of_batch(batch if isinstance(spec, tuple) else batch[0], tf.shape, tf.zeros)

    return dataset.map(replace)


def replace_none_of_batch(batch: Any, shape: Any = lambda leaf: leaf.shape, zeros: Any = np.zeros) -> Any:
    """Return a batch with arrays without elements in place of None."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if not _is_none(leaf)]
    if not leaves:
        return batch
    return keras.tree.map_structure(
        lambda leaf: zeros([shape(leaves[0])[0], *_SHAPE], "float32") if _is_none(leaf) else leaf, batch
    )


def restore_none(batch: Any) -> Any:
    """Return a batch, or the types of one, with None in place of tensors without elements."""
    return keras.tree.map_structure(lambda leaf: None if _is_none(leaf) or _is_replaced(leaf) else leaf, batch)


def _is_none(leaf):
    return leaf is None or isinstance(leaf, tf.experimental.Optional | tf.OptionalSpec)


def _is_replaced(leaf):
    shape = leaf.shape if isinstance(leaf, tf.Tensor | tf.TensorSpec) else None
    return shape is not None and shape.rank == 1 + len(_SHAPE) and tuple(shape[1:]) == _SHAPE
