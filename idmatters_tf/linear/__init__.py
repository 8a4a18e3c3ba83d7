"""Theory of deep linear networks, and of small residual ones, in float64 with NumPy and SciPy (joblib for sweeps).

It contains the landscape theory of Hardt & Ma, *Identity Matters in Deep Learning*, and Li et al.,
*Demystifying ResNet*, and the questions of four later papers. Where the printed versions disagree, the correct formula
is used and the docstring names its version.

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

# Bartlett, Helmbold & Long: descent from the identity.
from idmatters_tf.linear.identity_start import (
    eigenvalue_descent,
    identity_limit_curvature,
    identity_start_limit,
    identity_start_rate,
    steps_to_loss,
)
from idmatters_tf.linear.power_projection import PowerProjection, power_projection, project_positive

# Zou, Long & Gu: descent between fixed input and output maps.
from idmatters_tf.linear.fixed_maps import (
    FixedMaps,
    FixedMapsDescent,
    fixed_maps_descent,
    fixed_maps_factor,
    fixed_maps_rate,
    gaussian_maps,
    identity_maps,
)

# Yun, Sra & Jadbabaie: critical points of nonlinear residual networks.
from idmatters_tf.linear.residual_units import (
    CriticalPoint,
    LinearPredictor,
    ResidualNetwork,
    critical_point,
    linear_predictor,
)

# Marion, Fermanian, Biau & Vert: scale of random starts.
from idmatters_tf.linear.depth_limit import (
    depth_correlations,
    expected_change,
    first_order_change,
    signal_change,
)

__all__ = [
    "CriticalPoint",
    "FactorizationBounds",
    "FixedMaps",
    "FixedMapsDescent",
    "GradientDominance",
    "LinearPredictor",
    "Optimum",
    "PowerProjection",
    "PrincipalComponents",
    "ResidualNetwork",
    "ShortcutHessian",
    "Statistics",
    "Trajectories",
    "augment",
    "compose",
    "critical_point",
    "depth_correlations",
    "dominance_factors",
    "eigenvalue_descent",
    "expected_change",
    "factorization_bounds",
    "factorize",
    "first_order_change",
    "fixed_maps_descent",
    "fixed_maps_factor",
    "fixed_maps_rate",
    "gaussian_maps",
    "gradient_descent",
    "gradient_dominance",
    "identity_limit_curvature",
    "identity_maps",
    "identity_start_limit",
    "identity_start_rate",
    "initial_weights",
    "layer_norms",
    "least_squares_optimum",
    "linear_predictor",
    "population_risk",
    "power_projection",
    "project_positive",
    "risk_gradient",
    "shortcut_compose",
    "shortcut_gradient",
    "shortcut_hessian",
    "shortcut_risk",
    "signal_change",
    "steps_to_loss",
    "sufficient_statistics",
    "sweep",
    "tensor_norm",
    "whiten",
    "zero_hessian_spectrum",
    "zero_stationary_order",
]
