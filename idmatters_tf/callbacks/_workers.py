"""Processes that train a model together: results and errors of all of them, and their checkpoints in a shared folder.

The chief writes `step-N`, as a single process does. Worker k writes `worker-k/step-N` with the values that differ from
those of the chief, and the state of its generators and callbacks.
"""

import functools
import pathlib
import warnings
from collections.abc import Callable
from typing import TypeVar

import keras
import numpy as np

from idmatters_tf._keras_types import Strategy
from idmatters_tf.callbacks import _encoding
from idmatters_tf.checkpointing import checkpoint_path, find_newest_intact, list_steps, remove_steps
from idmatters_tf.checkpointing.locks import LOCK_FILE
from idmatters_tf.checkpointing.store import find_damage
from idmatters_tf.distribute.tasks import add_over_workers, describe_cluster, run_on_all

T = TypeVar("T")


class Workers:
    """Workers of a model's strategy, or a single process.

    Attributes:
        names: names of the tasks, such as "worker 1", the chief's first.
        index: index of this process.
    """

    def __init__(self, model: keras.Model):
        self._strategy: Strategy | None = getattr(model, "distribute_strategy", None)
        cluster = describe_cluster(self._strategy)
        self.names = ["worker 0"] if cluster is None else list(cluster.tasks)
        self.index = 0 if cluster is None else self.names.index(cluster.task)

    def run(self, function: Callable[[], T]) -> list[T]:
        """Call a function without collective operations on all workers. Return their JSON results, the chief's first.

        Raises:
            Exception: the function fails on a worker. The message on the others begins with the name of that worker.
        """
        return run_on_all(self._strategy, function)

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag True if it is True on any worker."""
        if len(self.names) == 1:
            return list(flags)
        return (add_over_workers(self._strategy, np.array(flags, np.int32)) > 0).tolist()

    def find_newest(self, folder: pathlib.Path) -> int | None:
        """Return the newest step whose checkpoints are intact on all workers, or None. Remove newer ones.

        Raises:
            ValueError: the workers do not share the folder.
        """
        step = self.run(lambda: None if self.index else self._find_newest(folder))[0]
        newer = [other for other in list_steps(self.folder(folder)) if step is None or other > step]
        remove_steps(self.folder(folder), newer)
        return step

    def folder(self, folder: pathlib.Path) -> pathlib.Path:
        """Return the folder of the checkpoints of this worker."""
        return _folder_of(folder, self.index)

    def _find_newest(self, folder):
        # All workers hold the locks of their folders.
        for index, name in enumerate(self.names):
            if not (_folder_of(folder, index) / LOCK_FILE).exists():
                raise ValueError(
                    f"Argument `folder` of ExactResume must be a folder that all workers share. Received: {folder}, in "
                    f"which the files of {name} are missing"
                )
        return find_newest_complete(folder, repair=True)


def read_checkpoints(folder: pathlib.Path, step: int) -> list[_encoding.Saved]:
    """Return the checkpoints of a step of all workers that saved it, the chief's first."""
    chief = _encoding.read(checkpoint_path(folder, step))
    others = range(1, chief.get("workers", 1))
    return [chief, *(_encoding.read(checkpoint_path(_folder_of(folder, index), step)) for index in others)]


def _folder_of(folder, index):
    return folder / f"worker-{index}" if index else folder


def find_newest_complete(folder: pathlib.Path, repair: bool = False) -> int | None:
    """Return the newest step that all workers have saved, see `find_newest_intact`. Damage is a warning."""
    accept = functools.partial(_is_complete, folder)
    had_any = bool(list_steps(folder))
    step = find_newest_intact(folder, _encoding.STATE, _warn_of_damage, repair, accept)
    if step is None and had_any:
        warnings.warn(f"No checkpoint in {folder} is intact: the run starts anew.", stacklevel=2)
    return step


def _is_complete(folder, step):
    """Return True if all workers have saved a step in the same run as the chief."""
    chief = _encoding.read_plain(checkpoint_path(folder, step))
    for index in range(1, chief.get("workers", 1)):
        own = _folder_of(folder, index)
        if not own.is_dir():
            raise ValueError(f"{own} is missing, which contains parts of the checkpoints in {folder}. Restore it.")
        path = checkpoint_path(own, step)
        if find_damage(path, _encoding.STATE) is not None or _encoding.read_plain(path)["save"] != chief["save"]:
            return False
    return True


def _warn_of_damage(path, damage):
    warnings.warn(
        f"Checkpoint {path} is damaged ({damage}). Falling back to the previous one, if there is one.", stacklevel=2
    )
