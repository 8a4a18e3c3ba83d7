"""Short trainings of one model from given starts at given learning rates."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_internals import checked_arrays, compile_arguments

WINDOWS, LIMIT = 10, 2.0
"""Number of windows of a training; largest mean loss of a window of a stable one, relative to the first loss."""

MakeOptimizer = Callable[[float], keras.optimizers.Optimizer]


class Trials:
    """Trainings of a model with `fit`, each from the same start and on the same batches for a seed.

    The model is trained inside another one. Its compiled state does not change.

    Args:
        model: a built model.
        optimizer: function of a learning rate that returns an optimizer.
        data, batch_size: see `rate_profile`.
        loss: a loss for `compile`; None for that of a compiled model.
        steps: number of steps of a training.
    """

    def __init__(self, model: keras.Model, optimizer: MakeOptimizer, data: Any, loss: Any, steps: int, batch_size: int):
        self.model, self._make, self._batches = model, optimizer, TrialBatches(data, batch_size)
        self.window = max(1, steps // WINDOWS)
        self.windows = -(-steps // self.window)
        weights: Any = None
        if loss is None:
            compiled = compile_arguments(model)
            if compiled is None or model.loss is None:
                raise ValueError(
                    "Argument `loss` must be given for a model that is not compiled with a loss. Received: None."
                )
            loss, weights = model.loss, compiled.get("loss_weights")
        self._options = {"loss": loss, "loss_weights": weights, "steps_per_execution": self.window}
        self._trained: Any = None
        self._settings: Any = None
        self._optimizer_start: list[Any] = []

    def train(self, start: Sequence[Any], rate: float, seed: int, first: float = np.inf) -> NDArray[np.float64]:
        """Train from a start, up to the first window whose mean loss is not finite or above `first` by its size.

        Returns:
            Mean losses of the windows.
        """
        trained = self._compiled(rate)
        for variable, value in zip(self.model.variables, start, strict=True):
            variable.assign(value)
        # A loss may be negative.
        losses = _Losses(first + (LIMIT - 1) * abs(first))
        windows = 1 if not rate else self.windows
        options: Any = {"shuffle": False, "verbose": 0}
        trained.fit(self._batches(seed), epochs=windows, steps_per_epoch=self.window, callbacks=[losses], **options)
        return np.array(losses.values)

    def first_loss(self, start: Sequence[Any], seed: int) -> float:
        """Return the mean loss of the first window without steps, by a training with a learning rate of 0."""
        return float(self.train(start, 0.0, seed)[0])

    def _compiled(self, rate: float) -> keras.Model:
        """Return the model for training with an optimizer in its initial state, compiled again only if necessary."""
        optimizer: Any = self._make(rate)
        settings = optimizer.get_config() | {"name": None}
        if not isinstance(settings["learning_rate"], dict):
            # Not a schedule.
            settings["learning_rate"] = None
        if settings != self._settings:
            self._trained, self._settings = Trained(self.model), settings
            self._trained.compile(optimizer, **self._options)
            if hasattr(optimizer, "build_for"):
                optimizer.build_for(self.model)
            optimizer = self._trained.optimizer
            optimizer.build(self.model.trainable_variables)
            self._optimizer_start = [keras.ops.convert_to_numpy(variable) for variable in optimizer.variables]
        trained: Any = self._trained
        for variable, value in zip(trained.optimizer.variables, self._optimizer_start, strict=True):
            variable.assign(value)
        if settings["learning_rate"] is None:
            trained.optimizer.learning_rate = rate
        return trained


class Trained(keras.Model):
    """Model that calls another one, and trains its variables."""

    def __init__(self, model: keras.Model):
        super().__init__()
        self.inner = model
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.inner(inputs, training=training)


class _Losses(keras.callbacks.Callback):
    """Mean losses of the epochs. Training stops after one above a limit."""

    def __init__(self, limit: float):
        super().__init__()
        self.limit = limit
        self.values: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.values.append(float(logs["loss"]))
        if not self.values[-1] <= self.limit:
            model: Any = self.model
            model.stop_training = True


class TrialBatches:
    """Batches for trainings: of arrays, random ones that depend on a seed; otherwise those of an iterable, repeated."""

    def __init__(self, data: Any, batch_size: int):
        positive_integer("batch_size", batch_size)
        self._data, self._batch_size = data, batch_size
        if isinstance(data, tuple):
            self._data = checked_arrays(data)
        elif hasattr(data, "__array__") or not hasattr(data, "__iter__") or iter(data) is data:
            raise ValueError(
                f"Argument `data` must be a tuple of arrays (x, y), or batches that can be iterated more than once, "
                f"such as a tf.data.Dataset. Received: {type(data).__name__}"
            )

    def __call__(self, seed: int) -> Iterator[Any]:
        """Return an infinite iterator of batches."""
        if not isinstance(self._data, tuple):
            return itertools.chain.from_iterable(itertools.repeat(self._data))
        return self._random_batches(np.random.default_rng(seed))

    def _random_batches(self, generator: np.random.Generator) -> Iterator[Any]:
        arrays: Any = self._data
        examples = next(len(array) for array in keras.tree.flatten(arrays) if array is not None)
        while True:
            order = generator.permutation(examples)
            for start in range(0, max(1, examples - self._batch_size + 1), self._batch_size):
                rows = order[start : start + self._batch_size]
                yield keras.tree.map_structure(lambda array, rows=rows: None if array is None else array[rows], arrays)
