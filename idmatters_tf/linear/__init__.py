"""Theory of deep linear networks in float64, with NumPy and SciPy (joblib for sweeps) and without Keras.

It contains the landscape theory of Hardt & Ma, *Identity Matters in Deep Learning*, and Li et al.,
*Demystifying ResNet*. Where the printed versions disagree, the correct formula is used and the docstring names its
version.

Results that are unpacked in a fixed order are NamedTuples: `W, loss = least_squares_optimum(X, Y)`. Results that are
accessed by name are frozen dataclasses: `gradient_dominance(A, R).tau`.
"""

# ruff: noqa: I001 - grouped by subject, a table of contents

# Residual networks A (depth, d, d) and n-shortcut networks W (units, n, d, d).
from idmatters_tf.linear.network import compose, initial_weights, layer_norms, shortcut_compose, tensor_norm

# Hardt & Ma: the risk of a residual network, its gradient, and the certificate (2.3).
from idmatters_tf.linear.risk import (
    GradientDominance,
    dominance_factors,
    gradient_dominance,
    population_risk,
    risk_gradient,
)

# Hardt & Ma: optima of small norm (Theorem 2.1).
from idmatters_tf.linear.factorization import (
    FactorizationBounds,
    augment,
    factorization_bounds,
    factorize,
)

# Li et al.: loss, gradient and Hessian of n-shortcut and plain networks, and the zero point.
from idmatters_tf.linear.shortcuts import shortcut_gradient, shortcut_risk
from idmatters_tf.linear.hessian import ShortcutHessian, shortcut_hessian
from idmatters_tf.linear.zero import zero_hessian_spectrum, zero_stationary_order

# Data: second moments, optimum, whitening.
from idmatters_tf.linear.statistics import (
    Optimum,
    PrincipalComponents,
    Statistics,
    least_squares_optimum,
    sufficient_statistics,
    whiten,
)

# Gradient descent of many networks in parallel.
from idmatters_tf.linear.dynamics import Trajectories, gradient_descent, sweep

__all__ = [
    "FactorizationBounds",
    "GradientDominance",
    "Optimum",
    "PrincipalComponents",
    "ShortcutHessian",
    "Statistics",
    "Trajectories",
    "augment",
    "compose",
    "dominance_factors",
    "factorization_bounds",
    "factorize",
    "gradient_descent",
    "gradient_dominance",
    "initial_weights",
    "layer_norms",
    "least_squares_optimum",
    "population_risk",
    "risk_gradient",
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
