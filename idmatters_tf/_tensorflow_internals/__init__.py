"""Internals of TensorFlow 2.21. No other module of the package uses any.

runtime              traced training steps, random operations, kernels of the CPU, errors of a cluster
collectives          operations between workers, with the types that they lack
pipelines            operations of `tf.data` pipelines
patching             temporary replacement of attributes of other libraries
second_derivatives   replacements for functions with wrong second derivatives
"""
