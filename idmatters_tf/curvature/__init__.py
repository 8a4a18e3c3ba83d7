"""Hessian and Gauss-Newton matrices of any Keras model's loss, and their spectra.

The matrices are SciPy linear operators. The estimators accept any symmetric SciPy operator;
docs/explanation/curvature.md compares them.
"""

# ruff: noqa: I001 - grouped by subject, a table of contents

# Matrices, exact and never formed: products with vectors, blocks by layer.
from idmatters_tf.curvature.operators import GaussNewtonOperator, HessianOperator

# A loss of the model and a batch.
from idmatters_tf._evaluation.losses import ModelLoss

# The whole matrix.
from idmatters_tf.curvature.operators import dense_hessian

# Eigenvalues: summary, extreme eigenvalues, spectral density.
from idmatters_tf.spectra import Summary, summarize
from idmatters_tf.spectra import Eigenpairs, top_eigenpairs
from idmatters_tf.spectra import SpectralDensity, spectral_density

# Stochastic estimates with standard errors.
from idmatters_tf.spectra import Estimate, diagonal, trace

# During training.
from idmatters_tf.curvature.measurement import Measurement, measure
from idmatters_tf.curvature.stability import stability_threshold
from idmatters_tf.curvature.callbacks import CurvatureMonitor

__all__ = [
    "CurvatureMonitor",
    "Eigenpairs",
    "Estimate",
    "GaussNewtonOperator",
    "HessianOperator",
    "Measurement",
    "ModelLoss",
    "SpectralDensity",
    "Summary",
    "dense_hessian",
    "diagonal",
    "measure",
    "spectral_density",
    "stability_threshold",
    "summarize",
    "top_eigenpairs",
    "trace",
]
