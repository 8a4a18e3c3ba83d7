"""State of a training run for `ExactResume`: its identity, its checkpoints and their restoration."""

import itertools
import json
import pathlib
import warnings
import weakref
from typing import Protocol

import keras

from idmatters_tf._arguments import describe_differences
from idmatters_tf._environment import (
    COMPUTING,
    VERSION,
    collect_versions,
    describe_environment_change,
    describe_numerics,
)
from idmatters_tf._keras_internals import RunningFit, build_for_training
from idmatters_tf.callbacks import _devices, _encoding, _training_state
from idmatters_tf.callbacks._checksums import checksum
from idmatters_tf.callbacks._configuration import (
    compare_identity,
    describe_configuration,
    describe_optimizers,
    label_optimizer,
)
from idmatters_tf.callbacks._reached import Reached
from idmatters_tf.callbacks._sources import make_source, make_validation_order, validation_inputs
from idmatters_tf.callbacks._sources.random_access import has_hooks
from idmatters_tf.callbacks._workers import Workers, read_checkpoints
from idmatters_tf.checkpointing import OtherRun, checkpoint_path

# The only value of the identity of a run that may change.
_DEVICES = "the set of devices"


class Resume(Protocol):
    """Arguments of an `ExactResume`, see there."""

    folder: pathlib.Path
    every: int | str
    keep: int
    seed: int
    ignore: tuple[str, ...]
    identity: dict[str, object]
    replay: bool


class RunState:
    """State of a `fit` with an `ExactResume`, and the source of its training data.

    Raises:
        ValueError: the `fit` cannot be resumed exactly.
    """

    def __init__(self, resume: Resume, fit: RunningFit, workers: Workers):
        _check_fit(fit)
        self._resume = resume
        self._fit = fit
        self._model = fit.model
        self._workers = workers
        self.source = make_source(fit, resume.seed, resume.replay)
        self._validation = make_validation_order(fit)
        self._reader = _devices.Reader()
        self._is_complete = False

    def build(self) -> None:
        """Create all variables, and make the `fit` take its batches from the source."""
        weights, frequency = self._fit.class_weight, self._fit.validation_freq
        self._identity = {
            "Keras' backend": keras.backend.backend(),
            _DEVICES: _devices.describe_devices(self._model),
            "steps_per_epoch": self.source.steps_per_epoch,
            "steps_per_execution": self._model.steps_per_execution,
            "the optimizer": type(self._model.optimizer).__name__,
            "validation_freq": frequency if isinstance(frequency, int) else list(frequency),
            "class_weight": None if weights is None else {int(key): float(value) for key, value in weights.items()},
            "the kind of data": type(self.source).__name__,
            "the checksum of batch 0": self.source.digest,
            **self.source.order,
        }
        self._environment = {
            "versions": collect_versions(COMPUTING),
            "numerics": describe_numerics(keras.backend.backend()),
        }
        try:
            with _devices.scope(self._model):
                build_for_training(self._model, self.source.first_batch)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                "ExactResume requires the variables of the model, its metrics and optimizer before the first step, but "
                f"Keras could not create them from a batch of the data: {error}"
            ) from error
        self.source.attach(self._fit)

    def describe(self, callbacks: list[keras.callbacks.Callback]) -> dict[str, object]:
        """Describe the run at its beginning. Return the values that must be equal on all workers."""
        validation = validation_inputs(self._fit)
        objects = [*callbacks, *self.source.objects, *([validation] if has_hooks(validation) else ())]
        self.reached = Reached(self._model, objects, self._resume.ignore, [self._resume])
        self._optimizers = self.reached.optimizers
        self._owners = self._list_variables()
        self._variables = _training_state.describe_variables(self._owners)
        # Configuration at the start of the run.
        self._configuration = describe_configuration(self._model, self._optimizers)
        settings = {f"ExactResume's `{name}`": getattr(self._resume, name) for name in ("every", "keep", "seed")}
        return self._identity | self._resume.identity | settings

    def _list_variables(self):
        return _training_state.variables(self._model, self._optimizers)

    def collect(self, epoch: int, batch: int, is_ended: bool) -> _encoding.Saved:
        """Return the values of a checkpoint of this process."""
        now = self._list_variables()
        if any(list(map(id, now[owner])) != list(map(id, several)) for owner, several in self._owners.items()):
            difference = _training_state.find_difference(self._variables, _training_state.describe_variables(now))
            raise ValueError(
                f"{difference}: the first training step created it, so that a restarted process cannot restore it. "
                f"Create all variables when the model is built, and call `model.optimizer.build(variables)`, also of "
                f"further optimizers, before `fit`."
            )
        if not self._is_complete:
            _training_state.check_complete(self._model, [*self._restored(), *self.reached.variables])
            self._is_complete = True
        return {
            "format": _encoding.FORMAT,
            "version": VERSION,
            "workers": len(self._workers.names),
            "parts": _devices.count_parts(self._model),
            "epoch": epoch,
            "batch": batch,
            "ended": is_ended,
            "identity": self._identity,
            "given": self._resume.identity,
            "environment": self._environment,
            "configuration": {
                "start": _encoding.Json(self._configuration),
                "current": describe_optimizers(self._optimizers),
            },
            "description": _encoding.Json(self._variables),
            "state": _training_state.read(self._model, self._owners, self._reader),
            "data": self.source.state(batch),
            "validation": None if self._validation is None else self._validation.state(),
            "reached": self.reached.get(self._restored()),
        }

    def _restored(self):
        """Return the variables that are restored with the model."""
        return list(itertools.chain(*self._owners.values()))

    def compute_checksums(self, state: _encoding.Saved) -> dict[str, list[int]]:
        """Return the checksums of the values of the variables, by owner, for `select_own`."""
        return {owner: [checksum(value) for value in own] for owner, own in state["state"]["variables"].items()}

    def select_own(self, state: _encoding.Saved, checksums: list[dict[str, list[int]]]) -> _encoding.Saved:
        """Return the values that this worker saves. Raise ValueError if weights differ between the workers."""
        values = state["state"]["variables"]
        differing = _training_state.select_differing(self._model, self._owners, values, checksums, self._workers.names)
        state = {**state, "save": json.dumps(checksums[0])}
        if self._workers.index:
            state |= {"state": {**state["state"], "variables": differing}, "data": None}
        return state

    def check(self) -> None:
        """Raise ValueError if state has changed that cannot be restored."""
        self.reached.get(self._restored())

    def load(self) -> _encoding.Saved | None:
        """Return the newest intact checkpoint, or None. Raise OtherRun if it does not belong to this run."""
        step = self._workers.find_newest(self._resume.folder)
        loaded: list[_encoding.Saved] = []
        if step is not None:
            self._workers.run(lambda: loaded.append(self._read(step)))
        return loaded[0] if loaded else None

    def _read(self, step):
        checkpoints = read_checkpoints(self._resume.folder, step)
        # A worker that did not exist continues with the generators and callbacks of the chief.
        is_own = self._workers.index < len(checkpoints)
        saved = checkpoints[self._workers.index if is_own else 0]
        mismatch = self._find_mismatch(saved, is_own)
        if mismatch is not None:
            remedy = "Start the same script as before, or pass another folder to ExactResume."
            raise OtherRun(checkpoint_path(self._resume.folder, step), mismatch, remedy)
        devices = saved["identity"].get(_DEVICES)
        if devices != self._identity[_DEVICES]:
            warnings.warn(
                f"The checkpoint was saved on {devices}, now {self._identity[_DEVICES]}: the results equal those of an "
                f"uninterrupted run only up to rounding, and random numbers that each replica draws differ.",
                stacklevel=2,
            )
        warning = describe_environment_change(saved["environment"], self._environment)
        if warning is not None:
            warnings.warn(warning, stacklevel=2)
        self._configuration = saved["configuration"]["start"]
        counts = [each.get("parts", 0) for each in checkpoints]
        variables = _training_state.join([each["state"]["variables"] for each in checkpoints], counts)
        state = {**saved["state"], "variables": variables}
        return {**saved, "state": state, "parts": sum(counts), "data": checkpoints[0]["data"], "is_own": is_own}

    def _find_mismatch(self, saved, is_own):
        """Return the reason why a checkpoint does not belong to this run, or None."""
        if saved.get("format") != _encoding.FORMAT:
            return _encoding.describe_format(saved)
        before, now = ({**each, _DEVICES: None} for each in (saved["identity"], self._identity))
        mismatch = compare_identity(saved.get("given", {}), self._resume.identity) or compare_identity(before, now)
        if mismatch is not None:
            return mismatch
        difference = _training_state.find_difference(saved["description"], self._variables)
        if difference is not None:
            return f"is a checkpoint of another model: {difference}"
        # An exception leaves any learning rate, which is restored instead of compared.
        optimizers = self._optimizers.items()
        skipped = {label_optimizer(path) for path, each in optimizers if _unfinished.get(each) == self._resume.folder}
        start, current, now = (
            {path: value for path, value in each.items() if path.partition(":")[0] not in skipped}
            for each in (saved["configuration"]["start"], saved["configuration"]["current"], self._configuration)
        )
        # Callbacks change learning rates and other values, which may equal those at the start or in the checkpoint.
        differences = describe_differences(start, now, {**now, **start}, current)
        if differences:
            advice = (
                ". To train on with another optimizer, use another folder and start from `load_weights(model, folder)`"
            )
            is_optimizer = differences[0].startswith("the optimizer")
            return f"is a checkpoint of another run: {differences[0]}{advice if is_optimizer else ''}"
        listed, participants = saved["reached"]["participants"], self.reached.participants
        if listed != participants and is_own:
            return (
                f"is a checkpoint of a run with the callbacks {', '.join(listed) or 'none'}. Received: "
                f"{', '.join(participants) or 'none'}. For one that does not affect training, define `get_state` that "
                f"returns None, or pass ExactResume(..., ignore=[CLASS])"
            )
        epoch = saved["epoch"]
        if epoch < self._fit.initial_epoch:
            return f"is a checkpoint of epoch {epoch}, but `fit` begins with initial_epoch={self._fit.initial_epoch}"
        if saved["batch"] and epoch >= self._fit.epochs:
            return (
                f"is a checkpoint within epoch {epoch + 1}, after {saved['batch']} batches. Received: "
                f"epochs={self._fit.epochs}. Call `fit` with epochs={epoch + 1} or more"
            )
        return None

    def mark_unfinished(self, unfinished: bool = True) -> None:
        """Record that the optimizers belong to a `fit` that has not ended, or that it has."""
        _unfinished.update(dict.fromkeys(self._optimizers.values(), self._resume.folder if unfinished else None))

    def resume(self, saved: _encoding.Saved) -> None:
        """Restore a checkpoint when training begins."""
        before = _training_state.read_generators()
        self._workers.run(lambda: self.source.restore(saved["data"]))
        for name, state in _training_state.read_generators().items():
            if repr(state) != repr(before[name]):
                # Data that were read again have drawn from this generator, also for batches that are loaded ahead.
                saved["state"]["random"][name] = None
        if self._validation is not None:
            self._validation.restore(saved["validation"])
        self.restore(saved)
        # The callbacks handle the beginning of the epoch again, which may change other attributes.
        saved["reached"] = self.reached.get(self._restored(), full=True)

    def restore(self, saved: _encoding.Saved) -> None:
        """Restore the variables, the generators and the callbacks."""
        _training_state.assign(self._model, self._owners, saved["state"], saved["parts"], self._workers.index)
        self.reached.rebase()
        self.reached.set(saved["reached"], saved["is_own"])


def _check_fit(fit: RunningFit) -> None:
    """Raise ValueError if a `fit` cannot be resumed exactly."""
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax"):
        raise ValueError(f"ExactResume supports the backends tensorflow and jax. Received: {backend}")
    _devices.check_devices(fit.model)
    if sum(getattr(callback, "is_last", False) for callback in fit.callbacks) > 1:
        raise ValueError("There is more than one ExactResume among the callbacks. Remove all but one.")
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in fit.callbacks):
        raise ValueError(
            "ExactResume and BackupAndRestore cannot be used together. Remove BackupAndRestore from the callbacks."
        )
    if any(isinstance(callback, keras.callbacks.CSVLogger) and callback.append for callback in fit.callbacks):
        raise ValueError(
            "CSVLogger(append=True) would repeat rows after a resume. Pass append=False: ExactResume restores the file."
        )


# Folders of `fit`s that have begun and not ended, by optimizer.
_unfinished: weakref.WeakKeyDictionary[keras.optimizers.Optimizer, pathlib.Path | None] = weakref.WeakKeyDictionary()
