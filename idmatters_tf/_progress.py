"""A progress bar on standard error for work that takes more than a few seconds. The library prints nothing else."""

from types import TracebackType

import tqdm


class Bar:
    """A context manager that shows how far some work is, once it has taken a second.

    Args:
        total: units of work; None where it is not known in advance.
        title: what is being done.
        progress: whether anything is shown.
    """

    def __init__(self, total: int | None, title: str, progress: bool = False):
        if not isinstance(progress, bool):
            raise ValueError(f"Argument `progress` must be True or False. Received: progress={progress!r}")
        self._bar = tqdm.tqdm(total=total, desc=title, disable=not progress, delay=1.0, leave=False, dynamic_ncols=True)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def advance(self, units: int = 1) -> None:
        """Moves the bar on by so many units."""
        self._bar.update(units)
