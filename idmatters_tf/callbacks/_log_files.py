"""Files of `CSVLogger`, whose rows belong to the state of a run."""

import pathlib

import keras


class LogFile:
    """File of a `CSVLogger`.

    Without `append`, the file belongs to the run. With `append`, other runs may have added rows after the checkpoint,
    which are kept. Rows of this run after the checkpoint are written again with the same values, and the second of two
    equal rows is removed.
    """

    def __init__(self, logger: keras.callbacks.CSVLogger):
        self._logger = logger
        # Absolute, since the program may change the current folder during `fit`.
        self._path = pathlib.Path(logger.filename).absolute()
        # Length of the text of the first checkpoint that was restored. Later rows may be repeated.
        self._length: int | None = None

    def read(self) -> tuple[str, int | None] | None:
        """Return the content of the file with this length, or None if the file is not open."""
        if self._logger.csv_file is None or self._logger.csv_file.closed:
            return None
        self._logger.csv_file.flush()
        # Reading bytes preserves the line ends \r\n.
        text = self._path.read_bytes().decode()
        if self._length is not None:
            rows = text[self._length :].splitlines(keepends=True)
            content = "".join([text[: self._length], *dict.fromkeys(rows)])
            if content != text:
                self._write(content)
            return content, self._length
        return text, None

    def restore(self, state: tuple[str, int | None] | None) -> None:
        """Restore the result of `read`. The logger's `on_train_begin` may have created a new file."""
        if state is None:
            return
        text, length = state
        if not self._logger.append:
            self._write(text)
        elif self._path.read_bytes().startswith(text.encode()):
            self._length = len(text) if length is None else length

    def _write(self, text):
        if self._logger.csv_file is not None:
            self._logger.csv_file.close()
        self._path.write_bytes(text.encode())
        self._logger.csv_file = open(self._path, "a")  # noqa: SIM115 - closed by the logger
        self._logger.writer, self._logger.append_header = None, not text
