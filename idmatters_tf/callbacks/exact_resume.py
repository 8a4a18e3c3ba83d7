"""`fit` that goes on after a kill as if nothing had happened."""

import os
import pathlib
import warnings
import weakref
from typing import Any, Literal

import keras

from idmatters_tf._arguments import positive_integer, seed_number
from idmatters_tf._background import BackgroundWriter
from idmatters_tf._keras_internals import RunningFit, build_for_training, running_fit, start_at_epoch
from idmatters_tf.callbacks import _devices, _saved_run, _training_state
from idmatters_tf.callbacks._callback_states import CallbackState, named
from idmatters_tf.callbacks._configuration import configuration, first_difference, the_optimizer
from idmatters_tf.callbacks._folder_locks import lock, unlock, unlocking_on_error
from idmatters_tf.callbacks._model_parts import WaitingOptimizer, find_optimizers
from idmatters_tf.callbacks._saved_run import REMEDY
from idmatters_tf.callbacks._sources import source_of
from idmatters_tf.callbacks._validation import check_repeatable


class ExactResume(keras.callbacks.Callback):
    """Saves the state of a `fit` every so many batches, and goes on from there when the same script is started again.

    A run that is killed at any moment, by SIGKILL or a power cut, and started again ends with the same weights,
    optimizer state and history, bit for bit, as an uninterrupted run. For example::

        resume = ExactResume("runs/mine", every=100)
        model.fit(x, y, epochs=10, callbacks=[resume, EarlyStopping()], validation_data=...)

    The training data are one of these:

    - arrays or tensors in `fit(x, y, batch_size=...)`, shuffled in an order that is a function of (`seed`, epoch);
    - a `keras.utils.PyDataset` whose `__getitem__` is a function of the index, with the order of its batches, if `fit`
      shuffles them, a function of (`seed`, epoch). A resumed run repeats the calls of its `on_epoch_begin` and
      `on_epoch_end`. In each of them the global generators of Python and NumPy are seeded with (`seed`, epoch);
    - a Grain `MapDataset`, whose element `epoch * len + index` is the batch of a step;
    - a `tf.data.Dataset` whose iterator TensorFlow can save, with seeds, see `_sources.tf_data`; a Grain `IterDataset`
      or `DataLoader`; torchdata's `StatefulDataLoader`;
    - `ArrayBatches`, or `FunctionBatches` of any function of the step.

    With `steps_per_epoch` in `fit`, an epoch is that many batches of the endless sequence of passes over the data, and
    the next epoch continues after them.

    Saved are: the variables of the model, of all optimizers found on it (slots, loss scale, moving averages,
    accumulated gradients; see `idmatters_tf.callbacks._model_parts.find_optimizers`) and of its metrics, also in the
    middle of an epoch; the generators of dropout and augmentation layers, and `tf.random.Generator`s found like
    optimizers; the global generators of Python, NumPy and Keras; the position in the data; the history; and what the
    other callbacks remember, see `idmatters_tf.callbacks._callback_states`. What cannot be restored is refused when
    training begins, or at the latest when the first checkpoint is saved. It works on TensorFlow, also under
    `tf.distribute.MirroredStrategy`, and on JAX, also under `keras.distribution`, in one process.

    Training does not wait for the disk. The state is copied to host memory between two batches, which takes the memory
    of one more copy of the variables, and a thread writes the copy while training goes on. A checkpoint appears under
    its name when it is complete. The next one is copied once the write before has ended, so that a kill costs less than
    twice `every` batches. The last checkpoint is complete when `fit` returns. Where `fit` raises, also by
    KeyboardInterrupt, the write in flight still ends: before the process ends, and before the folder is used again.

    Once `fit` has ended, the same `fit` ends at once with the same history and warns that nothing was trained, and one
    with more `epochs` goes on. A model, an optimizer or a loss with another configuration is refused. The folder
    belongs to one `fit`: give another one a folder of its own. While `fit` runs, no other process can use the folder;
    after an exception not before this process, or its next `fit` in the same folder, has ended.

    Args:
        folder: of the checkpoints; made where there is none.
        every: batches between checkpoints, counted from the beginning of training; "epoch" for one at the end of each
            epoch. One is saved at the end of training in any case.
        keep: how many checkpoints are kept.
        seed: seed of the order in which `fit` shuffles arrays and the batches of a `PyDataset`, a non-negative integer.

    Attributes:
        resumed_at: the number of batches that had been trained on when this `fit` began; 0 where it began anew, None
            before.

    Raises:
        ValueError: by `fit`, where something cannot be restored; it is named.
        idmatters_tf._locking.FolderInUse: by `fit`, where another process uses the folder; it is named.
        idmatters_tf._locking.FolderLost: by `fit`, where the folder or its lock was removed while it ran.
        OSError: by `fit`, where a checkpoint cannot be written; the earlier ones are as they were. Raised when the next
            checkpoint is due or at the end of training.
    """

    def __init__(
        self, folder: str | os.PathLike, every: int | Literal["epoch"] = "epoch", keep: int = 2, seed: int = 0
    ):
        super().__init__()
        self.folder = pathlib.Path(folder)
        self.every: int | str = every if every == "epoch" else positive_integer("every", every, self)
        self.keep = positive_integer("keep", keep, self)
        self.seed = seed_number(seed, self)
        self.resumed_at: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        fit = running_fit(model)
        if fit is None:
            raise ValueError("ExactResume works with Keras' own `fit`. Pass it to that as one of the callbacks.")
        _check(model, fit)
        for callback in list(fit.callbacks):
            if isinstance(callback, _Last):
                fit.callbacks.remove(callback)
        if sum(isinstance(callback, ExactResume) for callback in fit.callbacks) > 1:
            raise ValueError("There is more than one ExactResume among the callbacks. Leave one.")
        # Keras is going through this list: what is appended now has its turn behind all others, at each event.
        last = _Last(self, fit)
        last.set_params(self.params)
        last.set_model(model)
        fit.callbacks.append(last)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Where no callback has this method, Keras runs them in another thread while it trains on.
        pass


class _Last(keras.callbacks.Callback):
    """Restores and saves, behind all other callbacks: they have reset themselves before, and have seen each event.

    Args:
        resume: the callback that the user has made.
        fit: the `fit` it belongs to.
    """

    def __init__(self, resume: ExactResume, fit: RunningFit):
        super().__init__()
        # Unlike `model`, this does not have JAX's trainer copy its values into the variables.
        self._model: Any = None
        self._resume, self._fit = resume, fit
        self._source = source_of(fit, resume.seed)
        self._states: dict[str, CallbackState] = {}
        self._variables: dict[str, Any] = {}
        self._identity: dict[str, Any] = {}
        # The checkpoint that training goes on from, until it does.
        self._pending: dict[str, Any] | None = None
        self._epoch = self._step = 0
        self._checked = False
        self._writer = BackgroundWriter()
        # At the start of the run.
        self._configuration: dict[str, Any] = {}
        # By owner: optimizers without slots when `fit` began, and those of them that wait for their values.
        self._unbuilt: set[str] = set()
        self._waiting: dict[str, WaitingOptimizer] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        others = [each for each in self._fit.callbacks if not isinstance(each, (ExactResume, _Last))]
        self._identity = self._identify(model)
        try:
            with _devices.scope(model):
                build_for_training(model, self._source.first_batch())
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                "ExactResume needs the variables of the model, its metrics and optimizer before the first step, but "
                "Keras could not make them from a batch of the data: see the error above. Build the model before "
                "`fit`."
            ) from error
        self._variables = _training_state.description(model)
        self._unbuilt = set(_training_state.unbuilt(model))
        self._configuration = configuration(model)
        self._source.attach(self._fit)
        self._states = {name: CallbackState(each, name) for name, each in named(others).items()}
        self._writer = lock(self._resume.folder)
        with unlocking_on_error(self._resume.folder):
            self._pending = self._load()
            self._step = self._fit.initial_epoch * self._source.steps_per_epoch
            if self._pending is not None:
                self._go_on(model, self._pending)
        for each in _trained(model).values():
            _unfinished[each] = self._resume.folder.resolve()
        self._resume.resumed_at = 0 if self._pending is None else self._step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, offset = epoch, 0
        start_at_epoch(self._model, None)
        if self._pending is not None and self._pending["batch"]:
            # Keras has reset the metrics by now, and the others have seen an epoch begin that had begun before.
            self._restore(self._pending)
            offset = self._pending["batch"]
            self._fit.begin_epoch_at(offset)
        self._pending = None
        self._source.seek(epoch, offset)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With several steps per execution the last one may be beyond the epoch.
        done, before = min(batch + 1, self._source.steps_per_epoch), self._step
        if done == self._source.steps_per_epoch or self._model.stop_training:
            # The epoch goes on with the validation and `on_epoch_end`.
            return
        self._step = self._epoch * self._source.steps_per_epoch + done
        if self._due(before):
            with unlocking_on_error(self._resume.folder):
                self._save(self._epoch, done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        before, self._step = self._step, (epoch + 1) * self._source.steps_per_epoch
        ends = epoch + 1 >= self._fit.epochs or bool(self._model.stop_training)
        if ends or self._resume.every == "epoch" or self._due(before):
            with unlocking_on_error(self._resume.folder):
                self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:
        with unlocking_on_error(self._resume.folder):
            self._writer.wait()
        start_at_epoch(self._model, None)
        self._source.close()
        for each in _trained(self._model).values():
            _unfinished.pop(each, None)
        for waiting in self._waiting.values():
            waiting.drop()
        unlock(self._resume.folder)

    def _due(self, before):
        """Whether a checkpoint is due at one of the steps since `before`."""
        every = self._resume.every
        return isinstance(every, int) and self._step // every > before // every

    def _identify(self, model):
        """What must be the same for the run to be the same one."""
        return {
            "Keras' backend": keras.backend.backend(),
            "the set of devices": _devices.describe_devices(model),
            "steps_per_epoch": self._source.steps_per_epoch,
            "steps_per_execution": model.steps_per_execution,
            "the optimizer": type(model.optimizer).__name__,
            "the checksum of batch 0": self._source.digest(),
        }

    def _save(self, epoch, batch):
        # Before the state is copied: there is one copy at a time.
        self._writer.wait()
        model: Any = self.model  # on JAX this gives the variables their values
        described = self._describe(model)
        if not self._checked:
            _training_state.check_complete(model)
            self._checked = True
        read = _training_state.read(model)
        read["variables"] |= {owner: waiting.values for owner, waiting in self._waiting.items() if not waiting.is_built}
        state = {
            "epoch": epoch,
            "batch": batch,
            "stopped": bool(model.stop_training),
            "identity": self._identity,
            "configuration": {"start": self._configuration, "current": configuration(model)},
            "description": described,
            "state": read,
            "data": self._source.state(epoch, batch),
            "callbacks": {name: each.get() for name, each in self._states.items()},
        }
        _saved_run.save(self._resume.folder, self._step, state, self._resume.keep, self._writer)

    def _describe(self, model):
        """The variables of now, which are those of the beginning and those of optimizers that the first step builds."""
        described = _training_state.description(model)
        what = _training_state.difference(self._variables, described, self._unbuilt)
        if what is not None:
            raise ValueError(
                f"{what}: it was made by the first training step, so that a restarted process would have nowhere to "
                f"restore it to. Make all variables when the model is built."
            )
        waiting = {owner: each.described for owner, each in self._waiting.items() if not each.is_built}
        return {**described, **waiting}

    def _load(self):
        """The newest intact checkpoint, or None."""
        path, saved = _saved_run.newest(self._resume.folder)
        if saved is not None:
            self._check_same(path, saved)
        return saved

    def _check_same(self, path, saved):
        """Raises ValueError where a checkpoint is not one of this run."""
        _saved_run.check_identity(path, saved, self._identity)
        what = _training_state.difference(
            saved["description"], self._variables, self._unbuilt & set(saved["description"])
        )
        if what is not None:
            raise ValueError(f"{path} is of another model: {what}. {REMEDY}")
        self._check_configuration(path, saved)
        lost = [name for name, state in saved["callbacks"].items() if state is not None and name not in self._states]
        if lost:
            raise ValueError(f"{path} holds the state of {', '.join(lost)}, not among the callbacks. {REMEDY}")
        if saved["epoch"] < self._fit.initial_epoch:
            raise ValueError(
                f"{path} is of epoch {saved['epoch']}, but `fit` begins with initial_epoch={self._fit.initial_epoch}. "
                f"{REMEDY}"
            )
        _saved_run.warn_of_environment(saved)

    def _check_configuration(self, path, saved):
        """Raises ValueError where the model, an optimizer or the loss is configured otherwise than in the run."""
        # An earlier version saved none.
        now = self._configuration
        known = saved.get("configuration", {"start": now, "current": now})
        start, current = known["start"], known["current"]
        # After an exception callbacks may have left any rate in an optimizer: it is restored.
        left = {
            name
            for name, each in _trained(self._model).items()
            if _unfinished.get(each) == self._resume.folder.resolve()
        }
        before, after = ({name: each for name, each in part.items() if name not in left} for part in (start, now))
        what = first_difference(before, current, after)
        if what is not None:
            raise ValueError(f"{path} is of another run: {what}. {REMEDY}")
        self._configuration = start

    def _go_on(self, model, saved):
        """Restores, and has `fit` begin where the checkpoint was saved."""
        epoch = max(saved["epoch"], self._fit.epochs) if saved["stopped"] else saved["epoch"]
        start_at_epoch(model, epoch)
        if epoch >= self._fit.epochs:
            _warn_of_finished(self._resume.folder, saved, self._fit.epochs)
        self._step = saved["epoch"] * self._source.steps_per_epoch + saved["batch"]
        # Earlier versions saved no state of the data.
        self._source.restore(saved.get("data"), saved["epoch"], saved["batch"])
        self._restore(saved)

    def _restore(self, saved):
        for waiting in self._waiting.values():
            waiting.drop()
        self._waiting = _training_state.assign(self._model, saved["state"], saved["description"])
        for name, state in saved["callbacks"].items():
            if state is not None:
                self._states[name].set(state)


# Models and optimizers of `fit`s that have begun and not ended, with the folders.
_unfinished: weakref.WeakKeyDictionary[Any, pathlib.Path] = weakref.WeakKeyDictionary()


def _trained(model):
    """What has a configuration and changes during training, by its name in `configuration`."""
    return {"the model": model, **{the_optimizer(path): each for path, each in find_optimizers(model).items()}}


def _warn_of_finished(folder, saved, epochs):
    if saved["stopped"]:
        reason = f"a callback stopped it in epoch {saved['epoch']}"
        remedy = "Give ExactResume another folder to train anew."
    else:
        reason = f"its checkpoint is of epoch {saved['epoch']}, and `fit` was called with epochs={epochs}"
        remedy = "Call `fit` with more epochs to go on, or give ExactResume another folder."
    message = f"{folder} is finished: nothing was trained, for {reason}. {remedy}"
    # Without a registry, which would show the same warning once alone.
    warnings.warn_explicit(message, UserWarning, __file__, 0)


def _check(model, fit):
    """Raises ValueError where a `fit` cannot be resumed exactly."""
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax"):
        raise ValueError(f"ExactResume works on the backends tensorflow and jax. Received: {backend}")
    _devices.check_devices(model)
    if fit.validation_data is fit.data and isinstance(fit.data, keras.utils.PyDataset):
        raise ValueError("The validation data are the training data's own batches. Give `fit` another object for them.")
    check_repeatable(fit.validation_data)
