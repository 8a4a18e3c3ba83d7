"""Losses and metrics of image classification with integer labels and logits."""

from typing import Any

import keras
from keras import ops

# With fewer classes the top-5 error is not informative.
TOP5_CLASSES = 50


class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of logits with integer labels, a share of which is distributed over all classes.

    Args:
        label_smoothing: the share (Szegedy et al., 2016).
    """

    def __init__(self, label_smoothing: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.label_smoothing = label_smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels = ops.one_hot(ops.cast(y_true, "int32"), y_pred.shape[-1], dtype=y_pred.dtype)
        smoothing = self.label_smoothing
        return keras.losses.categorical_crossentropy(labels, y_pred, from_logits=True, label_smoothing=smoothing)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def make_loss(label_smoothing: float) -> keras.losses.Loss:
    """Return the loss of logits with integer labels."""
    if label_smoothing:
        return SmoothedCrossentropy(label_smoothing)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_metrics(classes: int) -> list[keras.metrics.Metric]:
    """Return the metrics: cross-entropy of the labels, top-1 error and, for at least 50 classes, top-5 error."""
    metrics: list[keras.metrics.Metric] = [
        keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True),
        keras.metrics.MeanMetricWrapper(compute_errors, name="error"),
    ]
    if classes >= TOP5_CLASSES:
        metrics.append(keras.metrics.MeanMetricWrapper(compute_errors, name="top5_error", top=5))
    return metrics


def compute_errors(labels: Any, logits: Any, top: int = 1) -> Any:
    """Return 1 where the label is not among the `top` largest logits, and 0 elsewhere.

    Of equal logits the first ones are chosen, as in the predictions of the model.
    """
    labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
    if top == 1:
        return ops.cast(ops.argmax(logits, axis=1) != labels, "float32")
    _, chosen = ops.top_k(logits, top)
    return ops.cast(ops.all(ops.cast(chosen, "int32") != labels[:, None], axis=1), "float32")
