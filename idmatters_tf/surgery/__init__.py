"""Surgery on Keras models that exist: residual blocks are added as the identity, and taken out where they are near it.

Neither changes what the network computes when it happens; both keep the weights and, where an optimizer is given, its
state, so that training goes on. docs/howto/deepen.md has worked examples.
"""

from idmatters_tf.surgery.deepening import deepen
from idmatters_tf.surgery.removal import Removal, remove_identities

__all__ = ["Removal", "deepen", "remove_identities"]
