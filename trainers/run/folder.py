"""Folder of a run: its lock, its settings, its metrics, and checks before a command resumes it.

config.json      the program, its settings, the data and all versions, written once
metrics.jsonl    see trainers.run.records
checkpoints/     see trainers.training.checkpoints; each checkpoint also contains the records up to its step
events/          TensorBoard
result.json      best and last error, written when the run is finished
convergence.png, model.keras, saved_model/; best/ with the exports of the checkpoint with the lowest test error
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from idmatters_tf import _environment
from idmatters_tf.checkpointing import (
    FolderInUse,
    FolderLock,
    FolderLost,
    check_held,
    checkpoint_path,
    describe_differences,
    list_steps,
    remove_listed,
    remove_unfinished,
    write_atomically,
)
from trainers.cli.arguments import RunError, UsageError
from trainers.cli.settings import make, setting
from trainers.cli.startup import print_message
from trainers.run.records import encode, read_objects

WHERE_DATA_ARE = ("data_dir", "download")
# Outputs of the training programs: files that are replaced one by one,
EXPORTED_FILES = ("model.keras", "best/model.keras")
RESULTS = ("result.json", "metrics.jsonl", "convergence.png", "preprocessing.keras", *EXPORTED_FILES)
# folders that are replaced as a whole,
EXPORTED_FOLDERS = ("saved_model", "best/saved_model")
# and folders to which files are added.
CHECKPOINTS, EVENTS = ("checkpoints", "checkpoints/best"), "events"
FOLDERS = ("best", *CHECKPOINTS, EVENTS, "events/train", "events/test")
# Files in a run's folder before the run has started.
_PREPARATIONS = (".lock", ".writing-")


@dataclasses.dataclass(frozen=True)
class DataDescription:
    """Description of the data in config.json.

    Attributes:
        origin: description of the source.
        image_shape: `(rows, cols, channels)`.
        classes: number of classes.
        digest: checksum.
        class_names: one name per class, or none.
    """

    origin: str = setting(help="source of the data")
    image_shape: tuple[int, ...] = setting(help="rows, columns and channels", at_least=1, at_most=16_384)
    classes: int = setting(help="number of classes", at_least=1, at_most=10_000_000)
    digest: str = setting(help="checksum of the data")
    class_names: tuple[str, ...] = setting((), help="the name of each class", metavar="NAME", may_be_empty=True)


@contextlib.contextmanager
def hold_lock(folder: str | os.PathLike) -> Iterator[None]:
    """Hold the lock of a run's folder inside the block, and create the folder if it does not exist.

    A folder created here that remains empty is removed again.

    Args:
        folder: folder of the run.

    Raises:
        UsageError: another process holds the lock, or the folder is not writable.
        RunError: raised by the block if the folder or its lock was removed in the meantime.
    """
    try:
        lock = FolderLock(folder)
    except FolderInUse as error:
        raise UsageError(f"--out {error}") from None
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--out {folder} cannot be written: {reason}. Use another folder.") from error
    try:
        yield
    except FolderLost as error:
        raise RunError(f"{error} Start again with another --out, or restore the folder first.") from error
    finally:
        lock.release()


class Run:
    """Folder of a run.

    Args:
        path: folder; nothing is written before `start`.
        writes: False for the tasks of a cluster other than the chief, which write nothing.
        overwrites: True if `start` discards an existing run.
    """

    def __init__(self, path: str | os.PathLike, writes: bool = True, overwrites: bool = False):
        self.path = pathlib.Path(path)
        self.writes, self.overwrites = writes, overwrites
        # Records of this session and of its first checkpoint, independent of later changes to the file.
        self.records: list[dict[str, Any]] = []
        self._metrics = None

    @property
    def config_path(self) -> pathlib.Path:
        return self.path / "config.json"

    @property
    def result_path(self) -> pathlib.Path:
        return self.path / "result.json"

    @property
    def checkpoints_path(self) -> pathlib.Path:
        return self.path / "checkpoints"

    def exists(self) -> bool:
        """Return True if a run has been started in this folder."""
        return self.config_path.is_file()

    def check_usable(self) -> None:
        """Raise UsageError if the folder contains something else."""
        if self.exists():
            return
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"--out must be a folder, but {self.path} is a file. Use another folder.")
        if self.path.is_dir() and not all(path.name.startswith(_PREPARATIONS) for path in self.path.iterdir()):
            raise UsageError(
                f"--out {self.path} contains something other than a run (there is no config.json). Use an empty or new "
                f"folder."
            )

    def config(self, program: str | None = None) -> dict[str, Any]:
        """Return the content of config.json.

        Args:
            program: name of the program that must have started the run; None: any program.

        Raises:
            UsageError: the file is missing or damaged, or another program started the run.
        """
        if not self.exists():
            raise UsageError(f"{self.path} is not a run: there is no config.json in it. Use the --out of a run.")
        try:
            config = json.loads(self.config_path.read_bytes())
            if not all(isinstance(dict(config).get(part), dict) for part in ("settings", "data")):
                raise ValueError("there are no settings or no data")
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self.config_path} is damaged ({error}). Correct it, or start the run again with another --out."
            ) from error
        if program not in (None, config.get("program")):
            raise UsageError(
                f"{self.path} is a run of {config.get('program') or 'another program'}, not of {program}. Use that "
                f"program, or another run."
            )
        return config

    def data(self) -> DataDescription:
        """Return the description of the data in config.json. Raises UsageError if it is damaged."""
        return make(DataDescription, self.config()["data"], f"{self.config_path}, data")

    def check_data(self, digest: str, origin: str) -> None:
        """Raise UsageError unless the run was trained on the data with a checksum.

        Args:
            digest: checksum of the data.
            origin: description of their source.
        """
        saved = self.config()["data"]
        if saved.get("digest") != digest:
            raise UsageError(
                f"{self.path} was trained on other data ({saved.get('origin')}) than found now ({origin}): the "
                f"checksums differ. The order of the images is part of the checksum."
            )

    def check_same(
        self,
        settings: Mapping[str, Any],
        saved: Mapping[str, Any] | None = None,
        free: Collection[str] = WHERE_DATA_ARE,
    ) -> None:
        """Raise a UsageError that names the settings that differ from the saved ones and may not.

        Args:
            settings: JSON values by name.
            saved: settings to compare with; None: those of config.json.
            free: names of the settings that may differ; by default, those of the location of the data.
        """
        before: Mapping[str, Any] = self.config()["settings"] if saved is None else saved
        differing = describe_differences(before, settings, [name for name in settings if name not in free])
        if differing:
            raise UsageError(
                f"{self.path} contains a run with other settings: {'; '.join(differing)}. Use the same settings to "
                f"resume it, another --out for a new run, or --overwrite to discard this one."
            )

    def start(
        self,
        settings: Mapping[str, Any],
        data: Mapping[str, Any],
        program: str | None = None,
        numerics: Mapping[str, Any] | None = None,
    ) -> None:
        """Write config.json for a new or overwritten run, or check that the data of an existing run are the same.

        The function warns if versions, threads or devices of an existing run differ, because results then differ by
        rounding.

        Args:
            settings: JSON values by name.
            data: description of the data set, with a `digest` and an `origin`.
            program: name of the program, such as "trainers.cifar".
            numerics: result of `idmatters_tf._environment.describe_numerics`.

        Raises:
            UsageError: the run was trained on other data.
        """
        if self.exists() and not self.overwrites:
            config = self.config()
            self.check_data(data["digest"], data["origin"])
            now = {"versions": _environment.collect_versions(), "numerics": numerics or {}}
            warning = _environment.describe_environment_change(config, now)
            if warning is not None and self.writes:
                print_message(warning)
            return
        if not self.writes:
            return
        check_held(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._discard()
        config = {"program": program, "settings": settings, "data": data, "versions": _environment.collect_versions()}
        if numerics is not None:
            config["numerics"] = numerics
        config["command"] = sys.argv
        write_atomically(self.config_path, json.dumps(config, indent=2) + "\n")

    def extend(self, settings: Mapping[str, Any]) -> None:
        """Record settings with more steps. The run is no longer finished.

        Args:
            settings: JSON values by name.
        """
        config = self.config()
        before = {"steps": config["settings"].get("steps"), "command": config.get("command")}
        config["extended"] = [*config.get("extended", ()), before]
        config |= {"settings": settings, "command": sys.argv}
        write_atomically(self.config_path, json.dumps(config, indent=2) + "\n")
        self.result_path.unlink(missing_ok=True)

    def is_empty(self) -> bool:
        """Return True if there is only the config, because the run was stopped before it had results."""
        return all(path == self.config_path or path.name.startswith(_PREPARATIONS) for path in self.path.iterdir())

    def remove_unfinished(self) -> None:
        """Remove incomplete files of killed processes, except for checkpoints, which `Checkpoints` cleans up."""
        for folder in (self.path, self.path / "best"):
            remove_unfinished(folder)

    def _discard(self):
        """Remove the results of a run and no other files."""
        for name in RESULTS:
            (self.path / name).unlink(missing_ok=True)
        for path in (*self._checkpoints(), *(self.path / name for name in EXPORTED_FOLDERS)):
            remove_listed(path)
        for path in (self.path / EVENTS).rglob("events.out.tfevents.*"):
            if path.is_file():
                path.unlink()
        folders = [path for path in (self.path / EVENTS).rglob("*") if path.is_dir()]
        for folder in (*reversed(folders), *(self.path / name for name in reversed(FOLDERS))):
            # Fails for a folder with other files.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _checkpoints(self):
        folders = [*(self.path / name for name in CHECKPOINTS), *self.checkpoints_path.glob("worker-*")]
        return [checkpoint_path(folder, step) for folder in folders for step in list_steps(folder)]

    def metrics(self) -> list[dict[str, Any]]:
        """Return the complete records of metrics.jsonl."""
        return read_objects(self.path / "metrics.jsonl")

    def restore_metrics(self, saved: list[dict[str, Any]]) -> None:
        """Replace the records by those saved with the checkpoint from which the run resumes."""
        self.records = saved
        if self.writes:
            write_atomically(self.path / "metrics.jsonl", encode(saved))

    def record(self, **values: Any) -> None:
        """Append a record to metrics.jsonl. Raises FolderLost if the folder no longer exists."""
        if not self.writes:
            return
        check_held(self.path)
        if self._metrics is None:
            self._metrics = open(self.path / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - kept open
        self.records.append(values)
        self._metrics.write(encode([values]))
        self._metrics.flush()

    def sync_metrics(self) -> None:
        """Flush the records so far to the disk."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def result(self) -> dict[str, Any] | None:
        """Return the final result, or None if the run is not finished. Raises UsageError if the file is damaged."""
        if not self.result_path.is_file():
            return None
        try:
            return dict(json.loads(self.result_path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{self.result_path} is damaged ({error}). Remove it, and run the same command to write it again."
            ) from error

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json, which marks the run as finished."""
        write_atomically(self.result_path, json.dumps(result, indent=2) + "\n")
