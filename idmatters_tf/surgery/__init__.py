"""Insertion and removal of residual blocks in trained Keras models.

`deepen` inserts blocks as the identity, and `remove_identities` removes blocks that are near it. Both return a copy
with the weights and, if an optimizer is passed, its state, so that training continues. See docs/howto/deepen.md for
examples.
"""

from idmatters_tf.surgery.deepening import deepen
from idmatters_tf.surgery.removal import Removal, remove_identities

__all__ = ["Removal", "deepen", "remove_identities"]
