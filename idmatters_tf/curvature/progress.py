"""A progress bar on standard error for work that takes more than a few seconds. The library prints nothing else."""

import tqdm

QUIET_SECONDS = 3.0


class Bar:
    """A context manager that shows how far some work is.

    Args:
        total: in units of work.
        title: what is being done.
        progress: True shows it at once; "auto" on a terminal and after three seconds; False never.
    """

    def __init__(self, total, title, progress="auto"):
        if progress not in (True, False, "auto"):
            raise ValueError(f"Argument `progress` must be True, False or 'auto'. Received: progress={progress!r}")
        automatic = progress == "auto"
        self._bar = tqdm.tqdm(
            total=total,
            desc=title,
            # None: where standard error is no terminal.
            disable=None if automatic else not progress,
            delay=QUIET_SECONDS if automatic else 0,
            leave=not automatic,
            dynamic_ncols=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._bar.close()

    def advance(self, units=1):
        """So much more is done."""
        self._bar.update(units)
