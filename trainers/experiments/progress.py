"""Progress bars as a progress callback."""

from idmatters_tf._progress import Progress


class Bars:
    """A progress callback that shows a bar for each stage of the work; a context manager.

    Args:
        unit: the name of the pieces of work.
    """

    def __init__(self, unit: str = "pieces"):
        self._unit = unit
        self._bar: Progress | None = None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._bar is None or self._bar.title != stage:
            self._close()
            self._bar = Progress(total, stage, unit=self._unit, delay=0, leave=True)
        self._bar.advance(done - self._bar.done)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
