"""Callback for the exact resume of `fit` after a kill."""

import inspect
import os
import pathlib
import warnings
import weakref
from typing import Any, Literal

import keras

from idmatters_tf._arguments import positive_integer, seed_number
from idmatters_tf._environment import COMPUTING, collect_versions, describe_environment_change, describe_numerics
from idmatters_tf._keras_internals import RunningFit, build_for_training, running_fit, start_at_epoch
from idmatters_tf._tensorflow_internals.pipelines import is_reshuffled
from idmatters_tf.callbacks import _devices, _encoding, _training_state
from idmatters_tf.callbacks._callback_states import CallbackState, name_callbacks
from idmatters_tf.callbacks._configuration import describe_configuration, find_difference, label_optimizer
from idmatters_tf.callbacks._model_parts import find_optimizers
from idmatters_tf.callbacks._sources import make_source
from idmatters_tf.callbacks._sources.random_access import has_hooks
from idmatters_tf.callbacks._stores import Store
from idmatters_tf.checkpointing import checkpoint_path, describe_differences, find_newest_intact


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

    For a finished run, the same `fit` returns at once with the same history and a warning. With more `epochs` it
    continues. The folder belongs to one `fit`. While `fit` runs, no other process can use the folder. After an
    exception, the lock is kept until this process or its next `fit` in the same folder ends.

    Args:
        folder: folder of the checkpoints, which is created if it does not exist.
        every: number of batches between checkpoints, counted from the beginning of training, or "epoch" for one at the
            end of each epoch. A checkpoint is always saved at the end of training.
        keep: number of checkpoints to keep.
        seed: seed of the order in which `fit` shuffles arrays and the batches of a `PyDataset`, a non-negative integer.

    Attributes:
        resumed_at: number of completed training batches when this `fit` began. 0 for a new run, None before `fit`.

    Raises:
        ValueError: by `fit`, if state cannot be restored, or if the checkpoint belongs to another configuration of the
            model, an optimizer or the loss. The message names the cause.
        idmatters_tf.checkpointing.FolderInUse: by `fit`, if another process uses the folder.
        idmatters_tf.checkpointing.FolderLost: by `fit`, if the folder or its lock was removed during the run.
        OSError: by `fit`, if a checkpoint cannot be written. Earlier ones are unchanged. Raised when the next
            checkpoint is due or at the end of training.
    """

    def __init__(
        self, folder: str | os.PathLike, every: int | Literal["epoch"] = "epoch", keep: int = 2, seed: int = 0
    ):
        super().__init__()
        # Absolute, since the program may change the current folder during `fit`.
        self.folder = pathlib.Path(folder).absolute()
        self.every: int | str = every if every == "epoch" else positive_integer("every", every, self)
        self.keep = positive_integer("keep", keep, self)
        self.seed = seed_number(seed, self)
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
                "Keras could not create them from a batch of the data (see the error above). Build the model before "
                "`fit`."
            ) from error
        self._variables = _training_state.describe_variables(model)
        # Configuration at the start of the run.
        self._configuration = describe_configuration(model)
        self._source.attach(self._fit)
        others = [other for other in self._fit.callbacks if not isinstance(other, (ExactResume, _StateCallback))]
        self._states = {name: CallbackState(other, name) for name, other in name_callbacks(others).items()}
        self._store = Store(self._resume.folder, self._resume.keep)
        self._resume.resumed_at, self._step = 0, self._fit.initial_epoch * self._source.steps_per_epoch
        with self._store.closing_on_error():
            self._pending = self._load()
            if self._pending is not None:
                self._resume_from(self._pending)
        for part in _trained_objects(model).values():
            _unfinished[part] = self._resume.folder

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, offset = epoch, 0
        if self._pending is not None and self._pending["batch"]:
            # Keras has reset the metrics, and the other callbacks have handled the beginning of the epoch again.
            self._restore(self._pending)
            offset = self._pending["batch"]
            self._fit.begin_epoch_at(offset)
        self._pending = None
        self._source.seek(epoch, offset)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With several steps per execution the last step may be beyond the epoch.
        done, before = min(batch + 1, self._source.steps_per_epoch), self._step
        if done == self._source.steps_per_epoch or self._model.stop_training:
            # Validation and `on_epoch_end` follow.
            return
        self._step = self._epoch * self._source.steps_per_epoch + done
        if self._is_due(before):
            with self._store.closing_on_error():
                self._save(self._epoch, done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        before, self._step = self._step, (epoch + 1) * self._source.steps_per_epoch
        ends = epoch + 1 >= self._fit.epochs or bool(self._model.stop_training)
        if ends or self._resume.every == "epoch" or self._is_due(before):
            with self._store.closing_on_error():
                self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:
        with self._store.closing_on_error():
            self._store.wait()
        self._source.close()
        for part in _trained_objects(self._model).values():
            _unfinished.pop(part, None)
        self._store.close()

    def _is_due(self, before):
        """Return True if a checkpoint is due in (before, now]."""
        every = self._resume.every
        return isinstance(every, int) and self._step // every > before // every

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
            "epoch": epoch,
            "batch": batch,
            "stopped": bool(model.stop_training),
            "identity": self._identity,
            "environment": self._environment,
            "configuration": {"start": self._configuration, "current": current},
            "description": described,
            "state": _training_state.read(model),
            "data": self._source.state(batch),
            "callbacks": {name: callback.get() for name, callback in self._states.items()},
        }
        self._store.save(self._step, _encoding.Snapshot(state).write)

    def _check_unchanged(self, current):
        """Raise ValueError if a callback has changed a layer."""
        difference = find_difference(*map(_select_layers, (self._configuration, self._configuration, current)))
        if difference is not None:
            raise ValueError(
                f"{difference}: a callback has changed it, so that a restarted process cannot restore it. Make it a "
                f"weight of the layer (`add_weight`), or freeze layers between two calls of `fit`."
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
        differences = describe_differences(saved["identity"], self._identity)
        if differences:
            return f"is a checkpoint of another run: {'; '.join(differences)}"
        difference = _training_state.find_difference(saved["description"], self._variables)
        if difference is not None:
            return f"is a checkpoint of another model: {difference}"
        difference = self._find_other_configuration(saved["configuration"])
        if difference is not None:
            return f"is a checkpoint of another run: {difference}"
        lost = [name for name, state in saved["callbacks"].items() if state is not None and name not in self._states]
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
        # After an exception an optimizer may have any learning rate. It is restored instead of compared.
        left = tuple(
            f"{name}:"
            for name, part in _trained_objects(self._model).items()
            if _unfinished.get(part) == self._resume.folder
        )
        before, now = (
            {name: value for name, value in part.items() if not name.startswith(left)}
            for part in (saved["start"], self._configuration)
        )
        return find_difference(before, saved["current"], now)

    def _resume_from(self, saved):
        """Restore the state of a checkpoint and continue `fit` there."""
        # A run that a callback has stopped does not continue.
        epoch = max(saved["epoch"], self._fit.epochs) if saved["stopped"] else saved["epoch"]
        if epoch >= self._fit.epochs:
            reason = "a callback stopped it" if saved["stopped"] else f"`fit` was called with epochs={self._fit.epochs}"
            warnings.warn(
                f"The run in {self._resume.folder} is finished and was not trained further: it ended in epoch "
                f"{saved['epoch']}, and {reason}. Pass another folder to ExactResume for a new run.",
                stacklevel=2,
            )
        self._resume.resumed_at = self._step = saved["epoch"] * self._source.steps_per_epoch + saved["batch"]
        self._source.restore(saved["data"])
        self._restore(saved)
        start_at_epoch(self._model, epoch)

    def _restore(self, saved):
        _training_state.assign(self._model, saved["state"])
        for name, state in saved["callbacks"].items():
            if state is not None:
                self._states[name].set(state)


def _select_layers(configuration):
    """Return the configuration of the layers."""
    return {name: value for name, value in configuration.items() if name.startswith("the model:")}


# Models and optimizers of `fit`s that have begun and not ended, with their folders.
_unfinished: weakref.WeakKeyDictionary[Any, pathlib.Path] = weakref.WeakKeyDictionary()


def _trained_objects(model):
    """Return the model and its optimizers by their names in `describe_configuration`."""
    optimizers = find_optimizers(model)
    return {"the model": model, **{label_optimizer(path): optimizer for path, optimizer in optimizers.items()}}


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
    if has_hooks(x):
        raise ValueError(
            f"The validation data are a PyDataset that may change between epochs, in the `on_epoch_begin` or "
            f"`on_epoch_end` of {type(x).__name__}. Pass a dataset of a class without these methods."
        )
    if is_reshuffled(x):
        raise ValueError(
            "The validation data are a tf.data.Dataset that shuffles, in an order that ExactResume cannot restore. "
            "Remove `shuffle`, or set a seed and `reshuffle_each_iteration=False`."
        )
