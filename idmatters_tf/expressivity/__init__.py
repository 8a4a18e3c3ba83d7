"""Universal finite-sample expressivity: Hardt & Ma's Theorem 3.2 made executable, at any width.

memorize            a Keras model that maps each row of a sample to the one-hot vector of its label, in closed form
verify              every row of a sample through a model, against its label
verify_exactly      the same in rational arithmetic
certified_radii     how far each point may move, in rational arithmetic and rounded down
check_assumption    what the paper's own constants ask of a sample, and by how much they fail
"""

# ruff: noqa: I001 - in the order of use, a table of contents

# The network, its check and its report: in Keras.
from idmatters_tf.expressivity.memorizer import Report, memorize
from idmatters_tf.expressivity.verification import Verification, verify
from idmatters_tf.expressivity.models import ExactModel

# The later, smaller constructions.
from idmatters_tf.expressivity.lookup_memorizer import LookupReport
from idmatters_tf.expressivity.lookup import Lookup, construct_lookup, evaluate_exactly, lower_bound
from idmatters_tf.expressivity.three_layers import (
    ThreeLayers,
    construct_three_layers,
    evaluate_three_layers_exactly,
)
from idmatters_tf.expressivity.lookup_network import BitReader, ChunkIndicator, SlotLabel

# Without any rounding.
from idmatters_tf.expressivity.rational import verify_exactly

# How far a point may move.
from idmatters_tf.expressivity.radius import certified_radii, radii_of

# The paper's assumption and constants.
from idmatters_tf.expressivity.assumption import AssumptionCheck, check_assumption

# The weights alone: in NumPy float64.
from idmatters_tf.expressivity.construction import Weights, construct

__all__ = [
    "AssumptionCheck",
    "BitReader",
    "ChunkIndicator",
    "ExactModel",
    "Lookup",
    "LookupReport",
    "Report",
    "SlotLabel",
    "ThreeLayers",
    "Verification",
    "Weights",
    "certified_radii",
    "check_assumption",
    "construct",
    "construct_lookup",
    "construct_three_layers",
    "evaluate_exactly",
    "evaluate_three_layers_exactly",
    "lower_bound",
    "memorize",
    "radii_of",
    "verify",
    "verify_exactly",
]
