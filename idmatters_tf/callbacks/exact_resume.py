"""Callback for the exact resume of `fit` after a kill."""

import inspect
import os
import pathlib
import time
import warnings
import weakref
from collections.abc import Collection
from typing import Any

import keras
import numpy as np

import idmatters_tf
from idmatters_tf._arguments import interval, positive_integer, seed_number
from idmatters_tf._environment import COMPUTING, collect_versions, describe_environment_change, describe_numerics
from idmatters_tf._keras_internals import RunningFit, build_for_training, running_fit, start_at_epoch
from idmatters_tf._progress import Progress
from idmatters_tf._tensorflow_internals.pipelines import is_reshuffled
from idmatters_tf.callbacks import _devices, _encoding, _training_state
from idmatters_tf.callbacks._callback_states import CallbackStates
from idmatters_tf.callbacks._configuration import describe_configuration, find_difference, label_optimizer
from idmatters_tf.callbacks._model_parts import describe_attributes, find_optimizers
from idmatters_tf.callbacks._sources import make_source
from idmatters_tf.callbacks._sources.random_access import is_changed_by_hooks
from idmatters_tf.callbacks._stores import Store
from idmatters_tf.checkpointing import checkpoint_path, describe_differences, find_newest_intact

# Increase it with each change of the entries of a checkpoint.
_FORMAT = 1
_SECONDS = {"second": 1, "hour": 3600, "minute": 60}


class ExactResume(keras.callbacks.Callback):
    """Callback that saves the state of a `fit` and resumes it when the same script is started again.

    A run that is killed at any moment, by SIGKILL or a power cut, and started again ends with the same weights,
    optimizer state and history, bit for bit, as an uninterrupted run. For example::

        resume = ExactResume("runs/mine", every=100)
        model.fit(x, y, epochs=10, callbacks=[resume, EarlyStopping()], validation_data=...)

    Supported training data:

    - arrays or tensors in `fit(x, y, batch_size=...)`, shuffled in an order that is a function of (`seed`, epoch);
    - a `keras.utils.PyDataset` whose `__getitem__` is a function of the index. If `fit` shuffles, the order of its
      batches is a function of (`seed`, epoch). A resumed run repeats the calls of its `on_epoch_begin` and
      `on_epoch_end`, with the global generators of Python and NumPy seeded by (`seed`, epoch);
    - a Grain `MapDataset`, whose element `epoch * len + index` is the batch of a step;
    - a `tf.data.Dataset` whose iterator TensorFlow can save, with seeds, see `_sources.tf_data`; a Grain `IterDataset`
      or `DataLoader`;
    - `ArrayBatches`, or `FunctionBatches` of a function of the step.

    With `steps_per_epoch` in `fit`, an epoch is that number of batches of an endless sequence of passes over the data,
    and the next epoch continues after them.

    A checkpoint contains the variables of the model, of all optimizers found on it (slots, loss scale, moving averages,
    accumulated gradients; see `idmatters_tf.callbacks._model_parts.find_optimizers`) and of its metrics, also within an
    epoch; the generators of dropout and augmentation layers; the global generators of Python, NumPy and Keras; the
    position in the data; the history; and the state of the other callbacks, see
    `idmatters_tf.callbacks._callback_states`. State that cannot be restored raises a ValueError when training begins or
    when the first checkpoint is saved. Supported are TensorFlow, also under `tf.distribute.MirroredStrategy`, and JAX,
    also under `keras.distribution`, in one process.

    Training does not wait for the disk. The state is copied to host memory between two batches, which requires the
    memory of one more copy of the variables, and a thread writes the copy. A checkpoint receives its name when it is
    complete. The next state is copied after the previous write has ended, so that a kill costs less than twice `every`
    batches. The last checkpoint is complete when `fit` returns. If `fit` raises, including KeyboardInterrupt, the write
    is completed before the process ends and before the folder is used again.

    If a time limit or a signal sets `model.stop_training`, the run is saved after the batch and continues when it is
    started again. It is finished if a callback stopped it by its own rule: `EarlyStopping`, `TerminateOnNaN`, or a
    callback that sets its attribute `stopped_epoch`, as `EarlyStopping` does.

    For a finished run, the same `fit` returns at once with the same history and a warning. With more `epochs` it
    continues, unless a rule stopped it. The folder belongs to one `fit`. While `fit` runs, no other process can use the
    folder. After an exception, the lock is kept until this process or its next `fit` in the same folder ends. `fit`
    prints the step at which it resumes to standard error, unless `verbose=0`.

    Args:
        folder: folder of the checkpoints, which is created if it does not exist.
        every: interval between checkpoints: a number of batches, counted from the beginning of training, or a text such
            as "100 steps", "2 epochs" or "10 minutes" (also seconds or hours). A checkpoint is always saved at the end
            of training.
        keep: number of checkpoints to keep.
        seed: seed of the order in which `fit` shuffles arrays and the batches of a `PyDataset`, a non-negative integer.
        ignore: attributes of callbacks, layers, optimizers and losses that do not affect training and are not restored,
            such as files and locks, named as in "Logger.file".

    Attributes:
        resumed_at: number of completed training batches when this `fit` began. 0 for a new run, None before `fit`.

    Raises:
        ValueError: by `fit`, if state cannot be restored, the folder is not writable, or the checkpoint belongs to
            another configuration of the model, an optimizer, the loss, the metrics or the data. The message names the
            cause.
        idmatters_tf.checkpointing.FolderInUse: by `fit`, if another process uses the folder.
        idmatters_tf.checkpointing.FolderLost: by `fit`, if the folder or its lock was removed during the run.
        OSError: by `fit`, if a checkpoint cannot be written. Earlier ones are unchanged. Raised when the next
            checkpoint is due or at the end of training.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        every: int | str = "epoch",
        keep: int = 2,
        seed: int = 0,
        ignore: Collection[str] = (),
    ):
        super().__init__()
        # Absolute, since the program may change the current folder during `fit`. Links lead to the same lock.
        self.folder = pathlib.Path(folder).resolve()
        self.name = os.fspath(folder)
        self.every = every
        self.interval = interval(every, "step", ("epoch", "step", *_SECONDS), self)
        self.keep = positive_integer("keep", keep, self)
        self.seed = seed_number(seed, self)
        self.ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
        self.resumed_at: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        fit = running_fit(model)
        if fit is None:
            raise ValueError("ExactResume requires Keras' own `fit`. Pass it to `fit` as a callback.")
        _check(model, fit)
        if sum(isinstance(callback, ExactResume) for callback in fit.callbacks) > 1:
            raise ValueError("There is more than one ExactResume among the callbacks. Remove all but one.")
        # Keras is iterating over this list: an appended callback is called after all others at each event.
        last = _StateCallback(self, fit)
        last.set_params(self.params)
        last.set_model(model)
        fit.callbacks.append(last)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # If no callback has this method, Keras calls them in another thread while training continues.
        pass


class _StateCallback(keras.callbacks.Callback):
    """Callback that restores and saves the state after all other callbacks have handled an event."""

    def __init__(self, resume: ExactResume, fit: RunningFit):
        super().__init__()
        # Unlike `model`, this attribute does not make JAX's trainer copy its values into the variables.
        self._model: Any = None
        self._resume, self._fit = resume, fit
        self._source = make_source(fit, resume.seed)
        # Checkpoint to resume from, until training has resumed.
        self._pending: dict[str, Any] | None = None
        self._epoch = self._step = 0
        self._saved_at = time.monotonic()
        # True if the last batch was not that of its epoch, and True if the rule of a callback has ended the run.
        self._is_within = self._is_ended = False
        self._checked = False

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        self._identity = self._identify(model)
        self._environment = {
            "versions": collect_versions(COMPUTING),
            "numerics": describe_numerics(keras.backend.backend()),
        }
        try:
            with _devices.scope(model):
                build_for_training(model, self._source.first_batch)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                "ExactResume requires the variables of the model, its metrics and optimizer before the first step, but "
                f"Keras could not create them from a batch of the data: {error}"
            ) from error
        self._variables = _training_state.describe_variables(model)
        # Configuration at the start of the run.
        self._configuration = describe_configuration(model)
        self._attributes = describe_attributes(model)
        self._source.attach(self._fit)
        others = [other for other in self._fit.callbacks if not isinstance(other, (ExactResume, _StateCallback))]
        self._states = CallbackStates(others, model, self._resume.ignore)
        self._store = Store(self._resume.folder, self._resume.keep)
        self._resume.resumed_at, self._step = 0, self._fit.initial_epoch * self._source.steps_per_epoch
        with self._store.closing_on_error():
            self._pending = self._load()
            if self._pending is not None:
                self._resume_from(self._pending)
        self._mark_unfinished()
        self._saved_at = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, offset = epoch, 0
        if self._pending is not None and self._pending["batch"]:
            # Keras has reset the metrics, and the other callbacks have handled the beginning of the epoch again.
            self._restore(self._pending)
            offset = self._pending["batch"]
            self._fit.begin_epoch_at(offset)
        self._pending = None
        self._source.seek(epoch, offset)
        self._mark_unfinished()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With several steps per execution the last step may be beyond the epoch.
        done, before = min(batch + 1, self._source.steps_per_epoch), self._step
        self._is_within = done < self._source.steps_per_epoch
        self._is_ended = self._is_stopped_by_rule(logs)
        if self._is_ended or not self._is_within:
            # Validation and `on_epoch_end` follow.
            return
        self._step = self._epoch * self._source.steps_per_epoch + done
        if self._model.stop_training or self._is_due(before):
            with self._store.closing_on_error():
                self._save(self._epoch, done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._is_paused():
            # The run continues at the last checkpoint. Rules of callbacks do not apply to a part of an epoch.
            return
        self._is_ended = self._is_ended or self._is_stopped_by_rule(logs)
        before, self._step = self._step, (epoch + 1) * self._source.steps_per_epoch
        if self._model.stop_training or epoch + 1 >= self._fit.epochs or self._is_due(before, epoch + 1):
            with self._store.closing_on_error():
                self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:
        with self._store.closing_on_error():
            self._store.wait()
        self._source.close()
        if not self._is_paused():
            _trained.add(self._resume.folder)
            for optimizer in _name_optimizers(self._model).values():
                _unfinished.pop(optimizer, None)
        self._store.close()

    def _mark_unfinished(self):
        configuration = describe_configuration(self._model)
        for name, optimizer in _name_optimizers(self._model).items():
            _unfinished[optimizer] = self._resume.folder, _select(configuration, name)

    def _is_due(self, before, epochs=None):
        """Return True if a checkpoint is due in (before, now], where `epochs` have ended, or None within an epoch."""
        number, unit = self._resume.interval
        if unit == "epoch":
            return epochs is not None and epochs % number == 0
        if unit == "step":
            return self._step // number > before // number
        return time.monotonic() - self._saved_at >= number * _SECONDS[unit]

    def _is_paused(self):
        """Return True if training stops within an epoch, at which it continues when started again."""
        return bool(self._model.stop_training) and self._is_within and not self._is_ended

    def _is_stopped_by_rule(self, logs):
        """Return True if training stops by the rule of a callback, which ends the run."""
        if not self._model.stop_training:
            return False
        rules = [keras.callbacks.TerminateOnNaN] if not np.isfinite((logs or {}).get("loss", 0.0)) else []
        return any(getattr(each, "stopped_epoch", 0) or isinstance(each, (*rules,)) for each in self._fit.callbacks)

    def _identify(self, model):
        """Return the values that identify a training run."""
        weights = self._fit.class_weight
        return {
            "Keras' backend": keras.backend.backend(),
            "the set of devices": _devices.describe_devices(model),
            "steps_per_epoch": self._source.steps_per_epoch,
            "steps_per_execution": model.steps_per_execution,
            "the optimizer": type(model.optimizer).__name__,
            "class_weight": None if weights is None else {int(key): float(value) for key, value in weights.items()},
            "the kind of data": type(self._source).__name__,
            "the checksum of batch 0": self._source.digest,
            **self._source.order,
        }

    def _save(self, epoch, batch):
        # Only one copy of the state exists at a time.
        self._store.wait()
        model: Any = self.model  # on JAX this assigns the current values to the variables
        described = self._describe(model)
        if not self._checked:
            _training_state.check_complete(model)
            self._checked = True
        current = describe_configuration(model)
        self._check_unchanged(current)
        state = {
            "format": _FORMAT,
            "version": idmatters_tf.__version__,
            "epoch": epoch,
            "batch": batch,
            "ended": self._is_ended,
            "identity": self._identity,
            "environment": self._environment,
            "configuration": {"start": self._configuration, "current": current},
            "description": described,
            "state": _training_state.read(model),
            "data": self._source.state(batch),
            "callbacks": self._states.get(),
        }
        self._store.save(self._step, _encoding.Snapshot(state).write)
        self._saved_at = time.monotonic()

    def _check_unchanged(self, current):
        """Raise ValueError if a callback has changed a layer, an optimizer or the loss."""
        start = {**_select_layers(self._configuration), **self._attributes}
        now = {**_select_layers(current), **describe_attributes(self._model, self._attributes)}
        for settings in (start, now):
            for name in self._resume.ignore:
                settings.pop(name, None)
        difference = find_difference(start, start, now)
        if difference is not None:
            raise ValueError(
                f"{difference}: a callback has changed it, so that a restarted process cannot restore it. Make it a "
                f"weight of the layer (`add_weight`), or change it between two calls of `fit`. If it does not affect "
                f"training, name it in ExactResume(ignore=...)."
            )

    def _describe(self, model):
        """Return the description of the current variables. Raise ValueError if the first step created other ones."""
        described = _training_state.describe_variables(model)
        difference = _training_state.find_difference(self._variables, described)
        if difference is not None:
            raise ValueError(
                f"{difference}: the first training step created it, so that a restarted process cannot restore it. "
                f"Create all variables when the model is built, and build further optimizers before `fit`."
            )
        return described

    def _load(self):
        """Return the newest intact checkpoint, or None. Raise ValueError if it does not belong to this run."""
        step = find_newest_intact(self._resume.folder, _encoding.STATE, _warn_of_damage, repair=True)
        if step is None:
            return None
        path = checkpoint_path(self._resume.folder, step)
        saved = _encoding.read(path)
        mismatch = self._find_mismatch(saved)
        if mismatch is not None:
            raise ValueError(
                f"{path} {mismatch}. Start the same script as before, or pass another folder to ExactResume."
            )
        warning = describe_environment_change(saved["environment"], self._environment)
        if warning is not None:
            warnings.warn(warning, stacklevel=2)
        self._configuration = saved["configuration"]["start"]
        return saved

    def _find_mismatch(self, saved):
        """Return the reason why a checkpoint does not belong to this run, or None."""
        if saved.get("format") != _FORMAT:
            return f"has format {saved.get('format')} of idmatters_tf {saved.get('version')}, not format {_FORMAT}"
        differences = describe_differences(saved["identity"], self._identity)
        if differences:
            return f"is a checkpoint of another run: {'; '.join(differences)}"
        difference = _training_state.find_difference(saved["description"], self._variables)
        if difference is not None:
            return f"is a checkpoint of another model: {difference}"
        difference = self._find_other_configuration(saved["configuration"])
        if difference is not None:
            return f"is a checkpoint of another run: {difference}"
        lost = self._states.find_lost(saved["callbacks"])
        if lost:
            return f"contains the state of {', '.join(lost)}, not among the callbacks"
        epoch, initial_epoch = saved["epoch"], self._fit.initial_epoch
        if epoch < initial_epoch:
            return f"is a checkpoint of epoch {epoch}, but `fit` begins with initial_epoch={initial_epoch}"
        if saved["batch"] and epoch >= self._fit.epochs:
            return (
                f"is a checkpoint within epoch {epoch + 1}, after {saved['batch']} batches. Received: "
                f"epochs={self._fit.epochs}. Call `fit` with epochs={epoch + 1} or more"
            )
        return None

    def _find_other_configuration(self, saved):
        """Return the first difference of the model, an optimizer or the loss from those of the checkpoint, or None."""
        start, now = saved["start"], self._configuration
        for name, optimizer in _name_optimizers(self._model).items():
            folder, interrupted = _unfinished.get(optimizer, (None, {}))
            if folder == self._resume.folder:
                # An exception leaves any learning rate, which is restored instead of compared.
                given = _select(now, name)
                changed = find_difference(_select(saved["current"], name), interrupted, given)
                if changed is not None:
                    remedy = "For another value, pass another folder to ExactResume."
                    warnings.warn(f"{changed}: `fit` resumes with the value of the checkpoint. {remedy}", stacklevel=2)
                now = {**now, **dict.fromkeys(given), **_select(start, name)}
        return find_difference(start, saved["current"], now)

    def _resume_from(self, saved):
        """Restore the state of a checkpoint and continue `fit` there."""
        # A run that a callback has stopped does not continue.
        epoch = max(saved["epoch"], self._fit.epochs) if saved["ended"] else saved["epoch"]
        self._resume.resumed_at = self._step = saved["epoch"] * self._source.steps_per_epoch + saved["batch"]
        if epoch >= self._fit.epochs:
            reason = "a callback stopped it" if saved["ended"] else f"`fit` was called with epochs={self._fit.epochs}"
            loop = ' (the folder is that of an earlier `fit` of this process; in a loop, use f"runs/seed-{seed}")'
            warnings.warn(
                f"The run in {self._resume.name} is finished and was not trained further: it ended in epoch "
                f"{saved['epoch']}, and {reason}. Pass another folder to ExactResume for a new run"
                f"{loop if self._resume.folder in _trained else ''}.",
                stacklevel=2,
            )
        else:
            with Progress(None, "resume", bool((self.params or {}).get("verbose"))) as progress:
                progress.say(f"Resuming from step {self._step} of {self._resume.name}")
        self._source.restore(saved["data"])
        self._restore(saved)
        # The callbacks handle the beginning of the epoch again, which may change other attributes.
        saved["callbacks"] = _encoding.Snapshot(self._states.get(unchanged=True)).restore()
        start_at_epoch(self._model, epoch)

    def _restore(self, saved):
        _training_state.assign(self._model, saved["state"])
        self._states.set(saved["callbacks"])


def _select(configuration, *parts):
    """Return the entries of parts of a configuration, such as "the model"."""
    return {path: value for path, value in configuration.items() if path.partition(":")[0] in parts}


def _select_layers(configuration):
    """Return the configuration of the layers as "Class.argument"."""
    layers = _select(configuration, "the model")
    return {name.removeprefix("the model: "): value for name, value in layers.items()}


# Optimizers of `fit`s that have begun and not ended, with their folders and configurations.
_unfinished: weakref.WeakKeyDictionary[Any, tuple[pathlib.Path, dict[str, Any]]] = weakref.WeakKeyDictionary()
# Folders of the `fit`s of this process that have ended.
_trained: set[pathlib.Path] = set()


def _name_optimizers(model):
    """Return the optimizers of a model by their names in `describe_configuration`."""
    return {label_optimizer(path): optimizer for path, optimizer in find_optimizers(model).items()}


def _warn_of_damage(path, damage):
    if (path / "checkpoint.index").exists():
        raise ValueError(f"{path} was written by another program. Pass a separate folder to ExactResume.")
    warnings.warn(f"Checkpoint {path} is damaged ({damage}). Falling back to the previous one.", stacklevel=2)


def _check(model, fit):
    """Raise ValueError if a `fit` cannot be resumed exactly."""
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax"):
        raise ValueError(f"ExactResume supports the backends tensorflow and jax. Received: {backend}")
    _devices.check_devices(model)
    # Each pass over the validation data must have the same order.
    data = fit.validation_data
    x = data[0] if isinstance(data, (tuple, list)) and len(data) else data
    if inspect.isgenerator(x):
        raise ValueError(
            "The validation data are a generator, whose position ExactResume cannot restore. Pass arrays, a "
            "tf.data.Dataset or a PyDataset."
        )
    if is_changed_by_hooks(x):
        raise ValueError(
            f"The validation data are a PyDataset whose batches change between epochs, in the `on_epoch_begin` or "
            f"`on_epoch_end` of {type(x).__name__}. Pass a dataset that does not shuffle."
        )
    if is_reshuffled(x):
        raise ValueError(
            "The validation data are a tf.data.Dataset that shuffles, in an order that ExactResume cannot restore. "
            "Remove `shuffle`, or set a seed and `reshuffle_each_iteration=False`."
        )
