"""Background writes, so that training does not wait for the disk.

The caller copies the values to host memory first, since the next training step changes the variables. At most one write
is in progress, so that a process requires the memory of one additional copy.
"""

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Executor of one write at a time in a thread.

    The thread is not a daemon, so that the interpreter waits for the write before it exits.
    """

    def __init__(self) -> None:
        # Not `Thread.join`: after a signal, it treats a running thread as ended (Python 3.11).
        self._ended = threading.Event()
        self._ended.set()
        self._error: BaseException | None = None

    def submit(self, write: Callable[[], object]) -> None:
        """Start a write in the thread after the previous one has ended.

        Args:
            write: function without arguments. It must not use values that training changes.

        Raises:
            BaseException: the error of the previous write. `write` is not called.
        """
        self.wait()
        thread = threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=False)
        try:
            self._ended.clear()
            thread.start()
        except BaseException:
            # An interrupt, or too many threads.
            if not thread.is_alive():
                self._ended.set()
            raise

    def wait(self) -> None:
        """Wait until no write is in progress.

        Raises:
            BaseException: the error of the write, once. An exception that a signal raises in the meantime, such as
                KeyboardInterrupt, is raised after the write has ended.
        """
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
