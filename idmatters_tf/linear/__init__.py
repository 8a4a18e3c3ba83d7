"""Theory of deep linear networks in float64, with NumPy and SciPy (joblib for sweeps) and without Keras.

It contains the landscape theory of Hardt & Ma, *Identity Matters in Deep Learning*, and Li et al., *Demystifying
ResNet*. Where the printed versions disagree, the correct formula is used and the docstring names its version.

Results that are unpacked in a fixed order are NamedTuples: `W, loss = least_squares_optimum(X, Y)`. Results that are
accessed by name are frozen dataclasses: `gradient_dominance(A, R).tau`.
"""

# ruff: noqa: I001 - grouped by subject, a table of contents

# Residual networks A (depth, d, d) and n-shortcut networks W (units, n, d, d).
from idmatters_tf.linear.network import compose, initial_weights, layer_norms, shortcut_compose, tensor_norm

# Hardt & Ma: the risk of a residual network, its gradient, and the certificate (2.3).
from idmatters_tf.linear.risk import (
    DominanceFactors,
    GradientDominance,
    dominance_factors,
    gradient_dominance,
    population_risk,
    risk_gradient,
)

# Hardt & Ma: optima of small norm (Theorem 2.1).
from idmatters_tf.linear.factorization import (
    FactorizationBounds,
    ScaledTarget,
    augment,
    factorization_bounds,
    factorize,
    flip_sign,
    scale_to_smallest_gamma,
)
from idmatters_tf.linear.operator_angle import operator_angle
from idmatters_tf.linear.orthogonal import NormalForm, normal_form

# Li et al.: loss, gradient and Hessian of n-shortcut and plain networks, and the zero point.
from idmatters_tf.linear.shortcuts import excess_risk, shortcut_gradient, shortcut_risk
from idmatters_tf.linear.hessian import ShortcutHessian, shortcut_hessian
from idmatters_tf.linear.zero import zero_hessian_spectrum, zero_stationary_order

# Data: second moments, optimum, whitening.
from idmatters_tf.linear.statistics import (
    Optimum,
    PrincipalComponents,
    Statistics,
    least_squares_optimum,
    principal_components,
    sufficient_statistics,
    whiten,
)

# Gradient descent of many networks in parallel.
from idmatters_tf.linear.dynamics import Trajectories, gradient_descent, sweep
from idmatters_tf.linear.power_projection import Projected, positivity, project_to_positive, projected_descent

# Gradient flow, its conserved quantities, and comparison with descent.
from idmatters_tf.linear.flow import (
    Flow,
    FlowComparison,
    balance_defects,
    balancedness,
    descent_against_flow,
    gradient_flow,
    sharpness,
)

# Guarantees of convergence theorems, and the identity start.
from idmatters_tf.linear.certificates import Certificate, certificates
from idmatters_tf.linear.identity_start import identity_start_barrier, scalar_recursions

__all__ = [
    "Certificate",
    "DominanceFactors",
    "FactorizationBounds",
    "Flow",
    "FlowComparison",
    "GradientDominance",
    "NormalForm",
    "Optimum",
    "PrincipalComponents",
    "Projected",
    "ScaledTarget",
    "ShortcutHessian",
    "Statistics",
    "Trajectories",
    "augment",
    "balance_defects",
    "balancedness",
    "certificates",
    "compose",
    "descent_against_flow",
    "dominance_factors",
    "excess_risk",
    "factorization_bounds",
    "factorize",
    "flip_sign",
    "gradient_descent",
    "gradient_dominance",
    "gradient_flow",
    "identity_start_barrier",
    "initial_weights",
    "layer_norms",
    "least_squares_optimum",
    "normal_form",
    "operator_angle",
    "population_risk",
    "positivity",
    "principal_components",
    "project_to_positive",
    "projected_descent",
    "risk_gradient",
    "scalar_recursions",
    "scale_to_smallest_gamma",
    "sharpness",
    "shortcut_compose",
    "shortcut_gradient",
    "shortcut_hessian",
    "shortcut_risk",
    "sufficient_statistics",
    "sweep",
    "tensor_norm",
    "whiten",
    "zero_hessian_spectrum",
    "zero_stationary_order",
]
