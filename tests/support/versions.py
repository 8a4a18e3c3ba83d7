"""Marks of tests that some of the supported versions of Keras cannot run."""

import keras
import pytest

needs_several_optimizers = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras has no MultiOptimizer before 3.15"
)
needs_saved_tf_idf = pytest.mark.skipif(
    keras.__version__.startswith("3.13."), reason="Keras 3.13 cannot load the variables of tf-idf layers"
)
