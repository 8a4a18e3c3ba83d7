"""Evaluation of a compiled network on the test images."""

from collections.abc import Callable
from typing import Any

import keras

from idmatters_tf._progress import Progress
from idmatters_tf.callbacks._sources.any_step import distribute
from idmatters_tf.data.protocols import EvaluationBatchSource
from trainers.training.objectives import make_metrics


def measure(
    model: keras.Model,
    batches: EvaluationBatchSource,
    count: int,
    progress: bool = True,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Evaluate a network once on every image.

    Args:
        model: network, compiled by `trainers.training.build.build_model`.
        batches: test images.
        count: number of test images.
        progress: True to show the progress.
        is_interrupted: called after each batch; if it returns True, the evaluation ends.

    Returns:
        A dict with `loss` (mean cross-entropy), `error` (top-1, a fraction), `count` and, for at least 50 classes,
        `top5_error`; None after an interruption.
    """
    strategy: Any = getattr(model, "distribute_strategy", None)
    silent: Any = 0  # Keras annotates `verbose` as a string
    dataset = batches.dataset() if strategy is None else distribute(strategy, batches.dataset)
    with Progress(batches.steps, "evaluating", progress, unit="batches", delay=0) as bar:
        watch = _Watch(bar, is_interrupted)
        measured = model.evaluate(dataset, steps=batches.steps, verbose=silent, callbacks=[watch], return_dict=True)
    if watch.interrupted:
        return None
    # Metrics are float32.
    errors = {name: round(measured[name] * count) / count for name in ("error", "top5_error") if name in measured}
    return {"loss": measured["cross_entropy"], "count": count, **errors}


def average_over_mirror_images(model: keras.Model) -> keras.Model:
    """Return a compiled model whose logits are averaged over each image and its mirror image."""
    images = keras.Input(model.input_shape[1:], dtype=model.inputs[0].dtype)
    logits = (model(images) + model(keras.ops.flip(images, axis=2))) / 2
    averaged: Any = keras.Model(images, logits)
    averaged.compile(loss=model.loss, weighted_metrics=make_metrics(logits.shape[-1]), jit_compile=model.jit_compile)
    return averaged


class _Watch(keras.callbacks.Callback):
    def __init__(self, bar: Progress, is_interrupted: Callable[[], bool]):
        super().__init__()
        self._bar, self._is_interrupted, self.interrupted = bar, is_interrupted, False
        self._model: Any

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._bar.advance(text=f"error {100 * (logs or {})['error']:.2f} %")
        if self._is_interrupted():
            self.interrupted = self._model.stop_evaluating = True
