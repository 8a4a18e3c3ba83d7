"""Spectra of SciPy operators and matrices, in NumPy: eigenpairs, density, trace, diagonal, singular values.

`idmatters_tf.curvature` applies them to Hessians and `idmatters_tf.isometry` to Jacobians; both export these names.
"""

# ruff: noqa: I001 - grouped by subject, a table of contents

# Extreme eigenvalues, spectral density, and a summary of all eigenvalues.
from idmatters_tf.spectra.eigenpairs import Eigenpairs, top_eigenpairs
from idmatters_tf.spectra.density import SpectralDensity, spectral_density
from idmatters_tf.spectra.summary import Summary, summarize

# Stochastic estimates with standard errors.
from idmatters_tf.spectra.estimators import Estimate, diagonal, trace

# Singular values: all, and extreme ones.
from idmatters_tf.spectra.singular import (
    ExtremeSingularValues,
    extreme_singular_values,
    singular_values,
    spectral_norm,
)

__all__ = [
    "Eigenpairs",
    "Estimate",
    "ExtremeSingularValues",
    "SpectralDensity",
    "Summary",
    "diagonal",
    "extreme_singular_values",
    "singular_values",
    "spectral_density",
    "spectral_norm",
    "summarize",
    "top_eigenpairs",
    "trace",
]
