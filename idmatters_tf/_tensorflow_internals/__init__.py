"""Internals of TensorFlow 2.21. No other module of the package uses any.

training             traced training steps, without importing TensorFlow
kernels              kernels of the CPU
pipelines            operations of `tf.data` pipelines
patching             temporary replacement of attributes of other libraries
second_derivatives   replacements for functions with wrong second derivatives
"""
