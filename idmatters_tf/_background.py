"""Writes in a thread, so that training does not wait for the disk.

The values to write are copied to host memory first, since the next training step changes the variables. At most one
write is in flight, so that a process needs the memory of one copy more.
"""

import threading
from collections.abc import Callable


class BackgroundWriter:
    """A thread that executes one write at a time.

    The thread is not a daemon: the interpreter does not end before the write has ended. In a process that is forked
    off no write is in flight.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, write: Callable[[], object]) -> None:
        """Start a write in the thread, once the one before has ended.

        Args:
            write: called without arguments; it must not use anything that the training changes.

        Raises:
            BaseException: the error of the write before. `write` is not called.
        """
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(write,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until no write is in flight.

        Raises:
            BaseException: the error of the write, once. An exception that a signal raises in the meantime, such as
                KeyboardInterrupt, is raised when the write has ended.
        """
        interrupt = None
        while self._thread is not None and self._thread.is_alive():
            try:
                self._thread.join()
            except BaseException as error:
                interrupt = error
        self._thread = None
        if interrupt is not None:
            raise interrupt
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write):
        try:
            write()
        except BaseException as error:
            self._error = error
