"""Internals of `model.fit` and `model.compile` in Keras."""

import contextlib
import contextvars
import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any
from unittest import mock

import keras

from idmatters_tf._keras_internals.graphs import layers_within
from idmatters_tf._keras_internals.keras_source import (
    EpochIterator,
    array_slicing,
    data_adapter_utils,
    data_adapters,
    module_utils,
)
from idmatters_tf._keras_types import Arrays, Strategy, Structure
from idmatters_tf._tensorflow_internals.patching import Patch

# Imported on use.
tf = module_utils.tensorflow
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


class RunningFit:
    """A running call of `model.fit`.

    Attributes:
        model: the model.
        at_end: contexts and functions that are closed and called when `fit` returns or raises, the last one first.
        callbacks: list of all callbacks, including Keras' `History` and progress bar.
        kind: kind of training data: "arrays", "a PyDataset", "a Grain dataset", "a tf.data.Dataset",
            "a torch DataLoader", "a generator", or the name of another data adapter's class.
        adapter: Keras' data adapter of the training data, which applies `class_weight`.
        data: the argument `x`.
        shuffle, class_weight, initial_epoch, epochs, validation_data, validation_freq: arguments of `fit`.
        steps_per_epoch: argument of `fit`, or the smaller `keras.config.max_steps_per_epoch()`; None without both.
        steps_per_execution: argument of `compile`.
    """

    callbacks: list[keras.callbacks.Callback]
    kind: str
    adapter: data_adapters.data_adapter.DataAdapter
    steps_per_epoch: int | None
    steps_per_execution: int

    def __init__(self, model: keras.Model, arguments: dict[str, Any]):
        self.model = model
        self.at_end = contextlib.ExitStack()
        self.data = arguments["x"]
        self.shuffle: bool | str = arguments["shuffle"]
        self.class_weight: dict[int, float] | None = arguments["class_weight"]
        self.initial_epoch: int = arguments["initial_epoch"]
        self.epochs: int = min(arguments["epochs"], keras.config.max_epochs() or arguments["epochs"])
        self.validation_data: object = arguments["validation_data"]
        self.validation_freq: int | Collection[int] = arguments["validation_freq"]
        self._list: Any = None
        self._iterator: Any = None
        self._first = 0
        if isinstance(arguments["callbacks"], keras.callbacks.CallbackList):
            self.take_callbacks(arguments["callbacks"])

    def take_iterator(self, iterator: Any) -> None:
        """Take the first iterator that `fit` creates, which is that over the training data."""
        if self._iterator is None:
            self._iterator, self.adapter = iterator, iterator.data_adapter
            self.kind = _KINDS.get(type(self.adapter), type(self.adapter).__name__)
            self.steps_per_epoch, self.steps_per_execution = iterator.steps_per_epoch, iterator.steps_per_execution

    def take_callbacks(self, callbacks: Any) -> None:
        """Take the first list of callbacks that `fit` creates, or the list that it was given."""
        if self._list is None:
            self._list, self.callbacks = callbacks, callbacks.callbacks
            self.callbacks.sort(key=lambda callback: getattr(callback, "is_last", False))

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
            ValueError: an array is sparse or ragged, or None.
        """
        adapter = self._iterator.data_adapter
        inputs = adapter._inputs if isinstance(adapter._inputs, tuple) else (adapter._inputs,)
        arrays: Any = keras.tree.map_structure(_dense, inputs)
        return arrays, adapter.batch_size

    def take_batches_of(self, data: keras.utils.PyDataset) -> None:
        """Replace the training data by the batches of a `PyDataset`, in order, and apply `class_weight`.

        Each epoch has a new iterator, which TensorFlow distributes over the replicas of the model's strategy.

        Args:
            data: a dataset whose `num_batches` is the number of batches in an epoch. The epoch after
                `begin_epoch_at(batch)` takes `num_batches - batch` of them.
        """
        class_weight = None if self.kind == "arrays" else self.class_weight
        adapter = data_adapters.PyDatasetAdapter(data, class_weight, shuffle=False)
        iterator = self._iterator
        iterator.data_adapter = adapter
        if keras.backend.backend() == "tensorflow":
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

    def start_at_epoch(self, epoch: int) -> None:
        """Replace `initial_epoch`, in `on_train_begin`."""
        # `fit` evaluates `self._initial_epoch or initial_epoch` before it begins an epoch.
        model: Any = self.model
        model._initial_epoch = epoch
        self.at_end.callback(setattr, model, "_initial_epoch", None)

    def before_next(self, event: str, function: Callable[[], object]) -> None:
        """Call a function before the callbacks handle the next event of a kind, such as "on_train_batch_end"."""
        handle = getattr(self._list, event)

        def handle_next(*arguments, **options):
            delattr(self._list, event)
            function()
            handle(*arguments, **options)

        setattr(self._list, event, handle_next)

    def skip_ends_of_epochs(self, is_paused: Callable[[], bool], callback: keras.callbacks.Callback) -> None:
        """Skip validation and the `on_epoch_end` of all callbacks but one while `is_paused()`."""
        model: Any = self.model
        handle = self._list.on_epoch_end

        def on_epoch_end(epoch, logs=None):
            (callback.on_epoch_end if is_paused() else handle)(epoch, logs)

        def should_eval(epoch, frequency):
            return not is_paused() and type(model)._should_eval(model, epoch, frequency)

        self._list.on_epoch_end = on_epoch_end
        model.__dict__["_should_eval"] = should_eval
        self.at_end.callback(model.__dict__.pop, "_should_eval")
        self.at_end.callback(delattr, self._list, "on_epoch_end")

    def begin_epoch_at(self, batch: int) -> None:
        """Start the next epoch at a later batch. The iterator of the epoch starts with the data of that batch."""
        self._first = batch


_running: contextvars.ContextVar[RunningFit | None] = contextvars.ContextVar("innermost fit", default=None)


def running_fit(model: keras.Model) -> RunningFit | None:
    """Return the running `fit` of a model, because Keras does not pass it to callbacks.

    None if the model overrides `fit` with another loop, and before `record_fits`.
    """
    fit = _running.get()
    return fit if fit is not None and fit.model is model else None


def record_fits() -> None:
    """Record each `keras.Model.fit` for `running_fit`, until the process ends.

    Callbacks with a true attribute `is_last` are called after all others.
    """
    owner: Any = keras.Model
    original = owner.fit
    signature = inspect.signature(original)

    @functools.wraps(original)
    def recorded(self: keras.Model, *args: object, **kwargs: object) -> object:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        fit = RunningFit(self, bound.arguments)
        with fit.at_end, _recording:
            fit.at_end.callback(_running.reset, _running.set(fit))
            return original(self, *args, **kwargs)

    owner.fit = recorded


def _taken(kind, take):
    """Return the replacement of a constructor whose objects the innermost `fit` takes."""
    make = kind.__init__

    def made(self, *args, **kwargs):
        make(self, *args, **kwargs)
        fit = _running.get()
        if fit is not None:
            take(fit, self)

    return kind, "__init__", made


_recording = Patch(
    _taken(EpochIterator, RunningFit.take_iterator),
    _taken(keras.callbacks.CallbackList, RunningFit.take_callbacks),
)


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
