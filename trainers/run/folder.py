"""Folder of a run: its lock, its settings, its metrics, and checks before a command resumes it.

config.json      the program, its settings, the data and all versions
metrics.jsonl    records, {"kind": ..., "step": ..., ...}, of kinds "train", "test" and "diverged"
checkpoints/     of `ExactResume`, with the identity of the run and the records up to its step
events/          TensorBoard
result.json      best and last error, written when the run is finished
convergence.png, model.keras, saved_model/
"""

import contextlib
import csv
import dataclasses
import io
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from idmatters_tf import _environment
from idmatters_tf._arguments import as_utf8, describe_differences
from idmatters_tf.checkpointing import (
    FolderInUse,
    FolderLock,
    FolderLost,
    check_held,
    remove,
    remove_unfinished,
    write_atomically,
)
from trainers.cli.arguments import RunError, UsageError

# An object in a JSON file of a program.
JsonObject: TypeAlias = dict[str, Any]

# Marks of runs and comparisons.
RUN, REPORT = "config.json", "report.json"
WHERE_DATA_ARE = ("data_dir", "download")
# Remedy for a run with other settings.
SAME = "Use the same settings to resume it, or another --out for a new run."
# Outputs of a run, besides its config.json and the tables of experiments.
FILES = ("result.json", "metrics.jsonl", "convergence.png", "preprocessing.keras", "model.keras")
FOLDERS = ("saved_model", "checkpoints", "events")
# Types of the fields that programs read from JSON files.
CONFIG: dict[str, type] = {"settings": dict, "data": dict}
TRAINED: dict[str, type] = dict.fromkeys(("steps", "best_step", "parameters"), int)
TRAINED |= dict.fromkeys(("best_error", "last_error", "last_loss", "seconds"), float)


@dataclasses.dataclass(frozen=True)
class DataDescription:
    """Description of the data in config.json."""

    origin: str
    image_shape: Sequence[int]  # rows, columns and channels
    classes: int
    digest: str
    class_names: Sequence[str]


@contextlib.contextmanager
def hold_lock(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a run's folder inside the block, and create the folder if it does not exist.

    A folder created here that remains empty is removed again.

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
        # Incomplete files of killed processes, except for checkpoints.
        remove_unfinished(pathlib.Path(folder))
        yield
    except FolderLost as error:
        raise RunError(f"{error} Start again with another --out, or restore the folder first.") from error
    finally:
        lock.release()


class Run:
    """Folder of a run, to which nothing is written before `start`.

    Attributes:
        writes: False for the tasks of a cluster other than the chief, which write nothing.
        records: records of this session and of its first checkpoint, independent of the file.
    """

    def __init__(self, path: str | os.PathLike[str], writes: bool = True):
        self.path = pathlib.Path(path)
        self.writes = writes
        self.records: list[JsonObject] = []

    @property
    def config_path(self) -> pathlib.Path:
        return self.path / RUN

    @property
    def result_path(self) -> pathlib.Path:
        return self.path / "result.json"

    @property
    def checkpoints_path(self) -> pathlib.Path:
        return self.path / "checkpoints"

    def exists(self) -> bool:
        """Return True if a run has been started in this folder."""
        # False also for names that are too long.
        return os.path.isfile(self.config_path)

    def check_usable(self) -> None:
        """Raise UsageError if the folder is not that of a run."""
        if not self.exists():
            check_output(self.path, RUN)

    def config(self, program: str | None = None) -> JsonObject:
        """Return the content of config.json.

        Raises:
            UsageError: the file is missing or damaged, or another program than `program` started the run.
        """
        if not self.exists():
            raise UsageError(f"{self.path} is not a run: there is no config.json in it. Use the --out of a run.")
        remedy = "Correct it, or start the run again with another --out."
        config = read_object(self.config_path, remedy, CONFIG)
        if program not in (None, config.get("program")):
            raise UsageError(
                f"{self.path} is a run of {config.get('program') or 'another program'}, not of {program}. Use that "
                f"program, or another run."
            )
        return config

    def data(self) -> DataDescription:
        """Return the description of the data in config.json. Raises UsageError if it is damaged."""
        try:
            return DataDescription(**self.config()["data"])
        except TypeError as error:
            raise UsageError(f"{self.config_path}, data: {error}. Start the run again with another --out.") from error

    def check_data(self, digest: str, origin: str) -> None:
        """Raise UsageError unless the run was trained on the data with this checksum, from the source `origin`."""
        saved = self.config()["data"]
        if saved.get("digest") != digest:
            raise UsageError(
                f"{self.path} was trained on other data ({saved.get('origin')}) than found now ({origin}): the "
                f"checksums differ. The order of the images is part of the checksum."
            )

    def check_same(self, settings: Mapping[str, object]) -> None:
        """Raise a UsageError that names the settings that differ from those of config.json."""
        differing = describe_differences(self.config()["settings"], settings, settings)
        if differing:
            raise UsageError(f"{self.path} contains a run with other settings: {'; '.join(differing)}. {SAME}")

    def start(
        self,
        settings: Mapping[str, object],
        data: Mapping[str, object],
        program: str | None = None,
        numerics: Mapping[str, object] | None = None,
    ) -> None:
        """Remove the outputs of an earlier run, and write config.json.

        All arguments are JSON values; `data` has a `digest` and an `origin`.
        """
        if not self.writes:
            return
        check_held(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        for name in FILES + FOLDERS:
            remove(self.path / name)
        config = {"program": program, "settings": settings, "data": data, "versions": _environment.collect_versions()}
        config |= {} if numerics is None else {"numerics": numerics}
        self._write("config.json", config | {"command": sys.argv})

    def _write(self, name: str, value: Mapping[str, object]) -> None:
        write_atomically(self.path / name, json.dumps(value, indent=2) + "\n")

    def update(self, settings: Mapping[str, object]) -> None:
        """Record other settings of a run that continues, such as intervals."""
        config = self.config()
        if config["settings"] != settings:
            self._write("config.json", config | {"settings": settings, "command": sys.argv})

    def metrics(self) -> list[JsonObject]:
        """Return the records of metrics.jsonl, without a last line that a crash has truncated; none without a file."""
        path = self.path / "metrics.jsonl"
        return [record for record in read_lines(path) if {"kind", "step"} <= record.keys()] if path.is_file() else []

    def restore_metrics(self, saved: list[JsonObject]) -> None:
        """Replace the records by those saved with the checkpoint from which the run resumes."""
        self.records = saved
        if self.writes:
            write_atomically(self.path / "metrics.jsonl", encode(saved))

    def record(self, **values: object) -> None:
        """Append a record to metrics.jsonl. Raises FolderLost if the folder no longer exists."""
        self.records.append(values)
        if self.writes:
            check_held(self.path)
            with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(encode([values]))

    def result(self, fields: Mapping[str, type] = TRAINED) -> JsonObject | None:
        """Return the final result, or None if the run is not finished.

        Raises:
            UsageError: the file is damaged, or has no field of one of these names and types.
        """
        if not os.path.isfile(self.result_path):
            return None
        remedy = "Remove it, and run the same command to write it again."
        return read_object(self.result_path, remedy, fields)

    def finish(self, result: Mapping[str, object]) -> None:
        """Write result.json, which marks the run as finished."""
        self._write("result.json", result)


def summarize(records: list[JsonObject], steps: int, parameters: int) -> JsonObject:
    """Return the content of result.json of a training program."""
    # The evaluation of the initial weights is not a result.
    tests = [record for record in records if record["kind"] == "test" and record["step"]]
    best, last = min(tests, key=lambda record: record["error"]), tests[-1]
    result = {
        "steps": steps,
        "best_error": best["error"],
        "best_step": best["step"],
        "last_error": last["error"],
        "last_loss": last["loss"],
        "parameters": parameters,
        "seconds": records[-1]["seconds"],
    }
    return {**result, "last_top5_error": last["top5_error"]} if "top5_error" in last else result


def describe_result(result: JsonObject) -> str:
    """Return a result as a sentence."""
    top5 = f", top-5 {100 * result['last_top5_error']:.2f} %" if "last_top5_error" in result else ""
    return (
        f"test error: best {100 * result['best_error']:.2f} % (step {result['best_step']}), "
        f"last {100 * result['last_error']:.2f} %{top5} (step {result['steps']}), "
        f"after {result['seconds'] / 60:.1f} minutes."
    )


def check_output(folder: str | os.PathLike[str], mark: str) -> None:
    """Raise UsageError if a program must not write to the folder of --out.

    A program writes only into a folder that it creates, that is empty except for hidden files, or that contains its
    mark, a JSON file of the program. Inside such a folder it replaces its own files and folders by renaming.
    """
    if as_utf8(str(folder)) != str(folder):
        raise UsageError(f"--out must be UTF-8, as TensorFlow requires. Received: {as_utf8(str(folder))}")
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"--out must be a folder, but {folder} is a file. Use another folder.")
    if list_names(folder) and not _is_mark(pathlib.Path(folder, mark)):
        raise UsageError(
            f"--out {folder} contains something other than files of this program (there is no {mark} of it). Use an "
            f"empty or new folder."
        )


def list_names(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names in a folder without those of hidden files, such as .lock; none if there is no folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [name for name in names if not name.startswith(".")]


def write_mark(folder: str | os.PathLike[str], mark: str, program: str, **values: object) -> None:
    """Create a folder with the mark of a program, which contains its name and the values."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    write_atomically(pathlib.Path(folder, mark), json.dumps({"program": program, **values}, indent=2) + "\n")


def _is_mark(path: pathlib.Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "program" in content


def encode(records: Iterable[Mapping[str, object]]) -> str:
    """Return the records as text, one JSON object per line."""
    return "".join(json.dumps(record) + "\n" for record in records)


def read_object(path: pathlib.Path, remedy: str = "", fields: Mapping[str, type] | None = None) -> JsonObject:
    """Return the JSON object in a file, which has fields of these names and types.

    Raises:
        UsageError: the file is damaged; the message ends with the remedy.
    """
    try:
        value = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}). {remedy}") from error
    fields = fields or {}
    invalid = next((name for name in fields if not isinstance(value.get(name), fields[name])), None)
    if invalid is not None:
        raise UsageError(f"{path} is damaged (there is no valid {invalid!r}). {remedy}")
    return value


def read_lines(path: pathlib.Path) -> list[JsonObject]:
    """Return the JSON objects in the lines of a file. Damaged lines are ignored."""
    values = []
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            values.append(json.loads(line))
    return [value for value in values if isinstance(value, dict)]


def write_csv(path: pathlib.Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with the same keys atomically as a CSV file. None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
