"""Internals of TensorFlow 2.21's coordination service, which connects workers. TensorFlow is imported on use."""

from typing import Any


def report_error(message: str) -> None:
    """Stop the operations of all workers that wait for others, with an UnavailableError of a message."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    current: Any = context.context()
    current.report_error_to_cluster(tf.errors.UNAVAILABLE, message)
