"""Checkpoints of `ExactResume` outside of `fit`: the weights for evaluation and export, and the state of callbacks."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from idmatters_tf._keras_internals import read_adapted, restore_adapted
from idmatters_tf.callbacks import _devices, _encoding, _training_state, _workers
from idmatters_tf.checkpointing import checkpoint_path, saving


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read.

    Attributes:
        path: folder of the checkpoint.
        step: number of completed training batches.
        texts: results of `get_state` that are strings, by the name of the callback's class.
    """

    path: pathlib.Path
    step: int
    texts: Mapping[str, str]
    _variables: Mapping[str, list[Any]]
    _description: Mapping[str, list[list[str]]]
    _adapted: list[dict[str, Any]]

    def load_into(self, model: keras.Model, optimizer: bool = False) -> None:
        """Assign the weights, and with `optimizer` the state of the compiled optimizer.

        Raises:
            ValueError: the model has other variables.
        """
        owners = ("model", "optimizer") if optimizer else ("model",)
        now = _training_state.describe_variables(model)
        difference = _training_state.find_difference(
            {owner: self._description.get(owner, []) for owner in owners}, {owner: now[owner] for owner in owners}
        )
        if difference is not None:
            raise ValueError(f"{self.path} is a checkpoint of another model: {difference}")
        variables = _training_state.variables(model)
        for owner in owners:
            for variable, value in zip(variables[owner], self._variables[owner], strict=True):
                # Values of several devices differ only in moving averages, of which the first is used elsewhere.
                _devices.assign(variable, value[0] if isinstance(value, list) else value)
        restore_adapted(model, self._adapted)


def read_newest(
    folder: str | os.PathLike, on_damage: Callable[[pathlib.Path, str], object] | None = None, repair: bool = False
) -> Checkpoint | None:
    """Return the newest intact checkpoint in a folder, or None.

    Args:
        folder: folder of the checkpoints of a run.
        on_damage: called with the path and a description of each newer damaged checkpoint; by default a warning.
        repair: see `idmatters_tf.checkpointing.find_newest_intact`.
    """
    step = _workers.find_newest_complete(pathlib.Path(folder), on_damage, repair)
    return None if step is None else read(folder, step)


def read(folder: str | os.PathLike, step: int) -> Checkpoint:
    """Return the checkpoint of a step, which is intact. Raises ValueError if another version has written it."""
    path = checkpoint_path(folder, step)
    saved = _encoding.read(path)
    if abs(saved["format"]) != _encoding.FORMAT:
        remedy = "Use the version that has written it, or another folder."
        raise ValueError(f"{path} {_encoding.describe_format(saved)}. {remedy}")
    texts = {name: text for name, text in saved["callbacks"]["texts"].items() if text is not None}
    state = saved["state"]
    return Checkpoint(path, step, texts, state["variables"], saved["description"], state["adapted"])


def save(
    folder: str | os.PathLike,
    step: int,
    model: keras.Model,
    texts: Mapping[str, str],
    owners: Sequence[str] = ("model",),
) -> None:
    """Save variables of a model as a checkpoint that `read_newest` reads, but from which `fit` cannot resume.

    Args:
        folder: folder of the checkpoints.
        step: number of completed training steps.
        model: a built model.
        texts: see `Checkpoint`.
        owners: "model" for the weights, "optimizer" for the state of the compiled optimizer.
    """
    described = _training_state.describe_variables(model)
    several = _training_state.variables(model)
    values = {owner: [_devices.read(variable) for variable in several[owner]] for owner in owners}
    state = {
        "format": -_encoding.FORMAT,
        "description": {owner: described[owner] for owner in owners},
        "callbacks": {"texts": dict(texts)},
        "state": {"variables": values, "adapted": read_adapted(model)},
    }
    with saving(folder, step) as beside:
        _encoding.Snapshot(state).write(beside)


def load_weights(model: keras.Model, folder: str | os.PathLike) -> int | None:
    """Assign the weights of the newest intact checkpoint of `ExactResume` to a model.

    For example, to evaluate or export a model after `fit`, in another process.

    Args:
        model: a built model with the same variables.
        folder: folder of the checkpoints.

    Returns:
        The number of completed training batches, or None if there is no checkpoint.

    Raises:
        ValueError: the model has other variables.
    """
    saved = read_newest(folder)
    if saved is not None:
        saved.load_into(model)
        return saved.step
    return None
