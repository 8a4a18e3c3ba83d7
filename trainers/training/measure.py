"""Losses, metrics and evaluation of image classification with integer labels and logits."""

from collections.abc import Callable
from typing import TypeAlias, cast

import keras
from keras import ops

from idmatters_tf._keras_types import Tensor
from idmatters_tf._presentation.progress import Progress
from idmatters_tf.data.protocols import EvaluationBatchSource
from idmatters_tf.distribute.strategies import distribute_dataset

# Errors as fractions, mean cross-entropy and number of images, see `measure`.
Measured: TypeAlias = dict[str, float]
# For `verbose`, which Keras annotates as a string.
SILENT = cast(str, 0)
# With fewer classes the top-5 error is not informative.
TOP5_CLASSES = 50


def make_loss(label_smoothing: float) -> keras.losses.Loss | Callable[[Tensor, Tensor], Tensor]:
    """Return the cross-entropy of logits with integer labels, with a share distributed over all classes."""
    if not label_smoothing:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def smoothed(y_true: Tensor, y_pred: Tensor) -> Tensor:
        labels = ops.one_hot(ops.cast(y_true, "int32"), y_pred.shape[-1], dtype=y_pred.dtype)
        return keras.losses.categorical_crossentropy(labels, y_pred, from_logits=True, label_smoothing=label_smoothing)

    return smoothed


def make_metrics(classes: int) -> list[keras.metrics.Metric]:
    """Return the metrics: cross-entropy of the labels, top-1 error and, for at least 50 classes, top-5 error."""
    metrics: list[keras.metrics.Metric] = [
        keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True),
        keras.metrics.MeanMetricWrapper(compute_errors, name="error"),
    ]
    if classes >= TOP5_CLASSES:
        metrics.append(keras.metrics.MeanMetricWrapper(compute_errors, name="top5_error", top=5))
    return metrics


def compute_errors(labels: Tensor, logits: Tensor, top: int = 1) -> Tensor:
    """Return 1 where the label is not among the `top` largest logits, and 0 elsewhere.

    Of equal logits the first ones are chosen, as in the predictions of the model.
    """
    labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
    if top == 1:
        return ops.cast(ops.not_equal(ops.cast(ops.argmax(logits, axis=1), "int32"), labels), "float32")
    top_k: Tensor = ops.top_k(logits, top)
    chosen = top_k[1]
    # The operator != has no static rank for unknown batch sizes.
    return ops.cast(ops.all(ops.not_equal(ops.cast(chosen, "int32"), labels[:, None]), axis=1), "float32")


def as_float(value: Tensor) -> float:
    """Return a scalar of the backend as a number."""
    array: Tensor = ops.convert_to_numpy(value)
    return float(array)


def measure(model: keras.Model, batches: EvaluationBatchSource, count: int, progress: bool = True) -> Measured:
    """Evaluate a network, compiled by `trainers.training.train.build_model`, once on each of `count` test images.

    Returns:
        A dict with `loss` (mean cross-entropy), `error` (top-1, a fraction), `count` and, for at least 50 classes,
        `top5_error`.
    """
    strategy = getattr(model, "distribute_strategy", None)
    is_jax = keras.backend.backend() == "jax"
    dataset = iter(batches) if is_jax else distribute_dataset(strategy, batches.dataset)
    with Progress(batches.steps, "evaluating", progress, unit="batches", delay=0) as bar:
        shown = keras.callbacks.LambdaCallback(
            on_test_batch_end=lambda _, logs: bar.advance(text=f"error {100 * logs['error']:.2f} %")
        )
        measured = model.evaluate(dataset, steps=batches.steps, verbose=SILENT, callbacks=[shown], return_dict=True)
    # Metrics are float32.
    errors = {name: round(measured[name] * count) / count for name in ("error", "top5_error") if name in measured}
    return {"loss": measured["cross_entropy"], "count": count, **errors}


def average_over_mirror_images(model: keras.Model) -> keras.Model:
    """Return a compiled model whose logits are averaged over each image and its mirror image."""
    images = keras.Input(model.input_shape[1:], dtype=model.inputs[0].dtype)
    logits = (model(images) + model(keras.ops.flip(images, axis=2))) / 2
    averaged = keras.Model(images, logits)
    averaged.compile(
        loss=model.loss, weighted_metrics=make_metrics(logits.shape[-1]), jit_compile=cast(str, model.jit_compile)
    )
    return averaged
