"""Hooks that show the batches, layer outputs and gradients of `fit`, without changing them. They are no repairs."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from idmatters_tf._keras_internals.keras_source import data_adapters
from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf._tensorflow_internals.patching import Patch
from idmatters_tf._tensorflow_internals.pipelines import is_dataset, without_autotuning

Observer = Callable[[Sequence[np.ndarray]], None]


def observe_batches(
    observer: Observer, is_reversed: bool = False, is_serial: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which the data of the next data adapter, that of `fit`, are observed.

    On JAX, batches are shown by `observe_executions`.

    Args:
        observer: function of the arrays of a batch.
        is_reversed: True to reverse the order of the examples in each batch.
        is_serial: True to read the data with one thread.
    """
    original = data_adapters.get_data_adapter
    seen: list[object] = []

    def get_data_adapter(x: object, *args: Any, **kwargs: Any) -> data_adapters.data_adapter.DataAdapter:
        if seen:
            return original(x, *args, **kwargs)
        adapter = original(_read_serially(x) if is_serial else x, *args, **kwargs)
        seen.append(adapter)
        if keras.backend.backend() == "tensorflow":
            get = adapter.get_tf_dataset
            vars(adapter)["get_tf_dataset"] = lambda: _show_batches(get(), observer, is_reversed)
        return adapter

    return Patch((data_adapters, "get_data_adapter", get_data_adapter))


def _read_serially(data: object) -> object:
    """Return data that are read with one thread."""
    if isinstance(data, keras.utils.PyDataset):
        data.workers = 1
    elif is_dataset(data):
        import tensorflow as tf

        options = tf.data.Options()
        options.threading.private_threadpool_size = options.threading.max_intra_op_parallelism = 1
        return data.with_options(options)
    return data


def _show_batches(dataset: object, observer: Observer, is_reversed: bool) -> object:
    import tensorflow as tf

    if not is_dataset(dataset):
        return dataset

    def show(*arrays: np.ndarray) -> np.int64:
        observer(arrays)
        return np.int64(0)

    def observed(*batch: Structure) -> Structure:
        flat = tf.nest.flatten(batch, expand_composites=True)
        token = tf.numpy_function(show, flat, tf.int64)
        with tf.control_dependencies([token]):
            kept = tf.nest.map_structure(tf.identity, batch)
        kept = tf.nest.map_structure(lambda x: x[::-1], kept) if is_reversed else kept
        return kept if len(batch) > 1 else kept[0]

    return without_autotuning(dataset.map(tf.autograph.experimental.do_not_convert(observed)))


def observe_executions(model: keras.Model, observer: Observer, is_reversed: bool = False) -> None:
    """Show the batches that the training step of a running `fit` takes on JAX, where data are read ahead.

    Args:
        model: model whose training step has been made.
        observer: function of the arrays of a batch.
        is_reversed: True to reverse the order of the examples in each batch.
    """
    network: Any = model
    execute = network.train_function

    def show(batch: Structure) -> Structure:
        observer([np.asarray(part) for part in keras.tree.flatten(batch) if part is not None])
        return keras.tree.map_structure(lambda x: None if x is None else x[::-1], batch) if is_reversed else batch

    network.train_function = lambda state, iterator: execute(state, map(show, iterator))


@contextlib.contextmanager
def observe_step(model: keras.Model, record: Callable[[str, str, Tensor], None]) -> Iterator[None]:
    """Show the outputs of layers, the loss and the gradients of an eager training step, in the order of execution.

    Args:
        model: compiled model.
        record: function of (kind, path, tensor); the kind is "output", "loss" or "gradient".
    """
    call, optimizer = keras.layers.Layer.__call__, getattr(model, "optimizer", None)

    def show(kind: str, path: str, value: Structure) -> None:
        for index, part in enumerate(keras.tree.flatten(value)):
            if part is None or isinstance(part, keras.KerasTensor):
                continue
            name = path if not index else f"{path}[{index}]"
            if keras.backend.backend() == "jax":
                import jax

                jax.debug.callback(lambda x, n=name: record(kind, n, x), part, ordered=True)
            elif hasattr(part, "numpy"):
                record(kind, name, part)

    def observed_call(self: keras.layers.Layer, *args: object, **kwargs: object) -> Structure:
        outputs = call(self, *args, **kwargs)
        show("output", self.path or self.name, outputs)
        return outputs

    compute_loss = model.compute_loss

    def observed_loss(*args: Any, **kwargs: Any) -> Tensor:
        loss = compute_loss(*args, **kwargs)
        show("loss", "loss", loss)
        return loss

    places: list[tuple[object, str, object]] = [
        (keras.layers.Layer, "__call__", observed_call),
        (model, "compute_loss", observed_loss),
    ]
    if optimizer is not None:
        apply = optimizer.apply

        def observed_apply(
            grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None
        ) -> object:
            for gradient, variable in zip(grads, trainable_variables or model.trainable_variables, strict=False):
                show("gradient", variable.path, gradient)
            return apply(grads, trainable_variables)

        places.append((optimizer, "apply", observed_apply))
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(_replaced(*place))
        yield


@contextlib.contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    is_own, before = name in vars(owner), vars(owner).get(name)
    if isinstance(owner, type):
        setattr(owner, name, value)
    else:
        vars(owner)[name] = value
    try:
        yield
    finally:
        if isinstance(owner, type):
            setattr(owner, name, before)
        elif is_own:
            vars(owner)[name] = before
        else:
            del vars(owner)[name]
