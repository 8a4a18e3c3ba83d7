"""Memorizing networks in closed form: Hardt & Ma's Theorem 3.2 for any width, and smaller constructions.

memorize            build a Keras model that maps each row of a sample to the one-hot vector of its label
verify              compare the outputs of a model with the labels, on every row
verify_exactly      the same comparison in rational arithmetic
certified_radii     radii of balls around the points in which the answer does not change
check_assumption    the conditions of the paper's proof, evaluated on a sample
"""

# ruff: noqa: I001 - in the order of use, a table of contents

# Keras models, their verification and reports.
from idmatters_tf.expressivity.memorizer import Report, memorize
from idmatters_tf.expressivity.verification import Verification, verify
from idmatters_tf.expressivity.models import ExactModel

# Smaller constructions.
from idmatters_tf.expressivity.lookup_memorizer import LookupReport
from idmatters_tf.expressivity.lookup import Lookup, construct_lookup, lower_bound
from idmatters_tf.expressivity.three_layers import ThreeLayers, construct_three_layers
from idmatters_tf.expressivity.lookup_network import BitReader, ChunkIndicator, SlotLabel

# Verification and evaluation in rational arithmetic.
from idmatters_tf.expressivity.rational import evaluate_exactly, evaluate_three_layers_exactly, verify_exactly

# Certified radii.
from idmatters_tf.expressivity.radius import certified_radii, compute_radii

# Assumption and constants of the paper.
from idmatters_tf.expressivity.assumption import AssumptionCheck, check_assumption

# Weights as NumPy float64 arrays.
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
    "compute_radii",
    "construct",
    "construct_lookup",
    "construct_three_layers",
    "evaluate_exactly",
    "evaluate_three_layers_exactly",
    "lower_bound",
    "memorize",
    "verify",
    "verify_exactly",
]
