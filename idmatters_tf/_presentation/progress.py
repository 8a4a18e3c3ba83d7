"""Progress on standard error: a bar on a terminal or in a notebook, periodic lines in a log file."""

import contextlib
import sys
import time

import tqdm

# Time between two lines of a log file.
_LINE_SECONDS = 10.0


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Context manager that shows the progress of some work on standard error.

    Args:
        total: number of units, or None if unknown.
        title: name of the work.
        progress: if False, nothing is shown, as for all but one of several processes.
        unit: name of the units.
        done: number of units completed before.
        delay: seconds before the bar appears, so that short work shows none.
        leave: if True, the bar remains on the terminal at the end.

    Raises:
        ValueError: `progress` is not a boolean.
    """

    def __init__(
        self,
        total: int | None,
        title: str,
        progress: bool = True,
        *,
        unit: str = "steps",
        done: int = 0,
        delay: float = 1.0,
        leave: bool = False,
    ):
        if not isinstance(progress, bool):
            raise ValueError(f"Argument `progress` must be True or False. Received: progress={progress!r}")
        self.total = total
        self.title = title
        self.done = done
        self._progress = progress
        self._unit = unit
        self._started_at = done
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if progress and (sys.stderr.isatty() or "ipykernel" in sys.modules):
            options = {"initial": done, "unit": f" {unit}", "delay": delay, "leave": leave}
            self._bar = tqdm.tqdm(total=total, desc=title, dynamic_ncols=True, **options)

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, units: int = 1, text: str | None = "") -> None:
        """Count completed units.

        Args:
            units: number of units.
            text: measurements to show beside the bar or in the next line. If None, the bar keeps its text and no line
                is printed.
        """
        self.done += units
        if self._bar is not None:
            if text is not None:
                self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(units)
        elif self._progress and text is not None and time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            done = f"{self.done} {self._unit}" if self.total is None else f"{self.done}/{self.total}"
            line = " ".join(filter(None, (self.title, done, text)))
            print(f"{line}{self._time_left()}", file=sys.stderr, flush=True)

    def _time_left(self):
        done = self.done - self._started_at
        if self.total is None or not done:
            return ""
        seconds = int((time.monotonic() - self._started) / done * (self.total - self.done))
        return f", {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"

    def say(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        if self._progress:
            tqdm.tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def close(self) -> None:
        """Leave or remove the bar and go to the next line."""
        if self._bar is not None:
            self._bar.close()
