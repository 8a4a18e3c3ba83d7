"""Distances of the blocks of a Keras model from the identity, singular values and norms.

The operators for Jacobians and convolutions are SciPy's; the functions of singular values take any SciPy operator. See
docs/explanation/isometry.md.
"""

# ruff: noqa: I001 - grouped by subject, a table of contents

# Each block, and the whole model.
from idmatters_tf.isometry.measurement import BlockIsometry, Isometry, block_distances, draw_distances, measure
from idmatters_tf.isometry.blocks import Block, find_blocks

# Linear maps, exact and never formed: products from both sides.
from idmatters_tf.isometry.jacobian import JacobianOperator, jacobian
from idmatters_tf.isometry.convolution import ConvolutionOperator

# Their singular values: all, at the ends, and the density.
from idmatters_tf.isometry.spectra import (
    ExtremeSingularValues,
    extreme_singular_values,
    singular_value_density,
    singular_values,
    spectral_norm,
)

# Kernels: distances from the identity, norms.
from idmatters_tf.isometry.kernels import (
    KernelDistance,
    delta_orthogonal_kernel,
    identity_kernel,
    kernel_distance,
    kernel_distances,
)
from idmatters_tf.isometry.norms import KernelNorms, block_norms, branch_bounds, kernel_norms

# During training.
from idmatters_tf.isometry.callbacks import IsometryMonitor

__all__ = [
    "Block",
    "BlockIsometry",
    "ConvolutionOperator",
    "ExtremeSingularValues",
    "Isometry",
    "IsometryMonitor",
    "JacobianOperator",
    "KernelDistance",
    "KernelNorms",
    "block_distances",
    "block_norms",
    "branch_bounds",
    "delta_orthogonal_kernel",
    "draw_distances",
    "extreme_singular_values",
    "find_blocks",
    "identity_kernel",
    "jacobian",
    "kernel_distance",
    "kernel_distances",
    "kernel_norms",
    "measure",
    "singular_value_density",
    "singular_values",
    "spectral_norm",
]
