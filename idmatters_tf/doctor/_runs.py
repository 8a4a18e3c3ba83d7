"""Processes of the doctor: a script, unchanged and with one perturbation, in copies of the working folder."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from idmatters_tf.distribute.description import make_local_cluster
from idmatters_tf.doctor._summaries import Summary

# Records of a process by (step, phase), in order of execution: dicts from paths to summaries.
Records: TypeAlias = dict[tuple[int, str], dict[str, Summary]]
LARGEST_FOLDER = 2**30
KINDS = ("again", "restart", "resume", "workers", "replicas", "threads", "hashseed", "listdir", "folder")


@dataclasses.dataclass(frozen=True)
class Against:
    """Second run of a comparison.

    Attributes:
        kind: "again": the same command; "restart": killed after the first epoch and started again; "resume": killed
            after a step; "workers", "replicas", "threads": another number of them; "hashseed", "listdir", "folder":
            another `PYTHONHASHSEED`, order of the entries of folders, or working folder.
        number: number of workers, replicas or threads, or step of the kill.
    """

    kind: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> "Against":
        """Return the run for a word such as "workers=2". Raises ValueError."""
        kind, _, number = text.partition("=")
        defaults = {"workers": 2, "replicas": 2, "threads": 1, "resume": 2}
        if kind not in KINDS or (number and not (kind in defaults and number.isdecimal() and int(number))):
            names = ", ".join(f"{kind}=N" if kind in defaults else kind for kind in KINDS)
            raise ValueError(f"Argument `against` must be some of {names}. Received: {text!r}")
        return cls(kind, int(number or defaults.get(kind, 0)))

    @property
    def has_equal_bits(self) -> bool:
        """False if sums may have another order, so that differences of rounding are expected."""
        return self.kind not in ("workers", "replicas", "threads")

    @property
    def is_killed(self) -> bool:
        """True if the second run is killed and started again."""
        return self.kind in ("restart", "resume")

    def __str__(self) -> str:
        return f"{self.kind}={self.number}" if self.number else self.kind


class ScriptError(RuntimeError):
    """A process has failed. The message contains the end of its output."""


@dataclasses.dataclass
class Runner:
    """Start of processes for a script.

    Attributes:
        script: path of the script.
        arguments: its arguments.
        steps: number of steps to compare.
        timeout: seconds after which a process is killed.
    """

    script: pathlib.Path
    arguments: Sequence[str] = ()
    steps: int = 3
    timeout: float = 3600.0

    def plain(self, against: Against | None = None, **options: object) -> Records:
        """Return the records of an undisturbed run, long enough for a comparison with `against`.

        The options are those of `Plan`.
        """
        plan = self._plan(**options)
        if against is not None and against.kind == "restart":
            plan["epoch"] = 1
        elif against is not None and against.kind == "resume":
            plan["steps"] = self.steps + against.number
        # Without a value, each process has another one.
        seed = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        extra = seed if against is not None and against.kind == "hashseed" else {}
        with self._folder() as folder:
            return self._run([(plan, extra, {})], folder)[0]

    def changed(self, against: Against, detail: int | None = None) -> list[Records]:
        """Return the records of the second run of a comparison, of each worker."""
        plan = self._plan(detail=detail)
        extra: dict[str, str] = {}
        options: dict[str, object] = {}
        with self._folder() as folder:
            if against.is_killed:
                first = {**plan, "steps": 2**31, "detail": None}
                first["killed_at"] = "epoch" if against.kind == "restart" else against.number
                self._run([(first, {}, {})], folder, may_be_killed=True)
            elif against.kind == "threads":
                names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
                extra = dict.fromkeys(names, str(against.number))
            elif against.kind == "hashseed":
                extra = {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
            elif against.kind == "folder":
                extra = {"TMPDIR": str(folder)}
            elif against.kind in ("listdir", "replicas"):
                options = {against.kind: against.number or True}
            if against.kind != "workers":
                return self._run([(plan, extra, options)], folder)
            return self._run([(plan, each, {}) for each in make_local_cluster(against.number).values()], folder)

    def _plan(self, **options: object) -> dict[str, object]:
        return {"steps": self.steps, "detail": None, **options}

    @contextlib.contextmanager
    def _folder(self) -> Iterator[pathlib.Path]:
        """Yield a copy of the working folder: a run may write files that the next one reads."""
        size = 0

        def copy(source: str, target: str) -> str:
            nonlocal size
            size += os.path.getsize(source)
            if size > LARGEST_FOLDER:
                raise ValueError(
                    f"The working folder must have less than 1 GiB, because each run has a copy. Received: "
                    f"{self.root}. Move the data elsewhere, or start from the folder of the script."
                )
            return shutil.copy2(source, target)

        with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
            copied = pathlib.Path(folder) / "run" / self.root.name
            ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__")
            shutil.copytree(self.root, copied, symlinks=True, ignore=ignored, copy_function=copy)
            yield copied

    @property
    def root(self) -> pathlib.Path:
        """The working folder of the runs: this process's if it contains the script, otherwise that of the script."""
        here = pathlib.Path.cwd()
        return here if self.script.resolve().is_relative_to(here) else self.script.resolve().parent

    def _run(
        self,
        parts: Sequence[tuple[dict[str, object], dict[str, str], dict[str, object]]],
        folder: pathlib.Path,
        may_be_killed: bool = False,
    ) -> list[Records]:
        """Run one process for each part, at the same time, and return their records."""
        package = str(pathlib.Path(__file__).resolve().parents[2])
        child = str(pathlib.Path(__file__).with_name("_child.py"))
        script = str(self.script.resolve().relative_to(self.root))
        processes, traces = [], []
        for index, (plan, extra, options) in enumerate(parts):
            traces.append(folder.parent / f"trace-{index}.jsonl")
            traces[-1].unlink(missing_ok=True)
            settings = {**plan, "trace": str(traces[-1]), "listdir": False, "replicas": 1, **options}
            command = [sys.executable, child, json.dumps(settings), script, *self.arguments]
            path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            environment = {**os.environ, **extra, "PYTHONPATH": path}
            output = (folder.parent / f"output-{index}.txt").open("w+b")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            processes.append((process, output))
        try:
            for process, output in processes:
                code = process.wait(self.timeout)
                if code and not (may_be_killed and code == -signal.SIGKILL):
                    output.seek(0)
                    text = output.read().decode(errors="replace").strip().splitlines()
                    raise ScriptError(f"{self.script} ended with exit code {code}:\n" + "\n".join(text[-15:]))
        except subprocess.TimeoutExpired:
            raise ScriptError(f"{self.script} was still running after {self.timeout:.0f} s") from None
        finally:
            for process, output in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                output.close()
        return [read_records(trace) for trace in traces]


def read_records(path: pathlib.Path) -> Records:
    """Return the records in a file, in the order of steps and phases."""
    if not path.is_file():
        raise ScriptError("the script has ended without a training step: it must call `fit` of a compiled Keras model")
    found: Records = {}
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        # Names of layers may differ between two models of the same structure.
        number, _, name = record.pop("path").partition(":")
        record["name"] = name or number
        found.setdefault((record.pop("step"), record.pop("phase")), {})[number] = record
    return found
