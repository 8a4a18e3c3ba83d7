"""Programs of experiments: from the command line to the results in the folder of the run."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, as_dict, parse, setting, with_defaults
from trainers.cli.startup import print_lines
from trainers.run.folder import Run, hold_lock

if TYPE_CHECKING:
    from trainers.experiments.experiment import Experiment

EXIT_CODES = "exit codes: 0 success; 1 failure while running; 2 bad input; 130 stopped by Ctrl-C"
# Options that do not change the results.
_NOT_SAVED = ("out", "overwrite", "format", "debug")


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Folder of the results and format of the figures."""

    out: str = setting(help="folder of the results", metavar="DIR")
    overwrite: bool = setting(False, help="discard the run in --out, if there is one, and start a new one")
    format: Literal["png", "svg", "pdf"] = setting("png", help="format of the figures")
    debug: bool = setting(False, help="show tracebacks")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, or one command of a program.

    Attributes:
        name: words of the command line after `python -m`.
        description: description in the help.
        epilog: end of the help.
        settings: dataclass of the settings, whose group `run` contains a `RunSettings`.
        load: returns the problem, which has the attributes `origin` and `digest`, see `Run.start`.
        experiments: returns the experiments for these settings.
        report: measures and prints results that are not tables, and returns them as JSON values by name.
        blas_threads: number of threads of matrix products; None for all cores.
    """

    name: str
    description: str | None
    epilog: str
    settings: type
    load: Callable[[Any], Any]
    experiments: "Callable[[Any], Sequence[Experiment]]" = lambda settings: ()
    report: Callable[[Any, Any, Run], dict[str, Any]] | None = None
    blas_threads: int | None = None

    def parser(self) -> Parser:
        """Return the argument parser."""
        parser = Parser(prog=f"python -m {self.name}", description=self.description, epilog=self.epilog)
        add_options(parser, self.settings)
        return parser

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the program and return its exit code."""
        settings = with_defaults(self.settings, parse(self.parser(), argv))
        _, *command = self.name.split()
        saved = settings_to_save(settings) | ({"command": command[0]} if command else {})
        with open_run(settings.run.out, saved, settings.run.overwrite) as run:
            if run is not None:
                self._measure(run, saved, settings)
        return 0

    def _measure(self, run: Run, saved: Mapping[str, Any], settings: Any) -> None:
        import threadpoolctl

        experiments = self.experiments(settings)
        # The BLAS must be loaded before it can be limited.
        import idmatters_tf.linear  # noqa: F401

        with threadpoolctl.threadpool_limits(self.blas_threads, user_api="blas"):
            problem = self.load(settings)
            run.start(saved, {"origin": problem.origin, "digest": problem.digest})
            result = {} if self.report is None else self.report(problem, settings, run)
            run.finish(_run_experiments(experiments, problem, settings, run) | result)


def _run_experiments(experiments: "Sequence[Experiment]", problem: Any, settings: Any, run: Run) -> dict[str, Any]:
    """Run the experiments that have cases, print their files and verdicts, and return verdicts and numbers of rows."""
    verdicts, sizes = [], {}
    for experiment in experiments:
        rows = experiment.run(problem, settings)
        if not rows:
            print(f"{experiment.name}: skipped, no case applies", file=sys.stderr)
            continue
        paths = experiment.write(rows, run.path, settings.run.format)
        print(f"{experiment.name}: {', '.join(map(str, paths))}", *experiment.verdicts(rows), sep="\n", flush=True)
        verdicts += experiment.verdicts(rows)
        sizes[experiment.name] = len(rows)
    return {"verdicts": verdicts, "tables": sizes}


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
            verdicts = result.get("verdicts") or ()
            print_lines(
                " ".join([f"{run.path} is finished.", *verdicts, "Use another --out for a new run, or --overwrite."])
            )
            return True
    return False


def run_command(parser: Parser, commands: Mapping[str, Program], argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word of the command line names, and return the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] in ("-h", "--help"):
        parser.print_help()
        return 0 if argv else 2
    if argv[0] == "--version":
        parser.parse_args(argv[:1])
    if argv[0] not in commands:
        raise UsageError(f"{argv[0]!r} is not one of the commands {', '.join(commands)} (see --help).")
    return commands[argv[0]].main(argv[1:])
