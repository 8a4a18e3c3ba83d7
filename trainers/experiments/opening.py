"""Run settings of the programs of experiments, and opening of their folders."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, setting
from trainers.cli.startup import print_lines
from trainers.run.folder import Run
from trainers.run.lock import hold_lock

# Options that do not change the results.
_NOT_SAVED = ("out", "overwrite", "format", "debug")


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Folder of the results and format of the figures."""

    out: str = setting(help="folder of the results", metavar="DIR")
    overwrite: bool = setting(False, help="discard the run in --out, if there is one, and start a new one")
    format: Literal["png", "svg", "pdf"] = setting("png", help="format of the figures")
    debug: bool = setting(False, help="show tracebacks")


def settings_to_save(settings: Any) -> dict[str, Any]:
    """Return the settings that determine the results, as JSON values by name."""
    return {name: value for name, value in as_dict(settings).items() if name not in _NOT_SAVED}


@contextlib.contextmanager
def open_run(folder: str | os.PathLike, saved: Mapping[str, Any], overwrite: bool = False) -> Iterator[Run | None]:
    """Open a new run, or one that was started with the same settings, and lock its folder.

    A run that was stopped before it had any results counts as new.

    Args:
        folder: folder of the run.
        saved: settings of the run.
        overwrite: True to discard an existing run.

    Yields:
        The run, or None after a message if it is finished.

    Raises:
        UsageError: the folder contains something else or a run with other settings, is not writable, or is in use by
            another process.
    """
    run = Run(folder, overwrites=overwrite)
    run.check_usable()
    with hold_lock(run.path):
        yield None if _is_finished(run, saved, overwrite) else run


def _is_finished(run: Run, saved: Mapping[str, Any], overwrite: bool) -> bool:
    if run.exists() and overwrite:
        program = run.config().get("program")
        if program is not None:
            raise UsageError(
                f"{run.path} is a run of {program}, which --overwrite does not discard. Use another --out."
            )
    elif run.exists() and run.is_empty():
        run.overwrites = True
    elif run.exists():
        run.check_same(saved)
        result = run.result()
        if result is not None:
            verdicts: Sequence[str] = result.get("verdicts") or ()
            print_lines(
                " ".join([f"{run.path} is finished.", *verdicts, "Use another --out for a new run, or --overwrite."])
            )
            return True
    return False
