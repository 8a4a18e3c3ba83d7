"""A `fit` that is stopped at given moments and started again, compared with an uninterrupted one."""

import keras
import numpy as np
import pytest


class Killed(Exception):
    """Exception in place of SIGKILL, which would require a separate process. `test_killed_fit` kills processes."""


def kill_at(moment):
    """Return a callback that raises `Killed` at a moment: an event, the epoch, and the batch or None."""
    at = {"epoch": 0}

    def happens(event, batch=None):
        if (event, at["epoch"], batch) == moment:
            raise Killed

    return keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: at.update(epoch=epoch),
        on_epoch_end=lambda epoch, logs: happens("epoch ends"),
        on_train_batch_end=lambda batch, logs: happens("batch", batch),
        on_test_end=lambda logs: happens("validated"),
    )


def to_bytes(results):
    """Return arrays, numbers and texts of a structure as bytes."""
    return keras.tree.map_structure(lambda value: np.asarray(value).tobytes(), results)


def check_stopped(fit, folder, *moments):
    """Check that a `fit` that is stopped at moments, as in `kill_at`, ends with the bits of an uninterrupted one.

    `fit(folder, callback)` trains a new model and returns (results, resumed_at): a dict or sequence of structures of
    arrays, numbers and texts, and the step at which an ExactResume has resumed. Return the results of the uninterrupted
    run, and the step at which the last part began.
    """
    whole, _ = fit(folder / "whole", kill_at(None))
    for moment in moments:
        with pytest.raises(Killed):
            fit(folder / "stopped", kill_at(moment))
    again, resumed_at = fit(folder / "stopped", kill_at(None))
    names = whole if isinstance(whole, dict) else range(len(whole))
    different = [name for name in names if to_bytes(again[name]) != to_bytes(whole[name])]
    assert not different, f"differs after a resume: {different}"
    return whole, resumed_at
