"""Atomic, checksummed files and checkpoints, which are complete or absent after a kill at any moment.

files      atomic replacement of files and folders, and manifests with CRC-32 sums
locks      one process at a time in a folder
store      checkpoints: writing, removal, fallback over damaged ones

`ExactResume` and the training programs use this package. The caller determines the content of a checkpoint. Neither
Keras nor TensorFlow is imported.
"""

from idmatters_tf.checkpointing.files import remove, remove_unfinished, replacing, write_atomically
from idmatters_tf.checkpointing.locks import FolderInUse, FolderLock, FolderLost, check_held
from idmatters_tf.checkpointing.store import (
    OtherRun,
    checkpoint_path,
    describe_newest,
    find_newest_intact,
    list_steps,
    remove_steps,
    saving,
)

__all__ = [
    "FolderInUse",
    "FolderLock",
    "FolderLost",
    "OtherRun",
    "check_held",
    "checkpoint_path",
    "describe_newest",
    "find_newest_intact",
    "list_steps",
    "remove",
    "remove_steps",
    "remove_unfinished",
    "replacing",
    "saving",
    "write_atomically",
]
