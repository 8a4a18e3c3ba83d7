"""Internals of TensorFlow 2.21 that this package relies on, and no other module reaches for.

training             traced training steps and shuffled data sets, without importing TensorFlow
second_derivatives   replacements for functions with wrong second derivatives
"""
