"""Internals of `model.fit` and `model.compile` in Keras 3.15."""

import dataclasses
import sys
from typing import Any

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from idmatters_tf._keras_internals.graphs import layers_within

# By Keras' own callbacks, the attributes that change from one event to the next. Files, writers and settings are left
# out.
CALLBACK_STATES: dict[type, tuple[str, ...]] = {
    keras.callbacks.CSVLogger: (),
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
    keras.callbacks.History: ("history", "epoch"),
    keras.callbacks.LearningRateScheduler: (),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.ProgbarLogger: (),
    keras.callbacks.ReduceLROnPlateau: ("best", "wait", "cooldown_counter"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    keras.callbacks.TerminateOnNaN: (),
}
# Attributes of every callback, and those that `MonitorCallback` derives from its arguments.
CALLBACK_SETTINGS = {"params", "_model", "monitor_op", "min_delta"}


@dataclasses.dataclass(frozen=True)
class RunningFit:
    """A running call of `model.fit`.

    Attributes:
        callbacks: the list of all callbacks, Keras' own `History` and progress bar included.
        data: the argument `x` if it is a `PyDataset`, else None.
        initial_epoch, epochs, steps_per_epoch, validation_data: as given to `fit`.
    """

    callbacks: list[keras.callbacks.Callback]
    data: Any
    initial_epoch: int
    epochs: int
    steps_per_epoch: int | None
    validation_data: Any
    _iterator: Any

    def keep_order(self) -> None:
        """Disable the shuffling of a `PyDataset`'s batches, and count them anew."""
        self._iterator.data_adapter.shuffle = False
        self._iterator._num_batches = self.data.num_batches

    def begin_epoch_at(self, batch: int) -> None:
        """Start the next epoch at a later batch: the loop counts from there, and takes its data in order."""
        iterator = self._iterator
        whole_epoch = type(iterator)._enumerate_iterator

        def rest_of_epoch():
            del iterator._enumerate_iterator
            # Keras only counts here; the data are taken by the training function.
            return (each for each in whole_epoch(iterator) if each[0] >= batch)

        iterator._enumerate_iterator = rest_of_epoch


def running_fit(model: keras.Model) -> RunningFit | None:
    """Return the running `fit` of the model, found in the call stack, for Keras passes it to no callback.

    None without one, and where the model overrides `fit` with a loop of its own.
    """
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals
        if found.get("self") is model and frame.f_code.co_name == "fit" and "epoch_iterator" in found:
            adapter = found["epoch_iterator"].data_adapter
            return RunningFit(
                found["callbacks"].callbacks,
                adapter.py_dataset if isinstance(adapter, PyDatasetAdapter) else None,
                found["initial_epoch"],
                found["epochs"],
                found["steps_per_epoch"],
                found["validation_data"],
                found["epoch_iterator"],
            )
        frame = frame.f_back
    return None


def start_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Replace `initial_epoch` of a running `fit`, in `on_train_begin`; None restores it."""
    model._initial_epoch = epoch


def build_for_training(model: keras.Model, batch: Any) -> None:
    """Create the variables of the model, its metrics and optimizer that the first training step would create."""
    built: Any = model
    try:
        built._symbolic_build(data_batch=batch)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # A model with a training step of its own may have no `call`: its parts are what is trained.
        parts = [layer for layer in layers_within(model) if layer is not model]
        if type(model).train_step is keras.Model.train_step or not parts or not all(each.built for each in parts):
            raise


def compile_arguments(model: keras.Model) -> dict[str, Any] | None:
    """Return the arguments of `model.compile`, as objects; None if it was not called, or is overridden."""
    if not model.compiled or type(model).compile is not keras.Model.compile:
        return None
    return dict(model._compile_config.config)


def loss_arguments(loss: keras.losses.Loss) -> dict[str, Any]:
    """Return the arguments of a loss's function, which `Huber` and others leave out of their configuration."""
    return dict(getattr(loss, "_fn_kwargs", {}))
