"""Optimizers in pure Keras: momentum as in TensorFlow 1, and Muon for convolution kernels."""

from idmatters_tf.optimizers.momentum import Momentum
from idmatters_tf.optimizers.muon import Muon

__all__ = ["Momentum", "Muon"]
