"""Records of a run: digests of everything that determines a training step, before each step of `fit`."""

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import pathlib
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._environment import collect_versions, describe_numerics
from idmatters_tf._keras_internals import global_seed_state, seed_states
from idmatters_tf._keras_internals.observation import observe_batches, observe_executions, observe_step
from idmatters_tf._keras_types import Logs, Options, Structure, Tensor
from idmatters_tf.callbacks import ExactResume
from idmatters_tf.callbacks.walk import FORMS, LEAVES, is_variable, walk
from idmatters_tf.doctor._summaries import Summary, digest, summarize, summarize_rows, summarize_value, write_plainly

GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Instructions for the observation of one process.

    Attributes:
        trace: file of the records.
        steps: number of steps to record, after `epoch`.
        epoch: number of completed epochs after which `steps` are counted.
        killed_at: number of the step after which the process is killed, or "epoch": before the second epoch.
        is_reversed: True if the examples of each batch are in the reverse order.
        is_serial: True if the data are read with one thread.
        detail: step that is executed eagerly, twice, with records of layer outputs and gradients.
    """

    trace: str
    steps: int = 3
    epoch: int = 0
    killed_at: int | str | None = None
    is_reversed: bool = False
    is_serial: bool = False
    detail: int | None = None


class Trace:
    """File of the records of a process, one JSON line each."""

    def __init__(self, path: str):
        self._file = pathlib.Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed with the process
        self._lock = threading.Lock()

    def write(self, step: int, phase: str, path: str, summary: Summary) -> None:
        """Write a record."""
        line = json.dumps({"step": step, "phase": phase, "path": path, **summary})
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        """Write everything to the disk."""
        with self._lock:
            self._file.flush()
            os.fsync(self._file.fileno())


@contextlib.contextmanager
def observed(plan: Plan, end: Callable[[], None]) -> Iterator[None]:
    """Record the first `fit` that is called inside, and call `end` after its last step.

    Args:
        plan: see `Plan`.
        end: function that ends the run, which may not return.
    """
    owner: Any = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
    original, seen = owner.fit, []
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: keras.Model, *args: object, **kwargs: object) -> keras.callbacks.History:
        if seen:
            return original(self, *args, **kwargs)
        seen.append(self)
        arguments = signature.bind_partial(self, *args, **kwargs).arguments
        trace = Trace(plan.trace)
        given: Any = arguments.get("callbacks") or []
        recorder = Recorder(self, given, trace, plan, end)
        if isinstance(given, keras.callbacks.CallbackList):
            append: Any = getattr(given, "append")  # noqa: B009 - Keras does not annotate it
            append(recorder)
        else:
            arguments["callbacks"] = [*keras.tree.flatten(given), recorder]
        with observe_batches(recorder.record_batch, plan.is_reversed, plan.is_serial):
            history = original(**arguments)
        trace.close()
        end()
        return history

    owner.fit = fit
    try:
        yield
    finally:
        owner.fit = original


class Recorder(keras.callbacks.Callback):
    """Callback, the last one of a `fit`, that writes the records."""

    def __init__(self, model: keras.Model, given: Any, trace: Trace, plan: Plan, end: Callable[[], None]):
        super().__init__()
        self._network: Any = model
        # A `CallbackList` contains this callback as well.
        self._given: Any = given if isinstance(given, keras.callbacks.CallbackList) else keras.tree.flatten(given)
        self._trace, self._plan, self._end = trace, plan, end
        self._step, self._batches, self._epochs, self._counted = 0, 0, 0, 0

    def get_state(self) -> None:
        """Tell `ExactResume` that this callback does not belong to the run."""

    def set_state(self, state: None) -> None:
        """Do nothing, see `get_state`."""

    def record_batch(self, arrays: Sequence[NDArray[np.generic]]) -> None:
        """Record a batch. On TensorFlow it may be read before its step begins."""
        self._batches += 1
        for index, array in enumerate(arrays):
            self._trace.write(self._batches, "batch", f"array {index}", summarize(array))
        rows = [summarize_rows(array) for array in arrays]
        self._trace.write(self._batches, "examples", "in any order", {"digest": digest("".join(rows).encode())})

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        if self._step and self._plan.killed_at == "epoch":
            self._kill()
        self._epochs += bool(self._step)

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if self._step == 0:
            self._record_settings()
            if keras.backend.backend() == "jax":
                observe_executions(self._network, self.record_batch, self._plan.is_reversed)
        self._step += 1
        self._counted += self._epochs >= self._plan.epoch
        self._record_state()
        if self._counted > self._plan.steps:
            self._stop()
        if self._plan.detail == self._step:
            model = self._network
            self._original = model.train_function
            model.train_function = self._detailed

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if keras.backend.backend() == "jax":
            self._network.jax_state_sync()
        for name, value in (logs or {}).items():
            self._trace.write(self._step, "logs", name, summarize(np.asarray(value)))
        if self._plan.killed_at == self._step:
            self._kill()
        if self._plan.detail == self._step:
            self._stop()

    def on_train_end(self, logs: Logs = None) -> None:
        if self._step and self._counted <= self._plan.steps:
            self._step += 1
            self._record_state()

    def _stop(self) -> None:
        self._trace.close()
        self._end()
        self._network.stop_training = True

    def _kill(self) -> None:
        self._trace.close()
        os.kill(os.getpid(), signal.SIGKILL)

    def _record_settings(self) -> None:
        settings: Options = {
            **collect_versions(),
            **describe_numerics(keras.backend.backend()),
            "backend": keras.backend.backend(),
            "dtype policy": keras.config.dtype_policy().name,
            "floatx": keras.config.floatx(),
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "random"),
        }
        for name, value in settings.items():
            self._trace.write(1, "environment", name, summarize_value(value))

    def _record_state(self) -> None:
        model, write = self._network, functools.partial(self._trace.write, self._step)
        generators = seed_states(model)
        seeds = set(map(id, generators))
        write("epoch", "index", {"digest": str(self._epochs)})
        rate: Tensor = getattr(getattr(model, "optimizer", None), "learning_rate", None)
        if rate is not None:
            write("optimizer", "learning rate", summarize(_value(rate)))
        phases = {
            "weights": model.trainable_variables,
            "optimizer": getattr(getattr(model, "optimizer", None), "variables", []),
            "state": [v for v in model.non_trainable_variables if id(v) not in seeds],
            "generators": generators,
        }
        for phase, variables in phases.items():
            for index, variable in enumerate(variables):
                write(phase, f"{index}:{variable.path}", summarize(_value(variable)))
        python = digest(repr(random.getstate()).encode())
        write("global generators", "Python's random", {"digest": python})
        write("global generators", "numpy.random", {"digest": digest(write_plainly(np.random.get_state()).encode())})  # noqa: NPY002
        if (state := global_seed_state()) is not None:
            write("global generators", "keras.random without a seed", summarize(_value(state)))
        known = {id(variable) for row in phases.values() for variable in row}
        callbacks = [
            each
            for each in getattr(self._given, "callbacks", self._given)
            if each is not self and not isinstance(each, ExactResume)
        ]
        # Private attributes of Keras' callbacks are not state: they count epochs and batches from the start.
        private = tuple(f"{type(each).__name__}._" for each in callbacks if type(each).__module__.startswith("keras."))
        # Names of layers and optimizers depend on the models that were made before.
        attributes = (each for each in walk([model]) if not isinstance(each[2], str))
        for phase, found in (("callbacks", walk((), callbacks)), ("attributes", attributes)):
            for path, _, value in found:
                summary = None if id(value) in known or path.startswith(private) else _summarize_found(value)
                if summary is not None:
                    write(phase, path, summary)

    def _detailed(self, *arguments: Structure) -> Structure:
        """Execute a step eagerly and twice, from the same state, and record its parts."""
        model = self._network
        model.train_function = self._original
        *state, iterator = arguments
        batch = iterator[0] if isinstance(iterator, list) else next(iterator)
        variables = [*model.variables, *getattr(model.optimizer, "variables", ()), *model.metrics_variables]
        result: Structure = None
        for attempt in ("detail", "repetition"):
            values = [] if state else [_value(variable) for variable in variables]
            generators = random.getstate(), np.random.get_state()  # noqa: NPY002
            counts: dict[str, int] = {}

            def record(
                kind: str, path: str, value: Tensor, attempt: str = attempt, counts: dict[str, int] = counts
            ) -> None:
                number = counts[path] = counts.get(path, 0) + 1
                name = path if number == 1 else f"{path} (call {number})"
                order = sum(counts.values())
                self._trace.write(self._step, attempt, f"{order}:{kind}:{name}", summarize(np.asarray(_value(value))))

            with observe_step(model, record):
                result = _train_eagerly(model, state, batch)
            if attempt == "detail":
                random.setstate(generators[0])
                np.random.set_state(generators[1])  # noqa: NPY002
                for variable, value in zip(variables if values else (), values, strict=True):
                    variable.assign(value)
        return result


def _train_eagerly(model: Any, state: Sequence[Structure], batch: Structure) -> Structure:
    """Execute a step without compilation, for TensorFlow or, with its state, for JAX."""
    if state:
        result = model.train_step(*state, batch)
        import jax

        jax.effects_barrier()
        return result
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        return model.distribute_strategy.run(model.train_step, args=(batch,))
    finally:
        tf.config.run_functions_eagerly(before)


def _value(tensor: Tensor) -> NDArray[np.generic]:
    if not isinstance(tensor, keras.Variable):
        return np.asarray(keras.ops.convert_to_numpy(tensor))
    value: Tensor = tensor.value
    # The array shares the memory of a tensor, but a variable of TensorFlow would be copied twice.
    return np.asarray(value.read_value() if keras.backend.backend() == "tensorflow" else value)


def _summarize_found(value: object) -> Summary | None:
    """Return the summary of a variable, array, generator or leaf of plain data; None for containers and others."""
    if is_variable(value):
        return summarize(_value(value))
    if isinstance(value, np.ndarray):
        return summarize(value)
    if isinstance(value, LEAVES):
        return summarize_value(value)
    kind = next((kind for kind in GENERATORS if isinstance(value, kind)), None)
    return None if kind is None else {"digest": digest(write_plainly(FORMS[kind][0](value)).encode())}
