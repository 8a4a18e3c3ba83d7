"""Progress for people: a bar on a terminal, a line now and then in a log file."""

import sys
import time

import tqdm


class Progress:
    """Shows how far some work is, on standard error; a context manager.

    Args:
        total: in units of work.
        title: what is being done.
        progress: False shows nothing, as for all but one of several processes.
        done: how much is done already.
        unit: the name of the units.
        line_seconds: without a terminal, how often a line is printed.
        leave: whether the bar stays on the terminal when the work is done.
    """

    def __init__(
        self,
        total: int,
        title: str,
        progress: bool = True,
        *,
        done: int = 0,
        unit: str = "steps",
        line_seconds: float = 10.0,
        leave: bool = True,
    ):
        self.total, self.done, self.title, self.unit = total, done, title, unit
        self._progress, self._line_seconds = progress, line_seconds
        self._started, self._started_at, self._last_line = time.monotonic(), done, time.monotonic()
        self._bar = None
        if progress and sys.stderr.isatty():
            self._bar = tqdm.tqdm(
                total=total, initial=done, desc=title, unit=f" {unit}", dynamic_ncols=True, leave=leave
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, count: int = 1) -> None:
        """Counts units that are done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)

    def show(self, text: str = "") -> None:
        """Shows measurements beside the bar, or on the next line due."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
        elif self._progress and time.monotonic() - self._last_line >= self._line_seconds:
            self._last_line = time.monotonic()
            print(
                f"{self.title} {self.done}/{self.total} {text}, {self._time_left()} left", file=sys.stderr, flush=True
            )

    def _time_left(self):
        done = self.done - self._started_at
        if not done:
            return "?"
        seconds = int((time.monotonic() - self._started) / done * (self.total - self.done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def say(self, text: str) -> None:
        """Prints a line without disturbing the bar."""
        if self._progress:
            tqdm.tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def close(self) -> None:
        """Leaves the bar as it is and goes to the next line."""
        if self._bar is not None:
            self._bar.close()
