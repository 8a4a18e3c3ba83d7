"""Optimizers in pure Keras: momentum as in TensorFlow 1, and Muon for the kernels of all layers."""

from idmatters_tf.optimizers.kernels import KernelMatrices, layer_matrices
from idmatters_tf.optimizers.momentum import Momentum
from idmatters_tf.optimizers.muon import Muon

__all__ = ["KernelMatrices", "Momentum", "Muon", "layer_matrices"]
