"""Internals of `model.fit` and `model.compile` in Keras."""

import copy
import dataclasses
import sys
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np

from idmatters_tf._keras_internals.graphs import layers_within
from idmatters_tf._keras_internals.keras_source import array_slicing, data_adapter_utils, data_adapters, module_utils
from idmatters_tf._keras_internals.versions import ORBAX_CHECKPOINTS_SINCE_3_14
from idmatters_tf._keras_types import Arrays, Strategy, Structure

# Imported on use.
tf = module_utils.tensorflow
# Attributes of Keras' callbacks that are not state: arguments of `fit`, files, writers, clocks, and what
# `MonitorCallback` derives from its arguments.
CALLBACK_INTERNALS: dict[type, tuple[str, ...]] = {
    keras.callbacks.Callback: ("_model", "params"),
    keras.callbacks.CSVLogger: ("append_header", "csv_file", "writer"),
    keras.callbacks.ProgbarLogger: ("_called_in_fit", "epochs", "progbar", "seen", "target"),
    keras.callbacks.TensorBoard: (
        "_batch_start_time",
        "_batch_trace_context",
        "_epoch_start_time",
        "_is_tracing",
        "_log_write_dir",
        "_prev_summary_state",
        "_previous_epoch_iterations",
        "_profiler_started",
        "_should_trace",
        "_should_write_train_graph",
        "_start_batch",
        "_stop_batch",
        "_summary_module",
        "_train_accumulated_time",
        "_train_dir",
        "_val_dir",
        "_writers",
    ),
    **dict.fromkeys(
        (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint, keras.callbacks.ReduceLROnPlateau),
        ("min_delta", "monitor_op"),
    ),
    **dict.fromkeys(
        ORBAX_CHECKPOINTS_SINCE_3_14,
        ("_async_futures", "_multihost_initialized", "checkpointer", "min_delta", "monitor_op"),
    ),
}
# Keras' callbacks that do not change the training.
OBSERVERS: tuple[type, ...] = (
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
    *ORBAX_CHECKPOINTS_SINCE_3_14,
)


# Kinds of training data by Keras' data adapter.
_KINDS = {
    data_adapters.ArrayDataAdapter: "arrays",
    data_adapters.GeneratorDataAdapter: "a generator",
    data_adapters.GrainDatasetAdapter: "a Grain dataset",
    data_adapters.PyDatasetAdapter: "a PyDataset",
    data_adapters.TFDatasetAdapter: "a tf.data.Dataset",
    data_adapters.TorchDataLoaderAdapter: "a torch DataLoader",
}

_DENSE = {
    array_slicing.NumpySliceable,
    array_slicing.PandasDataFrameSliceable,
    array_slicing.PandasSeriesSliceable,
    array_slicing.TensorflowSliceable,
    array_slicing.TorchSliceable,
}


@dataclasses.dataclass
class RunningFit:
    """A running call of `model.fit`.

    Attributes:
        callbacks: list of all callbacks, including Keras' `History` and progress bar.
        kind: kind of training data: "arrays", "a PyDataset", "a Grain dataset", "a tf.data.Dataset",
            "a torch DataLoader", "a generator", or the name of another data adapter's class.
        adapter: Keras' data adapter of the training data, which applies `class_weight`.
        data: the argument `x` without the validation split.
        shuffle, class_weight, initial_epoch, epochs, validation_data, validation_freq: arguments of `fit`.
        steps_per_epoch: argument of `fit`, or the smaller `keras.config.max_steps_per_epoch()`; None without both.
        steps_per_execution: argument of `compile`.
    """

    callbacks: list[keras.callbacks.Callback]
    kind: str
    adapter: data_adapters.data_adapter.DataAdapter
    data: Any
    shuffle: bool | str
    class_weight: dict[int, float] | None
    initial_epoch: int
    epochs: int
    steps_per_epoch: int | None
    steps_per_execution: int
    validation_data: object
    validation_freq: int | Collection[int]
    _list: keras.callbacks.CallbackList
    _iterator: Any
    _first: int = 0

    @property
    def strategy(self) -> Strategy | None:
        """Strategy of `tf.distribute` of the model; None without one."""
        return getattr(self._iterator, "_distribute_strategy", None)

    def converted(self, batches: Iterator[Structure]) -> Iterator[Structure]:
        """Convert the batches of an iterator of TensorFlow as Keras does on JAX, without prefetching."""
        adapter = copy.copy(self.adapter)
        vars(adapter)["_dataset"] = batches
        return iter(adapter.get_jax_iterator())

    def standardized(self, batch: Structure) -> Structure:
        """Return a batch of a `PyDataset` in the form that `fit` passes to the training step, with class weights."""
        adapter: Any = self.adapter
        return next(iter(data_adapter_utils.get_numpy_iterator([adapter._standardize_batch(batch)])))

    def arrays(self) -> tuple[tuple[Arrays, ...], int]:
        """Return training data of the kind "arrays" as dense NumPy arrays, and their batch size.

        Returns:
            `(x,)`, `(x, y)` or `(x, y, sample_weight)`, with class weights as sample weights; the batch size.

        Raises:
            ValueError: an array is sparse or ragged.
        """
        adapter = self._iterator.data_adapter
        inputs = adapter._inputs if isinstance(adapter._inputs, tuple) else (adapter._inputs,)
        arrays: Any = keras.tree.map_structure(_dense, inputs, none_is_leaf=False)
        return arrays, adapter.batch_size

    def take_batches_of(self, data: keras.utils.PyDataset) -> None:
        """Replace the training data by the batches of a `PyDataset`, in order, and apply `class_weight`.

        Each epoch has a new iterator, which TensorFlow distributes over the replicas of the model's strategy.

        Args:
            data: a dataset whose `num_batches` is the number of batches in an epoch. The epoch after
                `begin_epoch_at(batch)` takes `num_batches - batch` of them.
        """
        class_weight = None if self.kind == "arrays" else self.class_weight
        on_tensorflow = keras.backend.backend() == "tensorflow"
        make = _OptionalInputs if on_tensorflow else data_adapters.PyDatasetAdapter
        adapter = make(data, class_weight, shuffle=False)
        iterator = self._iterator
        iterator.data_adapter = adapter
        if on_tensorflow:
            from idmatters_tf._keras_internals.replicas.data import distribute_batches

            strategy = iterator._distribute_strategy
            iterator._distributed_dataset = distribute_batches(adapter.get_tf_dataset(), strategy, True)

        def begin():
            adapter.on_epoch_begin()
            return iter(iterator._get_iterator())

        self._count(begin, adapter.on_epoch_end, data.num_batches)

    def take_iterators(self, begin: Callable[[], Iterator[Structure]], steps: int) -> None:
        """Replace the training data by iterators, without prefetching of batches.

        Args:
            begin: returns the iterator for the next epoch. Its batches are split among the replicas of the model's
                strategy on TensorFlow, unless they are distributed, and laid out by `keras.distribution` on JAX.
            steps: number of batches in an epoch; the epoch after `begin_epoch_at(batch)` takes `steps - batch` of them.
        """
        iterator = self._iterator
        if getattr(self.strategy, "num_replicas_in_sync", 1) > 1:
            self._count(lambda: self._distribute(begin()), lambda: None, steps)
        elif keras.backend.backend() == "jax" and keras.distribution.distribution() is not None:
            iterator.data_adapter = _Iterators(begin)
            self._count(lambda: iter(iterator._get_iterator()), lambda: None, steps)
        else:
            self._count(begin, lambda: None, steps)

    def _distribute(self, batches):
        is_distributed = isinstance(batches, tf.distribute.DistributedIterator)
        return batches if is_distributed else _split_among_replicas(batches, self.strategy)

    def _count(self, begin, end, steps):
        """Set the number of batches of an epoch in `fit`, and functions called before and after an epoch."""

        def epoch():
            # Keras' method creates the iterator of the next epoch at the end of an epoch, before the position is set.
            first = self._first
            self._first = 0
            batches = begin()
            for step in range(first, steps, self.steps_per_execution):
                yield step, step + self.steps_per_execution - 1, batches
            end()

        self._iterator.steps_per_epoch = None
        self._iterator._num_batches = steps
        self._iterator._enumerate_iterator = epoch
        for callback in self.callbacks:
            if callback.params and callback.params.get("steps") != steps:
                callback.set_params({**callback.params, "steps": steps})

    def start_at_epoch(self, model: keras.Model, epoch: int) -> None:
        """Replace `initial_epoch`, in the last `on_train_begin`."""
        # `fit` evaluates `self._initial_epoch or initial_epoch` before it begins an epoch.
        model._initial_epoch = epoch
        for event in ("on_epoch_begin", "on_train_end"):
            self.before_next(event, lambda: setattr(model, "_initial_epoch", None))

    def before_next(self, event: str, function: Callable[[], object]) -> None:
        """Call a function before the callbacks handle the next event of a kind, such as "on_train_batch_end"."""
        handle = getattr(self._list, event)

        def handle_next(*arguments, **options):
            delattr(self._list, event)
            function()
            handle(*arguments, **options)

        setattr(self._list, event, handle_next)

    def skip_ends_of_epochs(
        self, model: keras.Model, is_paused: Callable[[], bool], callback: keras.callbacks.Callback
    ) -> None:
        """Skip validation and the `on_epoch_end` of all callbacks but one while `is_paused()`."""
        handle = self._list.on_epoch_end

        def on_epoch_end(epoch, logs=None):
            (callback.on_epoch_end if is_paused() else handle)(epoch, logs)

        def should_eval(epoch, frequency):
            # If `fit` raises, this function remains.
            is_running = sys._getframe(1).f_locals.get("callbacks") is self._list
            return not (is_running and is_paused()) and type(model)._should_eval(model, epoch, frequency)

        self._list.on_epoch_end = on_epoch_end
        model.__dict__["_should_eval"] = should_eval

    def is_running(self, frame: types.FrameType | None) -> bool:
        """Return True if a frame, or one that has called it, is that of this `fit`."""
        while frame is not None and frame.f_locals.get("callbacks") is not self._list:
            frame = frame.f_back
        return frame is not None

    def end(self, model: keras.Model) -> None:
        """Remove the functions of `before_next` and `skip_ends_of_epochs`."""
        model.__dict__.pop("_should_eval", None)
        for event in ("on_epoch_begin", "on_train_batch_end", "on_test_batch_end", "on_epoch_end", "on_train_end"):
            self._list.__dict__.pop(event, None)

    def begin_epoch_at(self, batch: int) -> None:
        """Start the next epoch at a later batch. The iterator of the epoch starts with the data of that batch."""
        self._first = batch


def running_fit(model: keras.Model) -> RunningFit | None:
    """Return the running `fit` of the model from the call stack, because Keras does not pass it to callbacks.

    None without one, and if the model overrides `fit` with another loop. A method of callbacks that receives the epoch
    iterator before training would replace this search.
    """
    frame = sys._getframe(1)
    while frame is not None:
        values = frame.f_locals
        if values.get("self") is model and frame.f_code.co_name == "fit" and "epoch_iterator" in values:
            iterator = values["epoch_iterator"]
            adapter = type(iterator.data_adapter)
            return RunningFit(
                callbacks=values["callbacks"].callbacks,
                kind=_KINDS.get(adapter, adapter.__name__),
                adapter=iterator.data_adapter,
                data=values["x"],
                shuffle=values["shuffle"],
                class_weight=values["class_weight"],
                initial_epoch=values["initial_epoch"],
                epochs=values["epochs"],
                steps_per_epoch=iterator.steps_per_epoch,
                steps_per_execution=iterator.steps_per_execution,
                validation_data=values["validation_data"],
                validation_freq=values["validation_freq"],
                _list=values["callbacks"],
                _iterator=iterator,
            )
        frame = frame.f_back
    return None


def model_of(callback: keras.callbacks.Callback) -> keras.Model:
    """Return the model of a callback, which Keras sets before training."""
    model: Any = callback.model
    return model


def flush_events(callback: keras.callbacks.TensorBoard) -> None:
    """Write the collected points of a `TensorBoard` callback to its files."""
    for writer in callback._writers.values():
        writer.flush()


def build_for_training(model: keras.Model, batch: Structure) -> None:
    """Create the variables of the model, its metrics and its optimizer, as the first training step does."""
    try:
        model._symbolic_build(data_batch=batch)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # A model with its own training step may have no `call`; it trains its layers.
        parts = [layer for layer in layers_within(model) if layer is not model]
        if type(model).train_step is keras.Model.train_step or not parts or not all(part.built for part in parts):
            raise


def compile_arguments(model: keras.Model) -> dict[str, object] | None:
    """Return the arguments of `keras.Model.compile`, as objects; None if it was not called, also by an override."""
    config = getattr(model, "_compile_config", None)
    return None if config is None else dict(config.config)


def copy_metric(metric: keras.metrics.Metric) -> keras.metrics.Metric:
    """Return a copy of a metric, without its state.

    `copy.deepcopy` of a metric builds it from its configuration, which may lack arguments.
    """
    with mock.patch.object(keras.Metric, "__reduce__", object.__reduce__):
        copied = copy.deepcopy(metric)
    copied.reset_state()
    return copied


def loss_arguments(loss: keras.losses.Loss) -> dict[str, object]:
    """Return the arguments of a loss's function, which `Huber` and others leave out of their configuration."""
    return dict(getattr(loss, "_fn_kwargs", {}))


def _dense(array):
    """Return an array that `fit` accepts as a NumPy array, with the type that `fit` gives it."""
    sliceable: Any = array_slicing.convert_to_sliceable(array, target_backend="numpy")
    if type(sliceable) not in _DENSE:
        raise ValueError(
            f"ExactResume needs dense arrays in `fit`. Received: {type(array).__name__}. Use "
            "`FunctionBatches(step_to_batch, steps_per_epoch=...)` with a function that returns dense batches."
        )
    return sliceable.convert_to_numpy(sliceable.array)


class _OptionalInputs(data_adapters.PyDatasetAdapter):
    """Data adapter for TensorFlow, whose generators do not yield None for optional inputs."""

    # Indices of None in the flat batch.
    _absent: Sequence[int] = ()

    def _standardize_batch(self, batch):
        batch = super()._standardize_batch(batch)
        leaves = keras.tree.flatten(batch)
        self._absent = [index for index, leaf in enumerate(leaves) if leaf is None]
        return keras.tree.map_structure(lambda leaf: np.zeros(1) if leaf is None else leaf, batch)

    def get_tf_dataset(self):
        dataset = super().get_tf_dataset()

        def remove(*batch):
            leaves = [None if index in self._absent else leaf for index, leaf in enumerate(keras.tree.flatten(batch))]
            return keras.tree.pack_sequence_as(batch, leaves)

        return dataset.map(remove) if self._absent else dataset


class _Iterators(data_adapters.data_adapter.DataAdapter):
    """Data adapter for JAX whose iterators a function returns."""

    def __init__(self, begin: Callable[[], Iterator[Structure]]):
        self._begin = begin

    def get_jax_iterator(self) -> Iterator[Structure]:
        return self._begin()


def _split_among_replicas(batches, strategy):
    """Yield the batches in consecutive parts for the replicas, whose sizes differ by at most one example.

    Unlike in `tf.distribute`, this includes the parts of a smaller last batch.
    """
    replicas = strategy.num_replicas_in_sync
    for batch in batches:
        examples = len(next(each for each in keras.tree.flatten(batch) if each is not None))
        bounds = [-(-examples * replica // replicas) for replica in range(replicas + 1)]

        def part(context, batch=batch, bounds=bounds):
            first, last = bounds[context.replica_id_in_sync_group :][:2]
            return keras.tree.map_structure(lambda tensor: tensor[first:last], batch, none_is_leaf=False)

        yield strategy.experimental_distribute_values_from_function(part)
