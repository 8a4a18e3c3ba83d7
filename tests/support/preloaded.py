"""Imports of the server that forks the processes of `tests.support.processes`. They compute nothing."""

import gc
import importlib
import os

# Modules that `trainers.cifar` imports.
MODULES = ("keras", "matplotlib.pyplot", "tensorflow", "trainers.cifar")
MODULES += ("idmatters_tf.curvature", "idmatters_tf.data.streams", "idmatters_tf.models.cifar")
MODULES += ("trainers.cluster", "trainers.run.figures")
MODULES += ("trainers.training.export", "trainers.training.reports", "trainers.training.sizes")
MODULES += ("trainers.training.train", "tests.support.processes")

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
for name in MODULES:
    importlib.import_module(name)

import tensorflow as tf  # noqa: E402

from idmatters_tf._tensorflow_internals.pipelines import without_autotuning  # noqa: E402

# As in tests/conftest.py.
tf.data.Dataset._apply_debug_options = without_autotuning
# The garbage collector of a forked process would write to shared memory.
gc.freeze()
