"""Backend of Keras in the programs, and TensorFlow, which is optional on JAX."""

import importlib.util
import os
import sys

from idmatters_tf._imports import require


def runs_on_tensorflow() -> bool:
    """Return True if TensorFlow is Keras' backend."""
    return (os.environ.get("KERAS_BACKEND") or "tensorflow") == "tensorflow"


def has_tensorflow() -> bool:
    """Return True if TensorFlow is installed. On JAX, programs on images in memory work without it."""
    return importlib.util.find_spec("tensorflow") is not None


def require_packages(*packages: str) -> None:
    """Raise ModuleNotFoundError unless Keras' backend and these optional packages are installed."""
    require("tensorflow" if runs_on_tensorflow() else "jax", *packages)


def import_tensorflow() -> None:
    """Import TensorFlow, whose Python code then logs errors only.

    On JAX it does nothing if TensorFlow is not installed.
    """
    if "tensorflow" in sys.modules or not (runs_on_tensorflow() or has_tensorflow()):
        return
    import tensorflow

    if not runs_on_tensorflow():
        # TensorFlow prepares the batches only, and would reserve the memory of the GPUs.
        tensorflow.config.set_visible_devices([], "GPU")
    tensorflow.get_logger().setLevel("ERROR")
