"""Internals of TensorFlow 2.21. No other module of the package uses any.

training             traced training steps, without importing TensorFlow
pipelines            operations of `tf.data` pipelines
second_derivatives   replacements for functions with wrong second derivatives
"""
