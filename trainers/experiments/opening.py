"""How a program of experiments opens its run."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict
from trainers.cli.startup import say, tell
from trainers.run.folder import Run
from trainers.run.lock import locked

# Say where results go and how they look, not what they are.
_NOT_SAVED = ("out", "overwrite", "format", "debug")


def settings_to_save(settings: Any, *not_saved: str) -> dict[str, Any]:
    """The settings that decide the results, as JSON values by name.

    Args:
        settings: a dataclass of settings.
        not_saved: names of others than --out, --overwrite, --format and --debug that do not.
    """
    left_out = {*_NOT_SAVED, *not_saved}
    return {name: value for name, value in as_dict(settings).items() if name not in left_out}


@contextlib.contextmanager
def open_run(folder: str | os.PathLike, saved: Mapping[str, Any], overwrite: bool = False) -> Iterator[Run | None]:
    """Yields the run of a folder, new or begun with the same settings; None, once that is said, where it is finished.

    For the length of the block no other process can open it. A run that was stopped before it had any results counts as
    new.

    Args:
        folder: of the run.
        saved: its settings.
        overwrite: whether a run that is there is to be discarded.

    Raises:
        PathOccupied: something stands where a result is to be written; nothing is touched.
        UsageError: the folder holds something else or a run with other settings, cannot be written to, or another
            process has it open.
    """
    run = Run(folder, overwrites=overwrite)
    run.check_usable()
    run.check_outputs()
    with locked(run.path, say):
        yield None if _is_finished(run, saved, overwrite) else run


def _is_finished(run: Run, saved: Mapping[str, Any], overwrite: bool) -> bool:
    if run.exists() and overwrite:
        program = run.config().get("program")
        if program is not None:
            raise UsageError(f"{run.path} is a run of {program}, which --overwrite does not discard here.")
    elif run.exists() and run.holds_nothing_yet():
        run.overwrites = True
    elif run.exists():
        run.check_same(saved)
        result = run.result()
        if result is not None:
            verdicts = result.get("verdicts") or ()
            tell(" ".join([f"{run.path} is finished.", *verdicts, "Give another --out for a new run, or --overwrite."]))
            return True
    return False
