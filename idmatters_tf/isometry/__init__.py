"""Distances of the blocks of a Keras model from the identity, singular values and norms.

Jacobians are SciPy operators, and the functions for singular values accept any SciPy operator. See
docs/explanation/isometry.md for definitions and accuracy, and docs/howto/block_distances.md for the calls.
"""

# ruff: noqa: I001 - grouped by subject, a table of contents

# Blocks and whole models.
from idmatters_tf.isometry.measurement import (
    BlockDistances,
    BlockIsometry,
    Isometry,
    block_distances,
    measure,
)
from idmatters_tf.isometry.blocks import Block, find_blocks
from idmatters_tf.isometry.influence import BlockInfluence, LayerInfluence, layer_influence

# Matrix-free linear maps.
from idmatters_tf.isometry.jacobian import jacobian
from idmatters_tf.isometry.operators import JacobianOperator

# Singular values: all, and extreme ones.
from idmatters_tf.spectra import (
    ExtremeSingularValues,
    extreme_singular_values,
    singular_values,
    spectral_norm,
)

# Norms of kernels.
from idmatters_tf.isometry.norms import KernelNorms, block_norms, kernel_norms

# Measurements during training.
from idmatters_tf.isometry.callbacks import BlockNorms, IsometryMonitor, NormsMeasurement

__all__ = [
    "Block",
    "BlockDistances",
    "BlockInfluence",
    "BlockIsometry",
    "BlockNorms",
    "ExtremeSingularValues",
    "Isometry",
    "IsometryMonitor",
    "JacobianOperator",
    "KernelNorms",
    "LayerInfluence",
    "NormsMeasurement",
    "block_distances",
    "block_norms",
    "extreme_singular_values",
    "find_blocks",
    "jacobian",
    "kernel_norms",
    "layer_influence",
    "measure",
    "singular_values",
    "spectral_norm",
]
