"""Writes in a thread, so that training does not wait for the disk.

The values to write are copied to host memory first, since the next training step changes the variables. At most one
write is in flight, so that a process needs the memory of one copy more.
"""

import os
import threading
from collections.abc import Callable


class BackgroundWriter:
    """A thread that executes one write at a time.

    The thread is not a daemon: the interpreter does not end before the write has ended. In a process that is forked
    off no write is in flight.
    """

    def __init__(self) -> None:
        # Not `Thread.join`: interrupted by a signal, it takes a running thread for one that has ended (Python 3.11).
        self._ended = threading.Event()
        self._ended.set()
        self._error: BaseException | None = None
        self._process = os.getpid()

    def submit(self, write: Callable[[], object]) -> None:
        """Start a write in the thread, once the one before has ended.

        Args:
            write: called without arguments; it must not use anything that the training changes.

        Raises:
            BaseException: the error of the write before. `write` is not called.
        """
        self.wait()
        thread = threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=False)
        try:
            self._ended.clear()
            thread.start()
        except BaseException:
            # An interrupt, or there are too many threads.
            if not thread.is_alive():
                self._ended.set()
            raise

    def wait(self) -> None:
        """Wait until no write is in flight.

        Raises:
            BaseException: the error of the write, once. An exception that a signal raises in the meantime, such as
                KeyboardInterrupt, is raised when the write has ended.
        """
        if self._process != os.getpid():
            # This process was forked off: the thread is the parent's.
            self.__init__()
        interrupt = None
        while not self._ended.is_set():
            try:
                self._ended.wait()
            except BaseException as error:
                interrupt = error
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
        finally:
            self._ended.set()
