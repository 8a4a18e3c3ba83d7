"""Programs of experiments: from the command line to the results in the folder of the run."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, parse, with_defaults
from trainers.experiments.opening import open_run, settings_to_save
from trainers.run.folder import Run

if TYPE_CHECKING:
    from trainers.experiments.experiment import Experiment

EXIT_CODES = "exit codes: 0 success; 1 failure while running; 2 bad input; 130 stopped by Ctrl-C"


class Problem(Protocol):
    """Data of the experiments."""

    @property
    def origin(self) -> str:
        """Description of the source."""
        ...

    @property
    def digest(self) -> str:
        """Checksum of the data."""
        ...


def _no_experiments(settings: Any) -> "Sequence[Experiment]":
    return ()


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, or one command of a program.

    Attributes:
        name: words of the command line after `python -m`.
        description: description in the help.
        epilog: end of the help.
        settings: dataclass of the settings, whose group `run` contains a `RunSettings`.
        load: returns the problem.
        experiments: returns the experiments for these settings.
        report: measures and prints results that are not tables, and returns them as JSON values by name.
        check: raises UsageError for options that exclude one another, from the given ones and all settings.
        blas_threads: number of threads of matrix products; None for all cores.
    """

    name: str
    description: str | None
    epilog: str
    settings: type
    load: Callable[[Any], Problem]
    experiments: "Callable[[Any], Sequence[Experiment]]" = _no_experiments
    report: Callable[[Any, Any, Run], dict[str, Any]] | None = None
    check: Callable[[Mapping[str, Any], Any], None] | None = None
    blas_threads: int | None = None

    def parser(self) -> Parser:
        """Return the argument parser."""
        parser = Parser(
            prog=f"python -m {self.name}",
            description=self.description,
            epilog=self.epilog,
        )
        add_options(parser, self.settings)
        return parser

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the program and return its exit code."""
        typed = parse(self.parser(), argv)
        settings = with_defaults(self.settings, typed)
        if self.check is not None:
            self.check(typed, settings)
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


def _run_experiments(experiments: "Sequence[Experiment]", problem: Problem, settings: Any, run: Run) -> dict[str, Any]:
    """Run the experiments that have cases, print their files and verdicts, and return verdicts and numbers of rows."""
    from trainers.experiments.results import run_experiment

    verdicts, sizes = [], {}
    for experiment in experiments:
        found = run_experiment(experiment, problem, settings, run.path)
        if not found.rows:
            print(f"{experiment.name}: skipped, no case applies", file=sys.stderr)
            continue
        name = f"{experiment.name + ':':17}" if len(experiments) > 1 else ""
        print(f"{name}{', '.join(map(str, found.paths))}", *found.verdicts, sep="\n", flush=True)
        verdicts += found.verdicts
        sizes[experiment.name] = len(found.rows)
    return {"verdicts": verdicts, "tables": sizes}


def command_parser(name: str, description: str | None, epilog: str) -> Parser:
    """Return the argument parser of a program with commands, which lists the commands in its epilog."""
    usage = f"python -m {name} COMMAND [options]"
    return Parser(prog=f"python -m {name}", usage=usage, description=description, epilog=epilog)


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
