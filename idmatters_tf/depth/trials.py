"""Short trainings of one model from given starts at given learning rates."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._evaluation.batches import TrainingBatches
from idmatters_tf._keras_internals import (
    compile_arguments,
    inner_optimizer,
    is_task,
    kept_training_state,
    learning_rate_schedule,
    model_of,
)
from idmatters_tf._keras_internals.random_state import kept_outer_state, seeded
from idmatters_tf._keras_types import Data, Logs, Loss, Options, Strategy, Structure, Tensor
from idmatters_tf.depth._scaled_optimizers import DepthScaling, make_scaled
from idmatters_tf.optimizers.building import build_optimizer, new_optimizer

WINDOWS, LIMIT = 10, 2.0
"""Number of windows of a training; largest mean loss of a window of a stable one, relative to that without steps."""

MakeOptimizer = Callable[[float], keras.optimizers.Optimizer]


class Trials(contextlib.ExitStack):
    """Trainings of a model with `fit`, each from the same start and on the same batches for a seed.

    Use it as a context manager. At the end, the weights, the optimizer and the compiled state of the model, the states
    of its recurrent layers, and the generators of Keras, NumPy and Python are restored.

    Args:
        model: a built model. It is trained itself, by its own `compute_loss` and `train_step`.
        optimizer: function of a learning rate that returns an optimizer; None for that of the compiled model.
        data, batch_size: see `rate_profile`. For data other than arrays, the first `steps` batches of each seed are
            kept.
        loss: a loss for `compile`; None for that of a compiled model.
        steps: number of steps of a training.
        scaling: scale of the model's branches, by which the optimizer's steps are scaled.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: MakeOptimizer | None,
        data: Data,
        loss: Loss,
        steps: int,
        batch_size: int,
        scaling: DepthScaling | None = None,
    ):
        super().__init__()
        _check_model(model)
        self.model, self._batches = model, TrainingBatches(data, batch_size)
        self._kept: dict[int, list[Structure]] = {}
        self._is_array = isinstance(data, tuple)
        make = _compiled_optimizer(model) if optimizer is None else optimizer
        self._make = make if scaling is None else lambda rate: make_scaled(make(rate), model, scaling)
        self._steps = positive_integer("steps", steps)
        window = max(1, steps // WINDOWS)
        # The mean loss of the first steps is that of a window of its own.
        full, rest = divmod(steps, window)
        self._windows = ([rest] if rest else []) + [window] * full
        found = compile_arguments(model) or {}
        kept = ("run_eagerly", "jit_compile", *(("loss", "loss_weights") if loss is None else ()))
        self._options: Options = {name: found[name] for name in kept if name in found}
        if loss is not None:
            self._options["loss"] = loss
        # The logs of an own `train_step` are means of an epoch or values of a step, which agree for epochs of one step.
        self._by_step = type(model).train_step is not keras.Model.train_step
        # `fit` calls compiled functions of this number of steps, which must divide both kinds of windows.
        self._options["steps_per_execution"] = 1 if self._by_step else math.gcd(window, rest)
        # The scale of the loss of a given optimizer is that of `compile`; that of the compiled one is its own.
        self._options["auto_scale_loss"] = optimizer is not None
        self._settings: object = None
        self._optimizer_start: list[np.ndarray] = []
        self._restore: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self._restore = self.enter_context(kept_outer_state(self.model))
        self.enter_context(kept_training_state(self.model))
        return self

    def train(
        self, start: Sequence[np.ndarray], rate: float, seed: int, before: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Train from a start, up to the first window whose mean loss is not finite or far above that without steps.

        Args:
            start: values of the model's variables.
            rate: learning rate.
            seed: seed of the batches.
            before: result of `losses_before` for this seed; None for no limit.

        Returns:
            Mean losses of the windows.
        """
        self._prepare(rate)
        return self._train(start, seed, before)

    def losses_before(self, start: Sequence[np.ndarray], seed: int) -> NDArray[np.float64]:
        """Return the mean losses of the windows without steps, by SGD with a learning rate of 0."""
        self._settings = None
        options: Options = self._options | {"optimizer": keras.optimizers.SGD(0.0)}
        keras.Model.compile(self.model, **options)
        return self._train(start, seed, None)

    def _train(self, start: Sequence[np.ndarray], seed: int, before: NDArray[np.float64] | None) -> NDArray[np.float64]:
        for variable, value in zip(self.model.variables, start, strict=True):
            variable.assign(value)
        self._restore()
        means: list[float] = []
        done = 0
        for size, group in itertools.groupby(self._windows):
            count = len(list(group))
            # A loss may be negative.
            limits = [np.inf] * count if before is None else [b + (LIMIT - 1) * abs(b) for b in before[len(means) :]]
            losses = _Losses(size if self._by_step else 1, limits)
            steps = 1 if self._by_step else size
            # Each call has an iterator of its own, because `fit` fetches batches in advance.
            options: Options = {"shuffle": False, "verbose": 0, "callbacks": [losses]}
            self.model.fit(self._take(seed, done), epochs=count * size // steps, steps_per_epoch=steps, **options)
            means += losses.means
            done += count * size
            if not losses.is_stable:
                break
        return np.array(means)

    def _take(self, seed: int, start: int) -> Iterator[Structure]:
        """Yield the batches of a seed from one on, the same ones at each call, without end."""
        if self._is_array:
            yield from itertools.islice(self._batches(seed), start, None)
        if seed not in self._kept:
            with seeded(seed):
                self._kept[seed] = list(itertools.islice(self._batches(seed), self._steps))
        yield from itertools.islice(itertools.cycle(self._kept[seed]), start, None)

    @property
    def windows(self) -> int:
        """Number of windows of a training."""
        return len(self._windows)

    def _prepare(self, rate: float) -> None:
        """Give the model an optimizer in its initial state. It is compiled again only if necessary."""
        model = self.model
        optimizer = self._make(rate)
        settings = _settings(optimizer)
        if settings is None or settings != self._settings:
            self._settings = settings
            keras.Model.compile(model, optimizer, **self._options)
            build_optimizer(model.optimizer, model)
            self._optimizer_start = [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.optimizer.variables]
            return
        for variable, value in zip(model.optimizer.variables, self._optimizer_start, strict=True):
            variable.assign(value)
        if learning_rate_schedule(inner_optimizer(optimizer)) is None:
            # That of the new optimizer, which may differ from the rate.
            model.optimizer.learning_rate = float(np.asarray(keras.ops.convert_to_numpy(optimizer.learning_rate)))


def _check_model(model: keras.Model) -> None:
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and _is_distributed(strategy):
        raise ValueError(
            f"Argument `model` must be on one device. Received: one in the scope of a {type(strategy).__name__}. Build "
            f"it outside of the scope: the rates are those of the same global batch."
        )
    if not model.built or not model.variables:
        raise ValueError(
            f"Argument `model` must be built. Received: {model.name!r} without weights. Call it on a batch of inputs "
            f"first."
        )
    # Tasks of KerasHub have a `compile` with other defaults.
    if type(model).compile is not keras.Model.compile and not is_task(model):
        raise ValueError(
            f"Argument `model` must have the method `compile` of keras.Model. Received: {type(model).__name__}, which "
            f"overrides it. Move the additional arguments to its constructor."
        )


def _is_distributed(strategy: Strategy) -> bool:
    """Return True for a strategy other than TensorFlow's default."""
    import tensorflow as tf

    with strategy.scope():
        return bool(tf.distribute.has_strategy())


def _settings(optimizer: keras.optimizers.Optimizer) -> object:
    """Return settings that determine a training up to a constant learning rate; None if they are not known.

    The configuration of an optimizer of another package may be incomplete.
    """
    if type(optimizer).__module__.partition(".")[0] not in ("keras", "idmatters_tf"):
        return None
    try:
        settings = optimizer.get_config() | {"name": None}
    except NotImplementedError:
        return None
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return None if _settings(inner) is None else (settings | {"inner_optimizer": None}, _settings(inner))
    if not isinstance(settings.get("learning_rate"), dict):
        # Not a schedule.
        settings["learning_rate"] = None
    return type(optimizer), settings


def _compiled_optimizer(model: keras.Model) -> MakeOptimizer:
    """Return a function of a learning rate that returns an optimizer like that of a compiled model."""
    compiled: keras.optimizers.Optimizer | None = getattr(model, "optimizer", None)
    if compiled is None or "learning_rate" not in inner_optimizer(compiled).get_config():
        received = "None" if compiled is None else type(compiled).__name__
        raise ValueError(
            "Argument `optimizer` must be given for a model that is not compiled with one, or with several. Received: "
            f"{received}. Pass a function of the rate, such as lambda rate: keras.optimizers.Adam(rate)."
        )
    same = {id(variable): variable for variable in model.variables}

    def make(rate: float) -> keras.optimizers.Optimizer:
        return new_optimizer(
            compiled, model, same, lambda old, config: type(old).from_config(config | {"learning_rate": rate})
        )

    return make


class _Losses(keras.callbacks.Callback):
    """Mean losses of windows of epochs. Training stops after one above its limit.

    Args:
        size: number of epochs in a window.
        limits: limits of the windows.
    """

    def __init__(self, size: int, limits: Sequence[float]):
        super().__init__()
        self._size, self._limits = size, limits
        self._values: list[float] = []
        self._logs: dict[str, Tensor] = {}
        self.means: list[float] = []

    @property
    def is_stable(self) -> bool:
        """True if no mean loss is above its limit."""
        return all(mean <= limit for mean, limit in zip(self.means, self._limits, strict=False))

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        # The result of the training step. In the logs of an epoch, Keras replaces it by a metric of the same name.
        self._logs = logs or {}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        model = model_of(self)
        if "loss" not in self._logs:
            raise ValueError(
                f'Argument `model` must return "loss" from its `train_step`. Received: {type(model).__name__}, which '
                f"returns {sorted(self._logs)}."
            )
        value = np.asarray(keras.ops.convert_to_numpy(self._logs["loss"]))
        self._values.append(float(np.mean(value)))
        if len(self._values) % self._size == 0:
            self.means.append(float(np.mean(self._values[-self._size :])))
            model.stop_training = not self.is_stable
