"""Memorizing networks in closed form: Hardt & Ma's Theorem 3.2, extended to any distinct points and any width.

memorize            build a Keras model that maps each row of a sample to the one-hot vector of its label
verify              compare the outputs of a model with the labels, on every row
check_assumption    evaluate the conditions of the paper's proof on a sample
ResidualDenseStack  a layer of thousands of `idmatters_tf.layers.ResidualDense` blocks, as in memorizers
"""

from idmatters_tf.expressivity.assumption import AssumptionCheck, check_assumption
from idmatters_tf.expressivity.memorizer import ExactModel, Report, Verification, memorize, verify
from idmatters_tf.expressivity.stack import ResidualDenseStack

__all__ = [
    "AssumptionCheck",
    "ExactModel",
    "Report",
    "ResidualDenseStack",
    "Verification",
    "check_assumption",
    "memorize",
    "verify",
]
