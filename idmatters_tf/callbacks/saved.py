"""Checkpoints of `ExactResume` outside of `fit`: the weights for evaluation and export, and other training loops."""

import os
import pathlib
from collections.abc import Mapping, Sequence

import keras

from idmatters_tf._keras_internals import read_adapted, restore_adapted
from idmatters_tf.callbacks import _devices, _encoding, _training_state, _workers
from idmatters_tf.callbacks._configuration import compare_identity
from idmatters_tf.checkpointing import OtherRun, checkpoint_path, saving

WEIGHTS = ("model",)


def load_weights(
    model: keras.Model, folder: str | os.PathLike[str], identity: Mapping[str, object] | None = None
) -> int | None:
    """Assign the weights of the newest intact checkpoint of `ExactResume` to a model.

    For example, to evaluate or export a model after `fit`, in another process.

    Args:
        model: a built model with the same variables.
        folder: folder of the checkpoints.
        identity: see `ExactResume`. If None, it is not compared.

    Returns:
        The number of completed training batches, or None if there is no checkpoint.

    Raises:
        idmatters_tf.checkpointing.OtherRun: a ValueError, if the model has other variables, the run another identity,
            or another version has written the checkpoint.
    """
    return restore(model, folder, identity)


def restore(
    model: keras.Model,
    folder: str | os.PathLike[str],
    identity: Mapping[str, object] | None = None,
    owners: Sequence[str] = WEIGHTS,
    repair: bool = False,
) -> int | None:
    """Assign the variables of `owners` in the newest intact checkpoint, as `load_weights` and `save`.

    With `repair`, unfinished files are removed and damaged checkpoints renamed.
    """
    step = _workers.find_newest_complete(pathlib.Path(folder), repair)
    if step is None:
        return None
    path = checkpoint_path(folder, step)
    saved = _encoding.read(path)
    if abs(saved["format"]) != _encoding.FORMAT:
        remedy = "Use the version that has written it, or another folder."
        raise OtherRun(path, _encoding.describe_format(saved), remedy)
    mismatch = None if identity is None else compare_identity(saved.get("given", {}), identity)
    variables = _training_state.variables(model)
    described, now = saved["description"], _training_state.describe_variables(variables)
    difference = _training_state.find_difference(
        {owner: described.get(owner, []) for owner in owners}, {owner: now[owner] for owner in owners}
    )
    if difference is not None and mismatch is None:
        mismatch = f"is a checkpoint of another model: {difference}"
    if mismatch is not None:
        raise OtherRun(path, mismatch, "Use the run and the model of the checkpoint, or remove it.")
    for owner in owners:
        for variable, value in zip(variables[owner], saved["state"]["variables"][owner], strict=True):
            # Values of several devices differ only in moving averages, of which the first is used elsewhere.
            _devices.assign(variable, value[0] if isinstance(value, list) else value)
    restore_adapted(model, saved["state"]["adapted"])
    return step


def save(
    model: keras.Model,
    folder: str | os.PathLike[str],
    step: int,
    identity: Mapping[str, object],
    owners: Sequence[str] = WEIGHTS,
) -> None:
    """Save variables of a model as a checkpoint that `restore` reads, but from which `fit` cannot resume.

    The owners are "model" for the weights and "optimizer" for the state of the compiled optimizer.
    """
    several = _training_state.variables(model)
    described = _training_state.describe_variables(several)
    values = {owner: [_devices.read(variable) for variable in several[owner]] for owner in owners}
    state = {
        "format": -_encoding.FORMAT,
        "given": dict(identity),
        "description": {owner: described[owner] for owner in owners},
        "state": {"variables": values, "adapted": read_adapted(model)},
    }
    with saving(folder, step) as beside:
        _encoding.Snapshot(state).write(beside)
