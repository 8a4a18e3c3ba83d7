"""Locked folders of checkpoints of running `fit`s, with writes in the background."""

import concurrent.futures
import pathlib
import warnings
from collections.abc import Callable

from idmatters_tf.checkpointing import FolderLock, describe_newest, list_steps, remove_steps, saving


class Store:
    """Checkpoints of a `fit` in a locked folder, which a thread writes while training continues.

    The interpreter waits for the thread before it exits. `keep` checkpoints are kept, besides the one that is written.

    Raises:
        FolderInUse: another process holds the lock.
        ValueError: the folder cannot be created or is not writable.
    """

    def __init__(self, folder: pathlib.Path, keep: int):
        self._folder, self._keep = folder, keep
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._written: concurrent.futures.Future[None] | None = None
        try:
            self._lock = FolderLock(folder)
        except OSError as error:
            raise ValueError(
                f"Argument `folder` of ExactResume must be a writable folder. Received: {folder} ({error.strerror})"
            ) from error

    def save(self, step: int, write: Callable[[pathlib.Path], object]) -> None:
        """Remove the oldest checkpoints and write one by `write(folder)`, in the background, after the previous write.

        Raises:
            OSError: the previous checkpoint could not be written. Earlier ones are unchanged.
            FolderLost: the folder or its lock was removed.
        """
        self.wait()
        self._written = self._executor.submit(self._write, step, write)

    def _write(self, step, write):
        try:
            self.prune()
            with saving(self._folder, step) as path:
                write(path)
        except OSError as error:
            newest = describe_newest(self._folder)
            error.add_note(f"ExactResume could not save the checkpoint of step {step} in {self._folder}. {newest}")
            raise

    def prune(self) -> None:
        """Remove the oldest checkpoints."""
        remove_steps(self._folder, list_steps(self._folder)[: -self._keep])

    def wait(self) -> None:
        """Wait for the last write and raise its error once, see `save`."""
        if self._written is not None:
            # A KeyboardInterrupt leaves the write in progress, for which `close` waits.
            concurrent.futures.wait([self._written])
            written, self._written = self._written, None
            written.result()

    def close(self) -> None:
        """Complete the write in progress, turn its error into a warning, and release the lock."""
        try:
            self.wait()
        except Exception as error:
            warnings.warn(" ".join([f"{error}.", *getattr(error, "__notes__", ())]), stacklevel=2)
        finally:
            self._executor.shutdown()
            self._lock.release()
