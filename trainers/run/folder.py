"""The folder of a run: its settings, its metrics, and whether a command may go on with it.

config.json      the program, its settings, the data and all versions, written once
metrics.jsonl    see trainers.run.records
checkpoints/     see trainers.training.checkpoints; each holds the records up to its step as well
events/          TensorBoard
result.json      best and last error, written at the end: its presence says that the run is finished
convergence.png, model.keras, saved_model/; best/ with the exports of the checkpoint with the lowest test error
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from idmatters_tf import _environment
from idmatters_tf._arguments import abbreviate
from idmatters_tf._checkpointing import checkpoint_path, describe_newest, saved_steps
from idmatters_tf._locking import check_held
from idmatters_tf._ownership import check_folder, check_replaceable, open_regular, remove_own
from idmatters_tf._replacing import remove_unfinished, write_atomically
from idmatters_tf._run_description import differences, environment_warning
from trainers.cli.arguments import UsageError
from trainers.cli.reading import read_json
from trainers.cli.settings import make, setting
from trainers.cli.startup import say, say_nothing
from trainers.cli.text import as_text
from trainers.run.contents import check_config, check_result
from trainers.run.records import encode, read

WHERE_DATA_ARE = ("data_dir", "download")
# Everything that the training programs write in a run: files that are replaced one by one,
EXPORTED_FILES = ("model.keras", "best/model.keras")
RESULTS = ("result.json", "metrics.jsonl", "preprocessing.keras", *EXPORTED_FILES)
RESULTS += ("convergence.png", "convergence.svg", "convergence.pdf")
FILES = ("config.json", *RESULTS, ".lock", ".cluster-token")
# folders that are replaced as a whole,
EXPORTED_FOLDERS = ("saved_model", "best/saved_model")
# and folders to which files are added.
CHECKPOINTS, EVENTS = ("checkpoints", "checkpoints/best"), "events"
FOLDERS = ("best", *CHECKPOINTS, EVENTS, "events/train", "events/test")
# What is in a run's folder before the run has begun.
_PREPARATIONS = (".cluster-token", ".lock", ".writing-")


@dataclasses.dataclass(frozen=True)
class DataDescription:
    """What config.json says of the data.

    Attributes:
        origin: where they came from, in words.
        image_shape: `(rows, cols, channels)`.
        classes: the number of classes.
        digest: a checksum.
        class_names: one for each class, or none.
    """

    origin: str = setting(help="where the data came from")
    image_shape: tuple[int, ...] = setting(help="rows, columns and channels", at_least=1, at_most=16_384)
    classes: int = setting(help="number of classes", at_least=1, at_most=10_000_000)
    digest: str = setting(help="checksum of the data")
    class_names: tuple[str, ...] = setting((), help="the name of each class", metavar="NAME", may_be_empty=True)

    def __post_init__(self) -> None:
        if len(self.image_shape) != 3:
            raise UsageError(
                f"image_shape: expected rows, columns and channels, received {abbreviate(self.image_shape)}"
            )
        if len(self.class_names) > self.classes:
            raise UsageError(f"class_names: expected at most {self.classes} names, received {len(self.class_names)}")

    @property
    def output_names(self) -> tuple[str, ...]:
        """A name for each output of the network, also for those beyond the classes of the data; or none at all."""
        extra = range(len(self.class_names), self.classes)
        return (*self.class_names, *(f"class {number}" for number in extra)) if self.class_names else ()


def check_exports(folder: pathlib.Path) -> None:
    """Raise PathOccupied if something in a folder stands where networks are exported to; nothing is touched."""
    check_folder(folder / "best")
    for name in EXPORTED_FILES:
        check_replaceable(folder / name)
    for name in EXPORTED_FOLDERS:
        check_replaceable(folder / name, folder=True)


class Run:
    """A run's folder.

    Args:
        path: the folder; nothing is written before `start`.
        writes: False in the tasks of a cluster that leave the writing to the chief.
        overwrites: whether `start` discards a run that is there.
    """

    def __init__(self, path: str | os.PathLike, writes: bool = True, overwrites: bool = False):
        self.path = pathlib.Path(path)
        self.writes, self.overwrites = writes, overwrites
        # Those of this session and of the checkpoint that it began with: what happens to the file does not matter.
        self.records: list[dict[str, Any]] = []
        self._metrics = None
        self._reported = False

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
        """Whether a run has been started here."""
        return self.config_path.is_file()

    def newest_checkpoint_sentence(self) -> str:
        """Says which checkpoint is the newest; imports nothing, for it is called when other threads may be stuck."""
        return describe_newest(self.checkpoints_path)

    def check_usable(self) -> None:
        """Raises UsageError where the folder holds something else, or cannot be written to."""
        if self.exists():
            return
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"--out must be a folder, but {self.path} is a file. Name another one.")
        if self.path.is_dir() and not all(path.name.startswith(_PREPARATIONS) for path in self.path.iterdir()):
            raise UsageError(
                f"--out {self.path} holds something other than a run (there is no config.json). Name an empty or new "
                f"folder, so that nothing of yours is lost."
            )
        existing = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"--out {self.path} cannot be written: no permission in {existing}. Name another folder.")

    def check_outputs(self, names: Iterable[str] = ()) -> None:
        """Raise PathOccupied if something in the folder stands where a program writes; nothing is touched.

        A file may stand only where a file is written, and a folder only where a folder is. Links are never followed.

        Args:
            names: of files that the program writes besides those of every run.
        """
        if not self.writes:
            # The chief may be writing the others, and this one is read.
            check_replaceable(self.path / ".cluster-token")
            return
        for name in FOLDERS:
            check_folder(self.path / name, links=name != EVENTS)
        for name in (*FILES, *names):
            check_replaceable(self.path / name)
        check_exports(self.path)
        if self.overwrites:
            for path in self._checkpoints():
                check_replaceable(path, folder=True)

    def config(self, program: str | None = None) -> dict[str, Any]:
        """The content of config.json.

        Args:
            program: the name of the program that must have started the run; None: any.

        Raises:
            UsageError: there is none, it is damaged, or it is another program's.
        """
        if not self.exists():
            raise UsageError(f"{self.path} is not a run: there is no config.json in it. Name the --out of a run.")
        try:
            config = read_json(self.config_path)
            check_config(config)
        except ValueError as error:
            raise UsageError(
                f"{self.config_path} is damaged ({error}). Correct it, or start the run again with another --out."
            ) from error
        if program not in (None, config.get("program")):
            raise UsageError(
                f"{self.path} is a run of {config.get('program') or 'another program'}, not of {program}. Give the "
                f"command to that program, or name another run."
            )
        return config

    def data(self, config: Mapping[str, Any] | None = None) -> DataDescription:
        """What config.json says of the data. Raises UsageError where that is not what it should be.

        Args:
            config: its content where that has been read already.
        """
        described = (self.config() if config is None else config).get("data")
        return make(DataDescription, described or {}, f"{self.config_path}, data")

    def check_same(
        self,
        settings: Mapping[str, Any],
        saved: Mapping[str, Any] | None = None,
        free: Collection[str] = WHERE_DATA_ARE,
    ) -> None:
        """Raises UsageError, naming them, where settings that matter differ from the saved ones.

        Args:
            settings: JSON values by name.
            saved: those to compare with; None: those of config.json.
            free: names of the settings that may differ; by default, those that say where the data are.
        """
        before: Mapping[str, Any] = self.config()["settings"] if saved is None else saved
        differing = differences(before, settings, [name for name in settings if name not in free])
        if differing:
            raise UsageError(
                f"{self.path} holds a run with other settings: {'; '.join(differing)}. Use the same settings to go on "
                f"with it, another --out for a new run, or --overwrite to discard this one."
            )

    def start(
        self,
        settings: Mapping[str, Any],
        data: Mapping[str, Any],
        program: str | None = None,
        numerics: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes config.json for a new run, in place of one that is overwritten; for an old one checks that the data
        are the same.

        Says so where the versions, threads or devices of an old run were others: results then differ by rounding.

        Args:
            settings: JSON values by name.
            data: describes the data set, with a `digest` and an `origin`.
            program: the name of the program, such as "trainers.cifar".
            numerics: what `idmatters_tf._environment.numerics` returns.

        Raises:
            UsageError: the folder cannot be made, or the run was trained on other data.
        """
        if self.exists() and not self.overwrites:
            config = self.config()
            saved = config.get("data") or {}
            if saved.get("digest") != data["digest"]:
                raise UsageError(
                    f"{self.path} was trained on other data ({saved.get('origin')}) than found now ({data['origin']}): "
                    f"the checksums differ. The same images in another order count as other data."
                )
            now = {"versions": _environment.versions(), "numerics": numerics or {}}
            warning = environment_warning(config, now)
            if warning is not None and self.writes:
                say(warning)
            return
        if not self.writes:
            return
        check_held(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--out {self.path} cannot be written: {reason}. Name another folder.") from error
        self.check_outputs()
        self._discard()
        config = {"program": program, "settings": settings, "data": data, "versions": _environment.versions()}
        if numerics is not None:
            config["numerics"] = numerics
        config["command"] = _command()
        write_atomically(self.config_path, json.dumps(config, indent=2) + "\n")

    def extend(self, settings: Mapping[str, Any]) -> None:
        """Gives the run more steps: it is no longer finished.

        Args:
            settings: JSON values by name.
        """
        config = self.config()
        before = {"steps": config["settings"].get("steps"), "command": config.get("command")}
        config["extended"] = [*config.get("extended", ()), before]
        config |= {"settings": settings, "command": _command()}
        write_atomically(self.config_path, json.dumps(config, indent=2) + "\n")
        self.result_path.unlink(missing_ok=True)

    def holds_nothing_yet(self) -> bool:
        """Whether there is nothing but the config: a run that was stopped before it had any results."""
        return all(path == self.config_path or path.name.startswith(_PREPARATIONS) for path in self.path.iterdir())

    def remove_unfinished(self) -> None:
        """Removes what processes killed while writing have left; of checkpoints, `Checkpoints` does so."""
        for folder in (self.path, self.path / "best"):
            remove_unfinished(folder)

    def _discard(self):
        """Removes the results of a run, and nothing else; see `check_outputs`."""
        for name in RESULTS:
            (self.path / name).unlink(missing_ok=True)
        for path in (*self._checkpoints(), *(self.path / name for name in EXPORTED_FOLDERS)):
            remove_own(path)
        for path in (self.path / EVENTS).rglob("events.out.tfevents.*"):
            if path.is_file():
                path.unlink()
        folders = [path for path in (self.path / EVENTS).rglob("*") if path.is_dir()]
        for folder in (*reversed(folders), *(self.path / name for name in reversed(FOLDERS))):
            # Fails where it holds something else.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _checkpoints(self):
        folders = [self.path / name for name in CHECKPOINTS]
        return [checkpoint_path(folder, step) for folder in folders for step in saved_steps(folder)]

    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl that are whole; the first call says which are not."""
        report = say_nothing if self._reported else say
        self._reported = True
        return read(self.path / "metrics.jsonl", report)

    def restore_metrics(self, step: int, saved: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """Goes back to the records up to a step, those after which a resumed run writes again. Returns them.

        Says so where records were lost, or have come back.

        Args:
            step: of the checkpoint that the run goes on from; 0: from the beginning.
            saved: the records that were saved with the checkpoint; None: none were, and metrics.jsonl has to do.
        """
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        path = self.path / "metrics.jsonl"
        found = [record for record in read(path, say if saved is None else say_nothing) if 0 < step >= record["step"]]
        if saved is not None and found != saved and self.writes:
            say(f"{path} differs from the records in the checkpoint of step {step}: it is written again from them.")
        if saved is None and step and all(record["step"] != step for record in found):
            last = max((record["step"] for record in found), default=0)
            say(
                f"{path} ends at step {last}: the records up to step {step} are lost, and the best error is that of "
                f"what is left."
            )
        self.records = found if saved is None else saved
        if self.writes:
            write_atomically(path, encode(self.records))
        return self.records

    def record(self, **values: Any) -> None:
        """Appends a record to metrics.jsonl. Raises FolderLost where the folder is no longer there."""
        if not self.writes:
            return
        check_held(self.path)
        if self._metrics is None:
            descriptor = open_regular(self.path / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._metrics = open(descriptor, "a", encoding="utf-8")  # noqa: SIM115 - kept open
        self.records.append(values)
        self._metrics.write(encode([values]))
        self._metrics.flush()

    def sync_metrics(self) -> None:
        """Has the records so far written to the disk itself."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def result(self, numbers: Sequence[str] = ()) -> dict[str, Any] | None:
        """The final result, or None while the run is not finished.

        Args:
            numbers: what it must name, each a number.

        Raises:
            UsageError: it is damaged.
        """
        if not self.result_path.is_file():
            return None
        try:
            result = read_json(self.result_path)
            check_result(result, numbers)
        except ValueError as error:
            raise UsageError(
                f"{self.result_path} is damaged ({error}). Remove it, and give the same command to write it again."
            ) from error
        return result

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes result.json: the run is finished."""
        write_atomically(self.result_path, json.dumps(result, indent=2) + "\n")


def _command():
    """The command line of this process; its first word, the path of the program, may be any bytes."""
    return [as_text(word) for word in sys.argv]
