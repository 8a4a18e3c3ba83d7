"""Progress for people: a bar on a terminal, a line now and then in a log file."""

import sys
import time

import tqdm


class Progress:
    """Shows how far something is.

    Args:
        total, done: in units.
        title: what is being done.
        unit: of the count.
        line_seconds: without a terminal, how often a line is printed.
        quiet: shows nothing, for all but one of several processes.
    """

    def __init__(self, total, done=0, title="", unit="steps", line_seconds=10.0, leave=True, quiet=False):
        self.total, self.done, self.title, self.unit = total, done, title, unit
        self._line_seconds = line_seconds
        self._started, self._started_at, self._last_line = time.monotonic(), done, time.monotonic()
        self._bar, self._quiet = None, quiet
        if sys.stderr.isatty() and not quiet:
            self._bar = tqdm.tqdm(
                total=total, initial=done, desc=title, unit=f" {unit}", dynamic_ncols=True, leave=leave
            )

    def advance(self, count=1):
        """One more unit is done, or several."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)

    def show(self, text):
        """Shows measurements beside the bar, or on the next line due."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
        elif time.monotonic() - self._last_line >= self._line_seconds and not self._quiet:
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

    def say(self, text):
        """Prints a line without disturbing the bar."""
        if not self._quiet:
            tqdm.tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def close(self):
        """Leaves the bar as it is and goes to the next line."""
        if self._bar is not None:
            self._bar.close()
