"""Restoration and saving of the state of a `fit` for `ExactResume`."""

import contextlib
import json
import pathlib
import time
import warnings
import weakref
from typing import Any

import keras
import numpy as np

import idmatters_tf
from idmatters_tf._environment import COMPUTING, collect_versions, describe_environment_change, describe_numerics
from idmatters_tf._keras_internals import RunningFit, build_for_training, start_at_epoch
from idmatters_tf._progress import Progress
from idmatters_tf.callbacks import _devices, _encoding, _training_state
from idmatters_tf.callbacks._callback_states import CallbackStates
from idmatters_tf.callbacks._configuration import (
    describe_configuration,
    describe_optimizers,
    find_difference,
    label_optimizer,
)
from idmatters_tf.callbacks._model_parts import describe_attributes, find_optimizers
from idmatters_tf.callbacks._sources import make_source
from idmatters_tf.callbacks._stores import Store
from idmatters_tf.callbacks._workers import Workers, check_equal, compute_checksum, read_checkpoints
from idmatters_tf.checkpointing import checkpoint_path, describe_differences

# Increase it with each change of the entries of a checkpoint.
_FORMAT = 1
# The only value of the identity of a run that may change.
_DEVICES = "the set of devices"
SECONDS = {"second": 1, "hour": 3600, "minute": 60}


class StateCallback(keras.callbacks.Callback):
    """Callback that restores and saves the state after all other callbacks have handled an event.

    Args:
        resume: an `ExactResume`.
        fit: its running `fit`.
        workers: workers of the model.
    """

    def __init__(self, resume: Any, fit: RunningFit, workers: Workers):
        super().__init__()
        # Unlike `model`, this attribute does not make JAX's trainer copy its values into the variables.
        self._model: Any = None
        self._resume, self._fit, self._workers = resume, fit, workers
        self._store: Store | None = None
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
        self._source.attach(self._fit)
        self._resume.resumed_at, self._step = 0, self._fit.initial_epoch * self._source.steps_per_epoch
        with self._closing_on_error():
            check_equal(self._workers.run(self._prepare), self._workers.names)
            self._pending = self._load()
            if self._pending is not None:
                self._resume_from(self._pending)
        self._mark_unfinished()
        self._saved_at = time.monotonic()

    def _prepare(self):
        """Lock the folder and describe the training run."""
        model: Any = self.model
        self._variables = _training_state.describe_variables(model)
        # Configuration at the start of the run.
        self._configuration = describe_configuration(model)
        self._attributes = describe_attributes(model)
        others = [other for other in self._fit.callbacks if other not in (self, self._resume)]
        self._states = CallbackStates(others, model, self._resume.ignore)
        folder = self._workers.folder(self._resume.folder)
        self._store = Store(folder, self._resume.keep, prunes=len(self._workers.names) == 1)
        resume = {name: getattr(self._resume, name) for name in ("every", "keep", "seed")}
        return {**self._identity, **{f"ExactResume's `{name}`": value for name, value in resume.items()}}

    @contextlib.contextmanager
    def _closing_on_error(self):
        """Close the store if the block raises."""
        try:
            yield
        except BaseException:
            if self._store is not None:
                self._store.close()
            raise

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
        step = self._epoch * self._source.steps_per_epoch + done
        is_due = self._agree(logs, self._is_within and self._is_due(before, step))
        if self._is_ended or not self._is_within:
            # Validation and `on_epoch_end` follow.
            return
        self._step = step
        if self._model.stop_training or is_due:
            with self._closing_on_error():
                self._save(self._epoch, done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._is_paused():
            # The run continues at the last checkpoint. Rules of callbacks do not apply to a part of an epoch.
            return
        before, self._step = self._step, (epoch + 1) * self._source.steps_per_epoch
        was_ended = self._is_ended
        is_due = self._agree(logs, self._is_due(before, self._step, epoch + 1))
        self._is_ended |= was_ended
        if self._model.stop_training or epoch + 1 >= self._fit.epochs or is_due:
            with self._closing_on_error():
                self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:
        store: Any = self._store
        with self._closing_on_error():
            self._workers.run(store.wait)
        store.prune()
        self._source.close()
        if not self._is_paused():
            _trained.add(self._resume.folder)
            for optimizer in _name_optimizers(self._model).values():
                _unfinished.pop(optimizer, None)
        store.close()

    def _mark_unfinished(self):
        configuration = describe_optimizers(self._model)
        for name, optimizer in _name_optimizers(self._model).items():
            _unfinished[optimizer] = self._resume.folder, _select(configuration, name)

    def _agree(self, logs, is_due):
        """Stop all workers if one is to stop. Return True if a checkpoint is due on the chief."""
        model = self._model
        flags = model.stop_training or self._resume.is_terminated, self._is_stopped_by_rule(logs)
        # The clocks of the workers differ.
        flags = self._workers.any(*map(bool, flags), is_due and not self._workers.index)
        model.stop_training, self._is_ended, is_due = flags
        return is_due

    def _is_due(self, before, step, epochs=None):
        """Return True if a checkpoint is due in (before, step], where `epochs` have ended, or None within an epoch."""
        number, unit = self._resume.interval
        if unit == "epoch":
            return epochs is not None and epochs % number == 0
        if unit == "step":
            return step // number > before // number
        return time.monotonic() - self._saved_at >= number * SECONDS[unit]

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
            _DEVICES: _devices.describe_devices(model),
            "steps_per_epoch": self._source.steps_per_epoch,
            "steps_per_execution": model.steps_per_execution,
            "the optimizer": type(model.optimizer).__name__,
            "class_weight": None if weights is None else {int(key): float(value) for key, value in weights.items()},
            "the kind of data": type(self._source).__name__,
            "the checksum of batch 0": self._source.digest,
            **self._source.order,
        }

    def _save(self, epoch, batch):
        state: dict[str, Any] = {}

        def collect():
            state.update(self._collect(epoch, batch))
            values = state["state"]["variables"]
            several = values if len(self._workers.names) > 1 else {}
            return {owner: [compute_checksum(value) for value in own] for owner, own in several.items()}

        checksums = self._workers.run(collect)
        store: Any = self._store
        if len(checksums) > 1:
            # All workers have written the previous checkpoint.
            store.prune()
            values, names = state["state"]["variables"], self._workers.names
            differing = _training_state.select_differing(self._model, values, checksums, names)
            state["save"] = json.dumps(checksums[0])
            if self._workers.index:
                state |= {"state": {**state["state"], "variables": differing}, "data": None}
        store.save(self._step, _encoding.Snapshot(state).write)
        self._saved_at = time.monotonic()

    def _collect(self, epoch, batch):
        """Return the state for a checkpoint of this process after the previous one has been written."""
        store: Any = self._store
        # Only one copy of the state exists at a time.
        store.wait()
        model: Any = self.model  # on JAX this assigns the current values to the variables
        described = self._describe(model)
        if not self._checked:
            _training_state.check_complete(model)
            self._checked = True
        current = describe_configuration(model)
        self._check_unchanged(current)
        return {
            "format": _FORMAT,
            "version": idmatters_tf.__version__,
            "workers": len(self._workers.names),
            "parts": _devices.count_parts(model),
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
        step = self._workers.find_newest(self._resume.folder)
        loaded: list[dict[str, Any]] = []
        if step is not None:
            self._workers.run(lambda: loaded.append(self._read(step)))
        return loaded[0] if loaded else None

    def _read(self, step):
        checkpoints = read_checkpoints(self._resume.folder, step)
        # A worker that did not exist continues with the generators and callbacks of the chief.
        index = self._workers.index if self._workers.index < len(checkpoints) else 0
        saved = checkpoints[index]
        if index != self._workers.index:
            for name in self._states.find_lost(saved["callbacks"]):
                del saved["callbacks"]["states"][name]
        mismatch = self._find_mismatch(saved)
        if mismatch is not None:
            raise ValueError(
                f"{checkpoint_path(self._resume.folder, step)} {mismatch}. Start the same script as before, or pass "
                f"another folder to ExactResume."
            )
        devices, now = saved["identity"].get(_DEVICES), self._identity[_DEVICES]
        if devices != now:
            warnings.warn(
                f"The checkpoint was saved on {devices}, now {now}: the results equal those of an uninterrupted run "
                f"only up to rounding, and random numbers that each replica draws differ.",
                stacklevel=2,
            )
        warning = describe_environment_change(saved["environment"], self._environment)
        if warning is not None:
            warnings.warn(warning, stacklevel=2)
        self._configuration = saved["configuration"]["start"]
        counts = [each.get("parts", 0) for each in checkpoints]
        variables = _training_state.join([each["state"]["variables"] for each in checkpoints], counts)
        state = {**saved["state"], "variables": variables}
        return {**saved, "state": state, "parts": sum(counts), "data": checkpoints[0]["data"]}

    def _find_mismatch(self, saved):
        """Return the reason why a checkpoint does not belong to this run, or None."""
        if saved.get("format") != _FORMAT:
            return f"has format {saved.get('format')} of idmatters_tf {saved.get('version')}, not format {_FORMAT}"
        names = [name for name in saved["identity"] if name != _DEVICES]
        differences = describe_differences(saved["identity"], self._identity, names)
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
        self._workers.run(lambda: self._source.restore(saved["data"]))
        self._restore(saved)
        # The callbacks handle the beginning of the epoch again, which may change other attributes.
        saved["callbacks"] = _encoding.Snapshot(self._states.get(unchanged=True)).restore()
        start_at_epoch(self._model, epoch)

    def _restore(self, saved):
        _training_state.assign(self._model, saved["state"], saved["parts"], self._workers.index)
        self._states.set(saved["callbacks"])


def _select(configuration, *parts):
    """Return the entries of parts of a configuration, such as "the model"."""
    return {path: value for path, value in configuration.items() if path.partition(":")[0] in parts}


def _select_layers(configuration):
    """Return the configuration of the layers as "Class.argument"."""
    return {path.partition(": ")[2]: value for path, value in _select(configuration, "the model").items()}


# Optimizers of `fit`s that have begun and not ended, with their folders and configurations.
_unfinished: weakref.WeakKeyDictionary[Any, tuple[pathlib.Path, dict[str, Any]]] = weakref.WeakKeyDictionary()
# Folders of the `fit`s of this process that have ended.
_trained: set[pathlib.Path] = set()


def _name_optimizers(model):
    """Return the optimizers of a model by their names in `describe_configuration`."""
    return {label_optimizer(path): optimizer for path, optimizer in find_optimizers(model).items()}
