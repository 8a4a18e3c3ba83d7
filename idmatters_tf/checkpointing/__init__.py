"""Atomic, checksummed files and checkpoints, which are complete or absent after a kill at any moment.

files      atomic replacement of files and folders, and manifests with SHA-256 sums
locks      one process at a time in a folder
store      folders of checkpoints: background writes, the newest N, fallback over damaged ones
identity   comparison of the runs and environments of checkpoints

`ExactResume` and the training programs use this package. The caller determines the content of a checkpoint. Neither
Keras nor TensorFlow is imported.
"""

from idmatters_tf.checkpointing.files import (
    MANIFEST,
    PathOccupied,
    check_folder,
    check_replaceable,
    remove_listed,
    remove_unfinished,
    replacing,
    updating,
    write_atomically,
    write_manifest,
)
from idmatters_tf.checkpointing.identity import (
    describe_differences,
    describe_environment_change,
    describe_other_run,
)
from idmatters_tf.checkpointing.locks import LOCK_FILE, FolderInUse, FolderLock, FolderLost, check_held
from idmatters_tf.checkpointing.store import (
    CheckpointStore,
    checkpoint_path,
    describe_newest,
    find_newest_intact,
    list_steps,
    remove_checkpoint,
    remove_oldest,
    rename_damaged,
    saving,
)

__all__ = [
    "LOCK_FILE",
    "MANIFEST",
    "CheckpointStore",
    "FolderInUse",
    "FolderLock",
    "FolderLost",
    "PathOccupied",
    "check_folder",
    "check_held",
    "check_replaceable",
    "checkpoint_path",
    "describe_differences",
    "describe_environment_change",
    "describe_newest",
    "describe_other_run",
    "find_newest_intact",
    "list_steps",
    "remove_checkpoint",
    "remove_listed",
    "remove_oldest",
    "remove_unfinished",
    "rename_damaged",
    "replacing",
    "saving",
    "updating",
    "write_atomically",
    "write_manifest",
]
